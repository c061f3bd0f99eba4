"""Scalars in TensorBoard's own format, by its own writer of records. No torch: the launcher needs none."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.own_files import make_folder, open_output
from hvd_elastic_ext.io.threads.follower import Follower
from hvd_elastic_ext.launcher.exports.scalars import Point, Scalars

REMEDY: Final = "pip install tensorboard"


OPTION: Final = "--tensorboard"


Dated = tuple[float, Point]
"""A point with its time in Unix seconds."""


class EventFile:
    """Writes points into a new file of ``folder``. After an error the next point begins another file. A file without
    points is removed, so that a full disk does not collect empty files.

    Raises :class:`UsageError` if TensorBoard is not installed, or nothing can be written.
    """

    def __init__(self, folder: Path, wall: Callable[[], float], *, given: Path | None = None) -> None:
        """``given``: the folder that the user named, with ``folder`` in it."""
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise UsageError(f"{OPTION} needs the package tensorboard ({error}); install it: {REMEDY}") from None
        self._event, self._summary, self._writer = event_pb2, summary_pb2, RecordWriter
        self._folder, self._wall = folder, wall
        self._count = 0
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        """Its path while the file contains no point; then None."""
        self._records: Any = None
        self._lost_from: int | None = None
        """The lowest step of the points that could not be written; the next point reports it."""
        try:
            make_folder(folder, option=OPTION, below=given)
            self._open()
        except OSError as error:
            raise UsageError(f"{OPTION}: {folder} cannot be written: {error.strerror}; name another folder") from None

    def take(self, dated: Dated) -> str:
        """Write a point. Return what went wrong; "" if nothing did."""
        at, point = dated
        known = [step for step in (self._lost_from, point.lost_from) if step is not None]
        self._lost_from = min(known, default=None)
        try:
            if self._file is None:
                self._open()
            self._write(at, point._replace(lost_from=self._lost_from))
            self._path = self._lost_from = None
        except UsageError as error:  # somebody else has got at the folder
            self.close()
            return str(error)
        except OSError as error:
            self.close()
            self._remove_empty()
            return f"{self._folder} cannot be written: {error.strerror or error}"
        return ""

    def close(self) -> None:
        """Close the file. May be repeated."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:  # it was reported before
                return

    def _remove_empty(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def _open(self) -> None:
        name = f"events.out.tfevents.{int(self._wall()):010d}.{socket.gethostname()}.{os.getpid()}.{self._count}"
        self._count += 1
        path = self._folder / name
        self._file, self._path = os.fdopen(open_output(path, option=OPTION, new=True), "wb"), path
        self._records = self._writer(self._file)
        self._put(self._event.Event(wall_time=self._wall(), file_version="brain.Event:2"))
        self._file.flush()

    def _write(self, at: float, point: Point) -> None:
        if point.lost_from is not None:  # readers forget what they have read of this step and of later ones
            begins = self._event.SessionLog(status=self._event.SessionLog.START)
            self._put(self._event.Event(wall_time=at, step=point.lost_from, session_log=begins))
        made = [self._summary.Summary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()]
        summary = self._summary.Summary(value=made)
        self._put(self._event.Event(wall_time=at, step=point.step, summary=summary))
        assert self._file is not None
        self._file.flush()

    def _put(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


class ScalarWriter:
    """Gets the events of the journal, and has their scalars written by a thread."""

    def __init__(self, file: EventFile, clock: Clock) -> None:
        self._clock = clock
        self._scalars = Scalars()
        self._follower: Follower[Dated] = Follower(OPTION, file.take, end=file.close)
        self.signals: Callable[[], Mapping[str, float]] = dict
        """Returns the present signals."""

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of the journal."""
        signals = self.signals() if event == "stepped" else {}
        point = self._scalars.take(event, fields, self._clock.mono(), signals)
        if point is not None:
            self._follower.put((self._clock.wall(), point))

    def close(self) -> None:
        """Write what waits."""
        self._follower.close()
