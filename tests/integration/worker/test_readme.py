"""The scripts of the README are whole ones: they can be copied and run, as its commands say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_process
from tests.support.tensorflow import needs_tensorflow

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
SCRIPT, OF_KERAS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
EPOCHS = 4


def trained(folder: Path, script: str, *words: str, seconds: float) -> str:
    """What a script prints that is started as the README says."""
    (folder / "train.py").write_text(script)
    hosts, command = re.findall(r"^    (echo .*|hvd-elastic run .*)", README, re.M)
    (folder / "hosts").write_text(hosts.split()[1] + "\n")
    command = [sys.executable, "-m", "hvd_elastic_ext.cli", *shlex.split(command)[1:], *words]
    with run_process(command, cwd=folder) as job:
        assert job.wait(seconds) == 0, job.output
    return job.output


def test_what_the_readme_shows_runs_as_it_is(tmp_path: Path) -> None:
    output = trained(tmp_path, SCRIPT.replace("time.sleep(0.1)", "pass"), str(EPOCHS), seconds=120)
    losses = [float(loss) for loss in re.findall(r"epoch \d, 2 workers, loss (\S+)", output)]
    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] / 2


@needs_tensorflow
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_what_it_shows_for_keras_runs_as_it_is(tmp_path: Path) -> None:
    output = trained(tmp_path, OF_KERAS, seconds=280)
    losses = [float(loss) for loss in re.findall(r"loss: (\S+)", output)]
    assert len(losses) == 200
    assert losses[-1] < losses[0] / 2


def test_there_is_time_to_change_the_hosts_and_to_kill_a_worker_while_it_trains() -> None:
    samples, batch, epochs, pause_s = (
        float(re.findall(pattern, SCRIPT)[0])
        for pattern in (r"randn\((\d+)", r"batch_size=(\d+)", r"else (\d+)\n", r"time\.sleep\(([\d.]+)\)")
    )
    assert 150.0 < epochs * samples / batch / 2 * pause_s < 240.0
