"""The script of the README is a whole one: it can be copied and run, as its two commands say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from tests.support.processes import run_process

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
EPOCHS = 4


def test_what_the_readme_shows_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("time.sleep(0.1)", "pass"))
    commands = re.findall(r"^    (echo .*|hvd-elastic run .*)", README, re.M)
    (tmp_path / "hosts").write_text(commands[0].split()[1] + "\n")
    words = [*shlex.split(commands[1])[1:], str(EPOCHS)]
    with run_process([sys.executable, "-m", "hvd_elastic_ext.cli", *words], cwd=tmp_path) as job:
        assert job.wait(120) == 0, job.output
    losses = [float(loss) for loss in re.findall(r"epoch \d, 2 workers, loss (\S+)", job.output)]
    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] / 2


def test_there_is_time_to_change_the_hosts_and_to_kill_a_worker_while_it_trains() -> None:
    samples, batch, epochs, pause_s = (
        float(re.findall(pattern, SCRIPT)[0])
        for pattern in (r"randn\((\d+)", r"batch_size=(\d+)", r"else (\d+)\n", r"time\.sleep\(([\d.]+)\)")
    )
    assert 150.0 < epochs * samples / batch / 2 * pause_s < 240.0
