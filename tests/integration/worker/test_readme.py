"""The script of the README is a whole one: it can be copied and run, as its two commands say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from tests.support.processes import run_process

README = Path(__file__).parents[3] / "README.md"


def test_what_the_readme_shows_runs_as_it_is(tmp_path: Path) -> None:
    text = README.read_text()
    (script,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "train.py").write_text(script.replace("time.sleep(0.1)", "pass"))
    commands = re.findall(r"^    (echo .*|hvd-elastic run .*)", text, re.M)
    (tmp_path / "hosts").write_text(commands[0].split()[1] + "\n")
    words = shlex.split(commands[1])[1:]
    with run_process([sys.executable, "-m", "hvd_elastic_ext.cli", *words], cwd=tmp_path) as job:
        assert job.wait(120) == 0, job.output
    losses = [float(loss) for loss in re.findall(r"epoch \d, 2 workers, loss (\S+)", job.output)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
