"""Why a training process cannot be started, in words that say what to write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.agent.slots.supervisor import why_not_started

FULL = "give the full path that it has on each host"
OURS = f"{FULL}, or the script alone, as in `hvd-elastic run train.py`, which {sys.executable} then runs"


def absent(name: str) -> FileNotFoundError:
    return FileNotFoundError(2, "No such file or directory", name)


@pytest.mark.parametrize(
    ("program", "reason", "remedy"),
    [
        ("python", "'python' is not on the PATH of this host", OURS),
        ("/nowhere/python3.11", "'/nowhere/python3.11' is not on this host", OURS),
        ("evnts", "'evnts' is not on the PATH of this host", FULL),
    ],
)
def test_a_program_that_a_host_does_not_have_is_told_with_what_to_write(program: str, reason: str, remedy: str) -> None:
    assert why_not_started(absent(program), program) == (reason, remedy)


def test_any_other_reason_is_told_in_the_systems_words(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.touch()  # of a script that is there, the interpreter in its first line is missing
    for error in (absent("/no/cwd"), absent(str(script)), PermissionError(13, "Permission denied", str(script))):
        assert why_not_started(error, str(script)) == (str(error), "")
