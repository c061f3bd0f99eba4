"""``hvd-elastic logs JOB``: the output of a job's processes on this machine, from the files of ``--output-filename``.

The journal's ``started`` names their folder, and the folder's index says when each part was written, to about 5 s. The
same words name a job on a cluster, which another module reads: :func:`not_here` says which is meant.
"""

from __future__ import annotations

import argparse
import calendar
import contextlib
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.journal import FILE
from hvd_elastic_ext.io.job_folders import find_journal, last_records, no_job, one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.output_files import EVERY_S, INDEX, STREAMS, Mark, by_rank, label, open_file, parse_mark
from hvd_elastic_ext.launcher.cli import hosts
from hvd_elastic_ext.launcher.folder import state_folder

LOOK_S: Final = 0.5
"""Pause between two looks for new output."""
ON_A_CLUSTER: Final = "for a job on a cluster give -n NAMESPACE"
_RUN: Final = re.compile(r"(\d{8}T\d{6})\.(\d{3})-", re.ASCII)
"""The beginning of a run's name: its start in UTC."""


class Wanted(NamedTuple):
    """Which output: of one rank, the last lines, the time from which on (Unix seconds), with the time of each line."""

    rank: int | None = None
    tail: int | None = None
    since: float = -math.inf
    stamped: bool = False


class Part(NamedTuple):
    """Bytes of a file that were written within :data:`EVERY_S` from ``t`` on (Unix seconds; -inf: unknown)."""

    t: float
    file: str
    at: int
    end: int


def parser() -> argparse.ArgumentParser:
    """The options, for a job on this machine and for one on a cluster."""
    options = Parser(
        prog="hvd-elastic logs",
        description="Print the output of a job's processes, of all ranks or of one: of a job on this machine if one of "
        "that name was started here, else of a job on a cluster.",
        epilog="A job on this machine keeps its output if it was started with --output-filename FOLDER. With "
        "-n NAMESPACE or --kubeconfig FILE, a job on a cluster is meant in any case.",
    )
    options.add_argument(
        "named",
        metavar="NAME",
        nargs="?",
        help="a job, its folder or its journal (default: the newest job here)",
    )
    options.add_argument("--job", metavar="JOB", help="a job on this machine, instead of NAME")
    options.add_argument("--state-dir", metavar="DIR", type=Path, help="its folder (default: ./.hvd-elastic/JOB)")
    options.add_argument("-f", "--follow", action="store_true", help="follow until the job has ended")
    options.add_argument("--rank", metavar="N", type=int, help="only lines of this rank")
    options.add_argument("-t", "--tail", metavar="N", type=int, default=-1, help="only the last N lines (-1: all)")
    since = options.add_mutually_exclusive_group()
    since.add_argument("--since", metavar=durations.METAVAR, type=durations.time, help="only lines this new")
    since.add_argument(
        "--since-time", metavar="TIMESTAMP", default="", help="only lines since a time such as 2026-01-31T07:00:00Z"
    )
    options.add_argument("--timestamps", action="store_true", help="print the time of each line; here to about 5 s")
    options.add_argument("--all-runs", action="store_true", help="also output of earlier runs of a job here")
    cluster = options.add_argument_group("only for a job on a cluster")
    cluster.add_argument("-p", "--previous", action="store_true", help="output before the launcher's last restart")
    cluster.add_argument("-i", "--instance", metavar="POD", default="", help="output of another pod of the job")
    cluster.add_argument("-c", "--container", metavar="NAME", default="", help="of another container of that pod")
    cluster.add_argument("-n", "--namespace", metavar="NAME", default="", help="its namespace")
    cluster.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: as kubectl finds it")
    return options


def not_here(argv: Sequence[str]) -> str:
    """Why the words can only mean a job on a cluster: no job of that name was started here. Empty if one was, or if
    none is named. Raises :class:`UsageError` for wrong options."""
    options = parser().parse_args(argv)
    word = options.named
    if word is None or None not in (options.job, options.state_dir):
        return ""
    path = Path(word)
    here = (hosts.ROOT / word).is_dir() or (path / FILE).is_file() or (path.suffix == ".jsonl" and path.exists())
    if here:
        return ""
    known = [each.name for each in hosts.ROOT.glob("*") if each.is_dir()]
    return no_job(word, known) if known else f"no job {word} was started in this folder (./{hosts.ROOT})"


