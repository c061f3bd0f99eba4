"""A script in the style of TensorFlow 1 in its MPIJob: the launcher reaches pods over ssh, and it goes on from its own
checkpoints, which are on a claim."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.mpijob import LONGEST_S, ClusterJob
from tests.integration.launcher.conftest import ELASTIC
from tests.support import manifests, marks
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess
from tests.support.tensorflow import needs_tensorflow

pytestmark = [needs_tensorflow, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
SAVE_EVERY = 100
"""Steps of the script from one checkpoint, and one line, to the next."""


class WithOwnCheckpoints(ClusterJob):
    def written(self) -> list[dict[str, Any]]:
        return manifests.documents(manifests.TENSORFLOW1)

    @contextlib.contextmanager
    def starts(self, *, last: int, launcher: str) -> Iterator[RunningProcess]:
        """Run the manifest's command to the step ``last``, in a launcher's pod of that name."""
        words = [self._moved(each) for each in self._launcher["launcher"]["args"]]
        *options, python, script, _, claim = words
        assert python == "python"
        moved = [script.replace("/opt/hvd/share/hvd-elastic-ext", str(ROOT)), str(last), f"{self.directory}{claim}"]
        own = ["--state-dir", str(self.directory / launcher), "--journal", str(self.journal)]
        short = ["--settle", "0.2", "--blacklist-cooldown-range", "2", "10"]
        command = [*ELASTIC, "run", *options, *own, *short, sys.executable, *moved]
        with self.popen(command, env={"OMP_NUM_THREADS": "1"}, cwd=self.directory) as process:
            self.process = process
            yield process

    def said(self) -> list[tuple[int, int]]:
        """Step and number of workers of each line of rank 0."""
        found = re.findall(r"step (\d+), (\d) workers", self.process.stdout)
        return [(int(step), int(workers)) for step, workers in found]

    def kill_in(self, pod: str) -> None:
        (victim,) = (pid for pid in self.kubelets.container(pod).pids() if is_trainee(pid))
        os.kill(victim, signal.SIGKILL)


def is_trainee(pid: int) -> bool:
    """The process itself, and none of the shells above it."""
    words = marks.command_line(pid).split()
    return len(words) > 1 and words[1].endswith("08-tensorflow1/train.py")


def test_it_goes_on_from_its_own_checkpoint_after_a_failure_and_in_the_next_job(
    nethosts: Callable[..., NetHosts], tmp_path: Path
) -> None:
    job = WithOwnCheckpoints(tmp_path, nethosts(2, sshd=False))
    with job.cluster():
        with job.starts(last=2000, launcher="first") as process:
            job.wait_for("three checkpoints", lambda: len(job.said()) > 2, timeout=LONGEST_S)
            job.kill_in("digits-worker-1")
            assert process.wait(LONGEST_S) == 0, process.output
            steps, sizes = zip(*job.said(), strict=True)
        assert [each.get("number") for each in job.events("training_restarted")] == [1]
        assert set(sizes) == {2}
        assert steps[-1] == 2000
        # It has gone on from the last checkpoint: what was done since then is done again, and nothing before.
        assert sorted(set(steps)) == list(range(SAVE_EVERY, 2000 + SAVE_EVERY, SAVE_EVERY))
        assert len(steps) - len(set(steps)) <= 1
        with job.starts(last=2300, launcher="second") as process:
            assert process.wait(LONGEST_S) == 0, process.output
            assert job.said() == [(step, 2) for step in range(2100, 2301, SAVE_EVERY)]
