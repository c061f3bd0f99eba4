"""A cgroup with limited memory, of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_FIRST: Final = Path("/sys/fs/cgroup/memory")
_SECOND: Final = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(size: int) -> Iterator[list[str]]:
    """Yield the words to put before a command, so that it and its children have ``size`` bytes of memory and no
    swap."""
    first = (_FIRST / "memory.limit_in_bytes").exists()
    folder = (_FIRST if first else _SECOND) / f"hvd-test-{os.getpid()}"
    limit, swap = ("memory.limit_in_bytes", "") if first else ("memory.max", "memory.swap.max")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"needs a memory cgroup that may be made: {error}")
    try:
        if not (folder / limit).exists():
            pytest.skip(f"needs a memory cgroup that may be made: {folder} has no {limit}")
        (folder / limit).write_text(str(size))
        if swap and (folder / swap).exists():
            (folder / swap).write_text("0")
        yield ["sh", "-c", f'echo $$ >{folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        folder.rmdir()
