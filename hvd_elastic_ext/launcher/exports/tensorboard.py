"""Which scalars a job has for TensorBoard, from the events of its journal.

They come from the launcher, not from the process of rank 0: rank 0 moves from host to host, and may be killed in the
middle of a file, while the launcher knows of every world, and writes one series beside its journal.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.own_files import make_folder, open_output
from hvd_elastic_ext.io.threads.follower import Follower

MAX_VALUES: Final = 100
"""Values of a step that are written."""
MAX_NAME_CHARS: Final = 100
"""Characters of a name."""
_NOT_FINITE: Final = ("nan", "inf", "-inf")
"""The journal's texts for such numbers."""


class Point(NamedTuple):
    """Scalars of a step, by tag. ``lost_from``: earlier points of this step and of later ones are not valid any
    more."""

    step: int
    values: Mapping[str, float]
    lost_from: int | None = None


class Scalars:
    """Points of one launcher. The first one replaces what an earlier launcher wrote of later steps."""

    def __init__(self) -> None:
        self._newest: int | None = None
        self._agreed: int | None = None
        """The step on which a world has agreed since the last point: later ones are lost."""
        self._last: tuple[float, int] | None = None
        """Time (mono) and number of the last step; None if a world has formed since."""

    def take(self, event: str, fields: Mapping[str, Any], now: float, signals: Mapping[str, float]) -> Point | None:
        """Return the point of an event at ``now`` (mono); None if it makes none. ``signals``: their present values."""
        if event == "resized":
            self._last = None
        step = fields.get("step")
        if not isinstance(step, int) or step < 0:
            return None
        if event == "synced":  # a rank that has rolled back further than the others gets their steps
            self._agreed = step
        if event != "stepped":
            return None
        values = {"job/world_size": fields.get("size")}
        if self._last is not None and step > self._last[1] and now > self._last[0]:
            values["job/steps_per_second"] = (step - self._last[1]) / (now - self._last[0])
        reported = fields.get("values")
        values |= _named("training", reported if isinstance(reported, Mapping) else {})
        values |= _named("signals", signals)
        lost_from = self._lost_from(step)
        self._newest, self._last, self._agreed = step, (now, step), None
        found = {tag: number for tag, value in values.items() if (number := _number(value)) is not None}
        return Point(step, found, lost_from)

    def _lost_from(self, step: int) -> int | None:
        if self._newest is None:
            return step if self._agreed is None else min(step, self._agreed + 1)
        holds = min(self._newest, step - 1 if self._agreed is None else self._agreed)
        return holds + 1 if holds < self._newest else None


def _named(group: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    return {f"{group}/{_readable(name)}": value for name, value in list(values.items())[:MAX_VALUES]}


def _readable(name: Any) -> str:
    """Return the name without characters that no file can contain, such as lone surrogates."""
    return str(name)[:MAX_NAME_CHARS].encode(errors="replace").decode()


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    try:
        return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


# --- the file


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
