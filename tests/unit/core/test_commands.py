"""How agents are started: nothing of the directory they start in is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.commands import AGENT_MODULE, agent_command, is_agent

OLD, NEW = (3, 10), (3, 11)
OURS = "hvd_elastic_ext"
FINISH = b'{"do": "finish"}\n'

needs_safe_path = pytest.mark.skipif(sys.version_info < NEW, reason="needs Python 3.11 or newer, for -P")


@pytest.mark.parametrize("version", [OLD, pytest.param(NEW, marks=needs_safe_path)])
@pytest.mark.parametrize("safe", [{}, {"PYTHONSAFEPATH": "1"}])
def test_an_agent_runs_nothing_that_lies_in_its_directory(
    tmp_path: Path, version: tuple[int, int], safe: dict[str, str]
) -> None:
    for name in ("signal", "json", "socket", "runpy", "hmac", OURS):
        (tmp_path / f"{name}.py").write_text("import os\nopen('was-run', 'w').close()\nos._exit(66)\n")
    command = agent_command(sys.executable, version=version)
    done = subprocess.run(
        command, input=FINISH, cwd=tmp_path, env={**os.environ, **safe}, capture_output=True, timeout=60, check=False
    )
    assert not (tmp_path / "was-run").exists()
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interpreter_that_does_not_know_the_option_is_not_given_it() -> None:
    assert "-P" in agent_command("python", version=(3, 13))
    assert "-P" not in agent_command("python", version=(3, 10))


@pytest.mark.parametrize("version", [OLD, NEW])
def test_what_was_started_as_an_agent_is_known_as_one(version: tuple[int, int]) -> None:
    assert is_agent(agent_command("/opt/python", version=version))
    assert is_agent(["sh", "-c", 'exec "$@"', "sh", *agent_command("python", version=version)])


@pytest.mark.parametrize(
    "words",
    [[], ["python"], ["python", "-m", "pytest", AGENT_MODULE], ["grep", AGENT_MODULE], ["python", "-c", "import sys"]],
)
def test_nothing_else_is_taken_for_an_agent(words: list[str]) -> None:
    assert not is_agent(words)