def main(argv: Sequence[str]) -> int:
    """Print lines. Raises :class:`UsageError` if there is no such job, :class:`Permanent` if it keeps no output."""
    options = parser().parse_args(argv)
    wanted = _wanted(options)
    journal, folder = _job(options)
    name = journal.stem if folder is None else folder.resolve().name
    started = last_records(journal, "started").get("started")
    place = _output_of(folder) if started is None else started.get("output")
    if not isinstance(place, str):
        if started is None:
            raise UsageError(
                f"{journal}: no job has begun with this journal; name the one of `hvd-elastic run --journal`"
            )
        raise Permanent(
            f"{name} does not keep the output of its processes; `hvd-elastic run --output-filename FOLDER` keeps it"
        )
    output = Output(Path(place), wanted)
    if not options.all_runs and started is not None:
        output.begins = run_began(str(started.get("run")), started.t)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    for line in output.lines(follow=options.follow, runs=lambda: _runs(journal, folder)):
        sys.stdout.write(line)
        if options.follow:
            sys.stdout.flush()
    if output.left_out and wanted.tail is None and wanted.since == -math.inf:
        sys.stderr.write("hvd-elastic logs: output of earlier runs is left out; --all-runs shows it\n")
    return 0


def _wanted(options: argparse.Namespace) -> Wanted:
    """Read the options. Raises :class:`UsageError` for a value that cannot be, or that is for a cluster."""
    for name in ("previous", "instance", "container"):
        if getattr(options, name):
            raise UsageError(f"--{name} is for a job on a cluster, and this one was started here; {ON_A_CLUSTER}")
    if options.tail < -1:
        raise UsageError(f"--tail {options.tail}: it must be greater than or equal to -1")
    if options.rank is not None and options.rank < 0:
        raise UsageError(f"--rank {options.rank}: ranks count from 0")
    if options.since == 0:
        raise UsageError("--since 0: it must be greater than 0")
    since = -math.inf if options.since is None else time.time() - options.since
    if options.since_time:
        try:
            since = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", options.since_time)).astimezone().timestamp()
        except ValueError:
            raise UsageError(
                f"--since-time {options.since_time!r} is not a time; write it as 2026-01-31T07:00:00Z"
            ) from None
    return Wanted(options.rank, None if options.tail < 0 else options.tail, since, options.timestamps)


