"""A file that several processes append whole lines to."""

from __future__ import annotations

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

    def write(self, text: str, /) -> int:
        return os.write(self._descriptor, text.encode())

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
