"""The program that a job's command names, and whether this machine has it."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1"})
"""Names that mean the machine itself on every machine."""


def runnable(command: Sequence[str]) -> tuple[str, ...]:
    """``command``, with this Python before a script that is not executable, as torchrun does it.

    Raises :class:`UsageError` for a ``NAME.py`` that is neither in this folder nor a program.
    """
    words = tuple(command[1:] if command[:1] == ["--"] else command)
    script = words[0] if words else ""
    if script.endswith(".py") and os.sep not in script and not Path(script).exists() and shutil.which(script) is None:
        remedy = nearest(script, _files(Path.cwd())) or "give the script's path"
        raise UsageError(f"there is no {script} in {Path.cwd()}; {remedy}")
    if not script.endswith(".py") or not Path(script).is_file() or shutil.which(script) is not None:
        return words
    return (sys.executable, *words)


def check_here(command: Sequence[str]) -> None:
    """Raise :class:`UsageError` if the first word of ``command`` is neither a file nor a program of this machine.

    Only for jobs whose hosts are this machine: other hosts may have other programs.
    """
    name = command[0] if command else ""
    if not name or Path(name).exists() or shutil.which(name) is not None:
        return
    if os.sep in name:
        there = Path(name).parent
        near = nearest(Path(name).name, _files(there), within=there)
        raise UsageError(f"there is no {name}; {near or 'give the path of a script or program'}")
    near = nearest(name, [*_files(Path.cwd()), *_programs()])
    what = f"{name} is not a file in {Path.cwd()}, nor a program on PATH"
    raise UsageError(f"{what}; {near or 'give a script, as in hvd-elastic run -np 2 train.py, or a program'}")


def nearest(name: str, there: Iterable[str], *, within: Path = Path()) -> str:
    """``did you mean …?`` with the most similar name; empty if none is similar. ``name`` with ``.py`` comes first.
    Pure."""
    known = list(dict.fromkeys(there))
    near = [f"{name}.py"] if f"{name}.py" in known else difflib.get_close_matches(name, known, n=1)
    return f"did you mean {within / near[0]}?" if near else ""


def _files(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir() if each.is_file())
    except OSError:
        return []


def _programs() -> list[str]:
    folders = map(Path, filter(None, os.get_exec_path()))
    return [name for folder in folders for name in _files(folder)]
