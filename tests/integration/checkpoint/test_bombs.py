"""A few bytes that would take any memory or time are refused at once, by whoever reads them."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from tests.integration.checkpoint import bombs

READ = {"sent: a tensor again and again": "read: list"}
"""What may be read, as it takes nothing."""


@pytest.fixture(scope="module")
def endings() -> dict[str, tuple[str, float]]:
    """How reading each has ended under limits of memory and time, and the seconds of the processor that it took."""
    found: dict[str, tuple[str, float]] = {}
    while waiting := bombs.NAMES[len(found) :]:
        program = [sys.executable, "-m", bombs.__name__, *waiting]
        done = subprocess.run(program, capture_output=True, timeout=100, check=False)
        told = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
        if len(told) < len(waiting):
            told.append((f"ended with {done.returncode}: {done.stderr.decode()[-500:]}", math.inf))
        found.update(zip(waiting, told, strict=False))
    return found


@pytest.mark.parametrize("name", bombs.NAMES)
def test_what_would_take_any_memory_or_time_is_refused_at_once_in_one_line(
    name: str, endings: dict[str, tuple[str, float]]
) -> None:
    said, seconds = endings[name]
    if name in READ:
        assert said == READ[name]
    else:
        assert said.startswith("refused: the State of" if "exported" not in name else "refused: the checkpoint holds")
        # It is refused for what it is, not for having found no memory.
        assert not any(word in said for word in ("made: ;", "read: ;", "allocate", "[enforce", "\n"))
    assert seconds < (2 if name.endswith("a key that is one long list of the same") else 1)
