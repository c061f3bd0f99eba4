"""Reads and searches the output of a job's processes that `run --output-filename FOLDER` keeps.

Files may be large, and grow: parts of bounded size are read, and a search stops at bounds of its own. An index, which
the launcher writes beside them, says which process wrote from which byte on, and when.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.output_files import EVERY_S, INDEX, STREAMS, Mark, by_rank, open_file, parse_mark

PART: Final = 64 << 10
"""Bytes that are shown at once."""
LARGEST_PART: Final = 1 << 20
MAX_FILES: Final = 20_000
MAX_MARKS: Final = 100_000
MAX_HITS: Final = 200
MAX_HOSTS: Final = 20
"""Most hosts that are shown for a file: those of the newest processes."""
SEARCH_S: Final = 3.0
"""Seconds after which a search ends as incomplete."""
LONGEST_HIT: Final = 400
BEFORE_S, AFTER_S = 10.0, EVERY_S
"""Seconds before and after a moment whose output is shown, according to the index."""
_PIECE: Final = 1 << 20
_SEAT: Final = re.compile(r"rank\.(.+)\[(\d+)\]")
_NAME: Final = re.compile(r"rank\.[^/\x00]{1,300}/(stdout|stderr)")


class Part(NamedTuple):
    """A part of a file."""

    text: str
    start: int
    """Its first byte."""
    end: int
    """The byte after its last one."""
    size: int
    """Bytes of the whole file."""
    file: str = ""


class Logs:
    """The files below a folder; none if the folder is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._marks: dict[str, list[Mark]] = {}
        self._count = self._read_to = 0

    def files(self) -> list[dict[str, Any]]:
        """Return all files by rank: name, size, the process that wrote last, and the hosts of earlier ones."""
        self._read_index()
        files = []
        for folder in self._folders():
            for stream in STREAMS:
                name = f"{folder}/{stream}"
                size = self._size(name)
                if size is not None:
                    marks = self._marks.get(name, [])
                    last = marks[-1] if marks else None
                    files.append(
                        {
                            "file": name,
                            "who": folder.removeprefix("rank."),
                            "stream": stream,
                            "size": size,
                            "host": last.host if last else None,
                            "hosts": list(dict.fromkeys(mark.host for mark in reversed(marks[-MAX_HOSTS:]))),
                            "t": last.t if last else None,
                        }
                    )
        return files

    def sections(self, name: str) -> list[dict[str, Any]]:
        """Return the parts of a file by process: host, slot, generation, start time, first and last byte."""
        self._read_index()
        marks, parts = self._marks.get(name, []), list[dict[str, Any]]()
        for mark in marks:
            who = {"generation": mark.generation, "host": mark.host, "slot": mark.slot}
            if not parts or any(parts[-1][key] != value for key, value in who.items()):
                if parts:
                    parts[-1]["end"] = mark.at
                parts.append({**who, "t": mark.t, "start": mark.at, "end": None})
        return parts

    def read(self, name: str, *, start: int | None = None, end: int | None = None, length: int = PART) -> Part:
        """Return a part of a file: from ``start``, or up to ``end``, or its last part. Raises :class:`UsageError` for
        an unknown file."""
        length = max(1, min(length, LARGEST_PART))
        with self._open(name) as file:
            size = os.fstat(file.fileno()).st_size
            if start is None:
                until = size if end is None else max(0, min(end, size))
                start = max(0, until - length)
            else:
                start = max(0, min(start, size))
                until = min(size, start + length, size if end is None else max(start, end))
            file.seek(start)
            return Part(file.read(until - start).decode("utf-8", errors="replace"), start, until, size, name)

    def around(self, name: str, t: float) -> Part:
        """Return the output around a time (Unix seconds), at most its newest part; without an index, the end of the
        file.

        If the process has no such file, its other stream is returned; without that, an empty part. A process that is
        named by its host and slot may have written as a rank: the index shows it.
        """
        _check(name)
        self._read_index()
        folder, _, stream = name.rpartition("/")
        files = [f"{folder}/{each}" for each in (stream, *STREAMS) if self._size(f"{folder}/{each}") is not None]
        files = self._written_by(folder, t) or files
        if not files:
            return Part("", 0, 0, 0)
        marks = self._marks.get(files[0], [])
        if not marks:
            return self.read(files[0])
        times = [mark.t for mark in marks]
        first, after = bisect_right(times, t - BEFORE_S), bisect_right(times, t + AFTER_S)
        start, end = marks[max(0, first - 1)].at, self._size(files[0]) or 0
        end = marks[after].at if after < len(marks) else end
        return self.read(files[0], start=max(start, end - PART), end=end)

    def _written_by(self, folder: str, t: float) -> list[str]:
        """Return the files that the process on a slot (``rank.HOST[SLOT]``) wrote last before a time: standard error
        first, then the newest."""
        seat = _SEAT.fullmatch(folder)
        if seat is None:
            return []
        candidates: list[tuple[bool, float, str]] = []
        for name, marks in self._marks.items():
            until = bisect_right([mark.t for mark in marks], t + AFTER_S)
            of_seat = (mark.t for mark in reversed(marks[:until]) if (mark.host, str(mark.slot)) == seat.groups())
            newest = next(of_seat, None)
            if newest is not None:
                candidates.append((name.endswith("/stderr") and newest >= t - BEFORE_S, newest, name))
        return [name for *_, name in sorted(candidates, reverse=True)]

    def search(self, text: str, *, host: str = "", generation: int | None = None) -> dict[str, Any]:
        """Return lines that contain ``text`` (case is ignored), from all files, or only from one host or one world."""
        self._read_index()
        until, wanted = time.monotonic() + SEARCH_S, text.lower().encode()
        hits: list[dict[str, Any]] = []
        if not wanted:
            return {"hits": [], "whole": True}
        for entry in self.files():
            name = str(entry["file"])
            for start, end in self._wanted(name, host, generation):
                for at, line in self._lines(name, start, end, wanted):
                    if line:
                        shown = line[:LONGEST_HIT].decode("utf-8", errors="replace")
                        hits.append({"file": name, "at": at, "text": shown})
                    if len(hits) >= MAX_HITS or time.monotonic() > until:
                        return {"hits": hits, "whole": False}
        return {"hits": hits, "whole": True}

    def _wanted(self, name: str, host: str, generation: int | None) -> list[tuple[int, int | None]]:
        if not host and generation is None:
            return [(0, None)]
        return [
            (part["start"], part["end"])
            for part in self.sections(name)
            if (not host or part["host"] == host) and (generation is None or part["generation"] == generation)
        ]

    def _lines(self, name: str, start: int, end: int | None, wanted: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield lines that contain ``wanted``, with their places, and "" after each piece of the file."""
        with self._open(name) as file:
            file.seek(start)
            at, rest = start, b""
            while piece := file.read(_PIECE):
                data = rest + piece
                cut = data.rfind(b"\n") + 1 if len(data) <= 2 * _PIECE else len(data)
                for place, line in _hits(data[:cut], wanted):
                    if end is None or at + place < end:
                        yield at + place, line
                at, rest = at + cut, data[cut:]
                if end is not None and at >= end:
                    return
                yield at, b""
            for place, line in _hits(rest, wanted):
                if end is None or at + place < end:
                    yield at + place, line

    def _folders(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                ours = (
                    each for each in entries if each.name.startswith("rank.") and each.is_dir(follow_symlinks=False)
                )
                names = [each.name for each in ours]
        except OSError:
            return []
        return sorted(names[:MAX_FILES], key=by_rank)

    def _size(self, name: str) -> int | None:
        try:
            return (self._folder / name).stat(follow_symlinks=False).st_size
        except OSError:
            return None

    def _open(self, name: str) -> BinaryIO:
        """Open one of the output files below the folder; links are not followed."""
        _check(name)
        try:
            return open_file(self._folder, name)
        except OSError as error:
            raise UsageError(f"{name}: cannot be read: {error.strerror}") from None

    def _read_index(self) -> None:
        """Read the new part of the index. Only the newest part of a very long index counts."""
        try:
            with open_file(self._folder, INDEX) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._read_to:
                    self._marks, self._count, self._read_to = {}, 0, 0
                if size - self._read_to > 200 * MAX_MARKS:
                    self._read_to = size - 200 * MAX_MARKS
                file.seek(self._read_to)
                data = file.read(size - self._read_to)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            mark = parse_mark(line.decode("utf-8", errors="replace"))
            if mark is not None:
                self._marks.setdefault(mark.file, []).append(mark)
                self._count += 1
        if self._count > 2 * MAX_MARKS:
            self._marks = {name: marks[-max(2, len(marks) // 2) :] for name, marks in self._marks.items()}
            self._count = sum(map(len, self._marks.values()))


def _check(name: str) -> None:
    if not _NAME.fullmatch(name) or "/.." in f"/{name}":
        raise UsageError(f"{name!r} is not a file of a rank's output")


def _hits(data: bytes, wanted: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the lines of ``data`` that contain ``wanted`` (case is ignored), with their positions."""
    lower, at = data.lower(), 0
    while (place := lower.find(wanted, at)) >= 0:
        begin = lower.rfind(b"\n", 0, place) + 1
        end = lower.find(b"\n", place)
        at = len(data) if end < 0 else end
        yield begin, data[begin:at]
