"""Replaces a file as a whole: readers see the old text or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


def replace(path: Path, text: str, *, mode: int = 0o666, backup: Path | None = None, durable: bool = False) -> None:
    """Write ``text`` at ``path``, whole or not at all. Raises ``OSError``.

    ``mode``: the mode of a new file, less the umask. ``backup``: the new path of the old file. ``durable``: whether the
    file must be on the disk when this returns.
    """
    fresh = path.with_name(f"{path.name}.tmp")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(descriptor)
        if backup is not None:
            with contextlib.suppress(FileNotFoundError):
                path.replace(backup)  # for a moment only the backup exists, which is as good
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # a half-written file occupies space on a full disk
            fresh.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)
