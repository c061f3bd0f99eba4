"""What a checkpoint of the user's own files looks like to the programs that make it and to those that only read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Protocol

FILES: Final = "$files"
"""The one part of a commit's tree that holds files, by their names; no attribute of a State can be called that."""


def is_inside(name: Any) -> bool:
    """Whether ``name`` is that of a file within a folder, told in one way only: what lay on storage may be anything."""
    if not isinstance(name, str) or "\0" in name or any("\ud800" <= each <= "\udfff" for each in name):
        return False
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name


class Writable(Protocol):
    """What a file holds, as an array that is written without a copy."""

    def tofile(self, fid: IO[bytes], /) -> object: ...


def put(folder: Path, files: Mapping[str, Writable], *, durable: bool = False) -> None:
    """Write files into a folder that is there; ``durable``: each through to the disk.

    Raises ``ValueError`` for a name that leads out of it, before anything is written, and ``OSError``.
    """
    wrong = next((name for name in files if not is_inside(name)), None)
    if wrong is not None:
        raise ValueError(f"{str(wrong)[:80]!r} is no file of a folder")
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            data.tofile(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