def _job(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """The job's journal, and its folder; None if only the journal is known. Raises :class:`UsageError`."""
    word = one_job(options.named, options.job)
    folder = options.state_dir
    if folder is None and word is not None and (hosts.ROOT / word).is_dir():
        folder = hosts.ROOT / word
    if folder is not None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a job's folder; give the --state-dir that `hvd-elastic run` has")
        return folder / FILE, folder
    try:
        journal = find_journal(word)
    except UsageError as error:
        raise UsageError(f"{error}; {ON_A_CLUSTER}") from None
    return journal, journal.parent if journal.name == FILE else None


def _output_of(folder: Path | None) -> str | None:
    """The folder of the output, from a launcher that runs: its journal may be elsewhere."""
    if folder is None:
        return None
    hosts.check(folder)
    answer = hosts.ask_launcher(folder, {"do": "status", "present": True}) or {}
    present = answer.get("present")
    output = present.get("output") if isinstance(present, dict) else None
    return output if isinstance(output, str) else None


def _runs(journal: Path, folder: Path | None) -> bool:
    """Whether a launcher of the job runs, by its lock, or else by its journal."""
    if folder is not None and (folder / state_folder.LOCK).exists():
        return state_folder.holder(folder) is not None
    return "finished" not in last_records(journal, "finished", "started")


def run_began(run: str, started: float) -> float:
    """When a run began (Unix seconds), by its name; for another name, when its newest launcher ``started``. Pure."""
    match = _RUN.match(run)
    if match is None:
        return started
    with contextlib.suppress(ValueError):
        return calendar.timegm(time.strptime(match[1], "%Y%m%dT%H%M%S")) + int(match[2]) / 1000
    return started


class Output:
    """The files below a folder. ``begins``: output from before that time is left out (Unix seconds)."""

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        self._folder, self._wanted = folder, wanted
        self.begins = -math.inf
        self.left_out = False
        """Whether there was output from before ``begins``."""
        self._read_to: dict[str, int] = {}

    def lines(
        self,
        *,
        follow: bool,
        runs: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[str]:
        """Yield lines with their line ends, each with ``[RANK]<stream>:`` before it, as the terminal has them. With
        ``follow``, until ``runs()`` is false and all is read.
        """
        live = follow and runs()
        parts = self._parts()
        if self._wanted.tail is None:
            for part in parts:
                yield from self._of_part(part, open_end=live)
        else:
            yield from self._last(parts, self._wanted.tail, open_end=live)
        while live:
            live = runs()  # before the look: what is written until the end is read
            for file in self._files():
                size = self._size(file)
                at = self._read_to.get(file, 0)
                if size != at:
                    self._read_to[file] = at = at if size > at else 0  # a shorter file was begun anew
                    yield from self._of_part(Part(time.time(), file, at, size), open_end=live)
            if live:
                sleep(LOOK_S)

    def _last(self, parts: Sequence[Part], count: int, *, open_end: bool) -> Iterator[str]:
        """The last lines; parts before them are not read."""
        found: deque[list[str]] = deque()
        left = count
        for part in reversed(parts):
            if not left:
                break
            found.appendleft(list(deque(self._of_part(part, open_end=open_end), maxlen=left)))
            left -= len(found[0])
        for lines in found:
            yield from lines

    def _parts(self) -> list[Part]:
        """The wanted parts of all files, by time."""
        marks = self._marks()
        found = list[Part]()
        for file in self._files():
            size = self._size(file)
            self._read_to[file] = size
            begins = [(mark.t, mark.at) for mark in marks.get(file, ()) if mark.at < size]
            if not begins or begins[0][1] > 0:
                begins.insert(0, (-math.inf if begins else math.nan, 0))
            ends = [at for _, at in begins[1:]] + [size]
            for (t, at), end in zip(begins, ends, strict=True):
                unknown = math.isnan(t)  # no part of this file is in the index: all of it is shown
                if not unknown and t < self.begins:
                    self.left_out = self.left_out or end > at
                elif at < end and (unknown or t + EVERY_S >= self._wanted.since):
                    found.append(Part(-math.inf if unknown else t, file, at, end))
        return sorted(found, key=lambda part: part.t)

    def _of_part(self, part: Part, *, open_end: bool) -> Iterator[str]:
        """The lines of a part. ``open_end``: an unfinished line at the end of the file is left for later."""
        folder, _, stream = part.file.rpartition("/")
        before = label(folder.removeprefix("rank."), stream)
        if self._wanted.stamped:
            moment = datetime.fromtimestamp(max(0.0, part.t), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            before = f"{moment if part.t > 0 else '?'} {before}"
        try:
            file = open_file(self._folder, part.file)
        except OSError as error:
            raise Permanent(f"{self._folder / part.file} cannot be read: {error.strerror}") from None
        with file:
            at = file.seek(part.at)
            for line in _lines(file, part.end - part.at):
                if open_end and not line.endswith(b"\n"):
                    break
                at += len(line)
                yield f"{before}{_shown(line)}\n"
            rest = open_end and at < part.end
            self._read_to[part.file] = at if rest else max(part.end, self._read_to.get(part.file, 0))

    def _files(self) -> list[str]:
        """The wanted files, in the order of ranks. Raises :class:`Permanent` without the folder."""
        try:
            with os.scandir(self._folder) as entries:
                ours = (each for each in entries if each.name.startswith("rank."))
                names = [each.name for each in ours if each.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise Permanent(f"{self._folder}, which holds the output, cannot be read: {error.strerror}") from None
        if self._wanted.rank is not None:
            names = [name for name in names if name == f"rank.{self._wanted.rank}"]
        return [f"{name}/{stream}" for name in sorted(names, key=by_rank) for stream in STREAMS]

    def _size(self, file: str) -> int:
        try:
            return (self._folder / file).stat(follow_symlinks=False).st_size
        except OSError:
            return 0

    def _marks(self) -> dict[str, list[Mark]]:
        """The index; empty if there is none that can be read."""
        found: dict[str, list[Mark]] = {}
        with contextlib.suppress(OSError), open_file(self._folder, INDEX) as file:
            for line in file:
                if (mark := parse_mark(line.decode("utf-8", errors="replace"))) is not None:
                    marks = found.setdefault(mark.file, [])
                    if marks and mark.at < marks[-1].at:
                        marks.clear()  # the files were removed, and begun anew
                    marks.append(mark)
        return found


def _lines(file: BinaryIO, count: int) -> Iterator[bytes]:
    """The lines in the next ``count`` bytes."""
    while count > 0 and (line := file.readline(count)):
        count -= len(line)
        yield line


def _shown(line: bytes) -> str:
    """A line as a terminal would show it in the end: of the states of a progress bar, the last one. Pure."""
    return line.rstrip(b"\r\n").rpartition(b"\r")[2].decode("utf-8", errors="replace")
