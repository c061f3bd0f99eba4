"""One owner for one place: a lock file beside it that dies with its owner."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hvd_elastic_ext.core.errors import Permanent


class OwnedByOther(Permanent):
    """Another live process owns the place."""


class FileLock:
    """Owns ``place`` from construction to :meth:`release`, or to the end of this process, however it ends.

    The lock file ``.NAME.lock`` stays behind: removing it would let two owners in.

    Raises :class:`Taken`, or ``OSError`` if the lock file cannot be made.
    """

    def __init__(self, place: Path) -> None:
        path = place.with_name(f".{place.name}.lock")
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise OwnedByOther(
                f"{place}: another hvd-discover (process {owner}) already writes it; stop that one or name another path"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def holds(self) -> bool:
        """False once somebody removed the lock file, or its directory, and so opened the place to others."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Give the place up. May be repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
