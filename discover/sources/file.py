"""Hosts from a file that people, scripts or a ConfigMap rewrite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from discover.source import Sight, Unsettled
from hvd_elastic_ext.core.publication import parse_hosts_text
from hvd_elastic_ext.edges.filewatch import BeingWritten, FileWatch, read_text


class FileSource:
    """Reads ``host:slots`` lines from ``path``; a bare ``host`` has ``slots`` slots, if those are given.

    An empty file that nobody is writing means no hosts; a missing one means that
    nothing is known.
    """

    def __init__(self, path: Path, *, slots: int | None = None) -> None:
        self._path = path
        self._slots = slots
        self._watch: FileWatch | None = None

    def start(self, changed: Callable[[], None]) -> None:
        self._watch = FileWatch(self._path, changed)
        self._watch.start()

    def read(self) -> Sight | Unsettled:
        try:
            text = read_text(self._path)
        except BeingWritten as error:
            return Unsettled(error.where, error.why)
        return Sight(parse_hosts_text(text, where=str(self._path), default_slots=self._slots))

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
