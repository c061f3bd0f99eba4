"""A file that several processes append whole lines to."""

from __future__ import annotations

import errno
import os
from pathlib import Path


class AppendFile:
    """A :class:`hvd_elastic_ext.core.journal.Sink` over a file.

    One ``write`` is one system call in append mode, so lines of several writers
    on one machine do not mix. Raises ``OSError`` as the system does; the journal
    knows what to do about it.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o644)
        self._torn = False

    def write(self, text: str, /) -> int:
        # A line that a full disk cut short must not swallow the next one.
        data = (b"\n" if self._torn else b"") + text.encode()
        written = os.write(self._descriptor, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")
        return written

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
