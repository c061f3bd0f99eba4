"""The form of a checkpoint with the user's own files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Protocol

FILES: Final = "$files"
"""The part of a commit's tree that contains files by name; no attribute of a State can have this name."""


def is_inside(name: Any) -> bool:
    """Whether ``name`` is a normalized path of a file within a folder: storage may contain any text."""
    if not isinstance(name, str) or "\0" in name or any("\ud800" <= each <= "\udfff" for each in name):
        return False
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name


class Writable(Protocol):
    """The content of a file, as an array that is written without a copy."""

    def tofile(self, fid: IO[bytes], /) -> object: ...


def put(folder: Path, files: Mapping[str, Writable], *, durable: bool = False) -> None:
    """Write files into an existing folder; ``durable``: each is flushed to the disk.

    Raises ``ValueError`` for a name that leads out of it, before anything is written, and ``OSError``.
    """
    wrong = next((name for name in files if not is_inside(name)), None)
    if wrong is not None:
        raise ValueError(f"{str(wrong)[:80]!r} is not a file of a folder")
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            data.tofile(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
