"""What a checkpoint of the user's own files looks like to those who make it and to those who only read it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

FILES: Final = "\0files"
"""The one part of a commit's tree that holds files, by their names; no attribute of a State can be called that."""


def is_inside(name: Any) -> bool:
    """Whether ``name`` is that of a file within a folder, told in one way only: what lay on storage may be anything."""
    if not isinstance(name, str) or "\0" in name or any("\ud800" <= each <= "\udfff" for each in name):
        return False
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name
