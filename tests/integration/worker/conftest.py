"""Stock ``horovodrun`` on this machine, static and elastic, with our State in the workers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.core.journal import Record, read
from tests.support import marks
from tests.support.processes import RunningProcess, run_process

HOROVODRUN = Path(sys.executable).with_name("horovodrun")
DIGITS = Path(__file__).parents[3] / "examples/01-digits/train.py"


class ElasticJob:
    """One elastic job of stock Horovod: a hosts file that the test rewrites, and a journal."""

    def __init__(self, directory: Path) -> None:
        self.hosts = directory / "hosts"
        self.script = directory / "discover.sh"
        self.journal = directory / "worker.jsonl"
        self.journal.touch()
        self.script.write_text(f"#!/bin/sh\ncat {self.hosts}\n")
        self.script.chmod(0o755)

    def set_hosts(self, *lines: str) -> None:
        fresh = self.hosts.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.rename(self.hosts)

    @contextlib.contextmanager
    def run(self, *command: str | Path, sample: str = "0") -> Iterator[RunningProcess]:
        launch = [HOROVODRUN, "-np", "1", "--min-np", "1", "--max-np", "3", "--network-interface", "lo"]
        launch += ["--elastic-timeout", "60", "--host-discovery-script", self.script, sys.executable, *command]
        env = {"HVD_ELASTIC_WORKER_JOURNAL": str(self.journal), "HVD_ELASTIC_SAMPLE": sample}
        with run_process(launch, env=env, orderly=True) as process:
            yield process

    def events(self, name: str) -> list[Record]:
        with self.journal.open() as lines:
            return [record for record in read(lines) if record.event == name]

    def size(self) -> int:
        """Return the number of workers in the world, by the last step in the journal."""
        steps = self.events("stepped")
        return int(steps[-1].get("size")) if steps else 0

    def worker_on(self, process: RunningProcess, host: str) -> int:
        """Return the pid of the training process on ``host``."""
        found = [
            pid
            for pid in process.tree()
            if marks.environment(pid).get("HOROVOD_HOSTNAME") == host and "python" in marks.command_line(pid).split()[0]
        ]
        assert found, f"no worker on {host}"
        return max(found)  # the shell that started it has a lower pid


@pytest.fixture
def job(tmp_path: Path) -> ElasticJob:
    return ElasticJob(tmp_path)
