"""An environment without Horovod, and jobs in it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.engines.conftest import LEARNER, Job
from tests.support.environments import environment_without_horovod


class Environment:
    """The environment, with methods that run programs in it."""

    def __init__(self, python: Path) -> None:
        self.python = python

    def run(self, module: str, *words: str | Path, cwd: Path, code: int = 0) -> str:
        """Run a module of this package. Return its output."""
        return self.execute("-m", module, *words, cwd=cwd, code=code)

    def execute(self, *words: str | Path, cwd: Path, code: int = 0) -> str:
        """Run this Python. Return its output."""
        done = subprocess.run([self.python, *words], cwd=cwd, capture_output=True, text=True, timeout=100)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said


class JobWithoutHorovod(Job):
    """A job whose launcher, agents and workers run in that environment."""

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory)
        self.python = str(python)
        self.elastic: Sequence[str] = (self.python, "-m", "hvd_elastic_ext.cli")

    def words(self, engine: str, *words: str | Path, count: int, processes: int) -> list[str]:
        return self.command(engine, *words, processes=processes, script=(self.python, str(LEARNER), str(count)))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(environment_without_horovod(tmp_path_factory.mktemp("without") / "venv"))


@pytest.fixture
def job(tmp_path: Path, environment: Environment) -> JobWithoutHorovod:
    return JobWithoutHorovod(tmp_path, environment.python)
