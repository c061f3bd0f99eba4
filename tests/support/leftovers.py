"""Removes what killed test sessions have left: its owner is dead."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from tests.support import marks, namespaces


def remove_leftovers() -> list[str]:
    """Remove processes, namespaces and directories whose session is dead. Return a line for each."""
    lines = []
    orphans = marks.marked(marks.MARK, lambda value: any(map(marks.owner_is_dead, value.split("/"))))
    lines += [f"process {pid}: {marks.command_line(pid)}" for pid in orphans]
    marks.kill(orphans)
    dead = [name for name in namespaces.named(marks.PREFIX) if _is_orphan(name)]
    if os.geteuid() == 0:
        namespaces.remove(dead)
        lines += [f"network namespace {name}" for name in dead]
    for path in Path(tempfile.gettempdir()).glob(f"{marks.PREFIX}*"):
        if _is_orphan(path.name):
            with contextlib.suppress(OSError):
                shutil.rmtree(path)
                lines.append(f"directory {path}")
    return lines


def _is_orphan(name: str) -> bool:
    return marks.owner_is_dead(name.removeprefix(marks.PREFIX))
