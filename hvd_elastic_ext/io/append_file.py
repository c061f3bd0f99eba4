"""A file to which several processes append whole lines."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.journal import Sink

LOG: Final = logging.getLogger(__name__)


class Announced:
    """A sink that logs once when lines begin to be lost, and once when writing works again. Errors are still raised."""

    def __init__(self, sink: Sink, name: str) -> None:
        self._sink = sink
        self._name = name
        self._losing = False

    def write(self, text: str, /) -> object:
        """Write ``text`` and flush; return what the sink returns."""
        try:
            written = self._sink.write(text)
            self._sink.flush()
        except OSError as error:
            if not self._losing:
                self._losing = True
                why = error.strerror or error
                LOG.warning("%s cannot be written (%s); the job goes on, and lines are lost", self._name, why)
            raise
        if self._losing:
            self._losing = False
            LOG.warning("%s can be written again", self._name)
        return written

    def flush(self) -> None:
        """Do nothing, because every write is flushed."""


class AppendFile:
    """A :class:`hvd_elastic_ext.core.journal.Sink` over a file.

    One ``write`` is one system call in append mode, so lines of several writers
    on one machine do not mix. Raises ``OSError`` as the system does; the journal
    handles it.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o644)
        self._torn = False

    def write(self, text: str, /) -> int:
        """Append whole lines; return how many bytes were written.

        Raises ``OSError`` also if only a part could be written; the next call then begins a new line.
        """
        # A line that a full disk cut short must not run into the next one.
        data = (b"\n" if self._torn else b"") + text.encode()
        written = os.write(self._descriptor, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the cause of a short write
        return written

    def flush(self) -> None:
        """Do nothing, because nothing is buffered here."""

    def close(self) -> None:
        """Close the file. May be repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
