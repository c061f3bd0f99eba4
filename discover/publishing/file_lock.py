"""Gives a file one owner, by a lock file beside it. The kernel releases the lock when the owner ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hvd_elastic_ext.core.errors import Permanent


class OwnedByOther(Permanent):
    """Another process that still runs owns the place."""


class FileLock:
    """Owns ``place`` from construction to :meth:`release`, or to the end of this process, however it ends.

    The lock file ``.NAME.lock`` stays. If it were removed, two owners could each lock a file of that name.

    Raises :class:`OwnedByOther`, or ``OSError`` if the lock file cannot be made.
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
        """Whether the lock is still effective: not after the lock file or its directory was removed."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Give up the lock. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
