"""``hvd-elastic events --replay FILE``: the driver decides once more by the events that a launcher has recorded."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.driver import plan, recording
from hvd_elastic_ext.launcher.driver.events import Look
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.job.saved_state import again
from hvd_elastic_ext.launcher.state.job import JobState

DIFFERENT: Final = 1
"""Exit code if the driver decides otherwise than it did."""
CLOSE_S: Final = 1e-6
"""Times that differ by less are the same: a recorded time is a rounded one."""


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic events --replay``."""
    options = argparse.ArgumentParser(prog="hvd-elastic events", description="Run the driver over recorded events.")
    options.add_argument("--replay", metavar="FILE", type=Path, required=True, help="what --record-events wrote")
    options.add_argument("--quiet", action="store_true", help="only say whether it decides the same")
    options.add_argument("--state", action="store_true", help="print the state of the job after the last event")
    return options


def main(argv: Sequence[str]) -> int:
    """Replay a file; 0 if every decision is the same. Raises :class:`UsageError` for a file that is none."""
    options = parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stdout, level=logging.CRITICAL if options.quiet else logging.INFO, format="  %(message)s"
    )
    job: JobState | None = None
    count = 0
    for number, line in _lines(options.replay):
        try:
            if "recording" in line:
                job = _begun(line)
                continue
            count += 1
            problem = _again(job, line, quiet=options.quiet)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{options.replay}:{number}: no recorded event ({type(error).__name__}: {error}); give a file that "
                "`hvd-elastic run --record-events` of the same version wrote"
            ) from None
        if problem is not None:
            sys.stdout.write(f"{options.replay}:{number}: {problem}\n")
            return DIFFERENT
    if job is None:
        raise UsageError(f"{options.replay}: is empty; give a file that `hvd-elastic run --record-events` wrote")
    if options.state:
        sys.stdout.write(f"{job}\n")
    sys.stdout.write(f"{count} events: the same decisions\n")
    return 0


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}; give a file that --record-events wrote") from None
    *lines, torn = text.split("\n")
    if torn:
        sys.stderr.write(f"hvd-elastic events: {path}: the last line is cut off; passed over\n")
    for number, line in enumerate(lines, 1):
        try:
            yield number, json.loads(line)
        except ValueError:
            raise UsageError(f"{path}:{number}: is no JSON; give a file that --record-events wrote") from None


def _begun(line: Mapping[str, Any]) -> JobState:
    if line["recording"] != recording.VERSION:
        raise ValueError(f"version {line['recording']}, and this program reads version {recording.VERSION}")
    return again(line)


def _again(job: JobState | None, line: Mapping[str, Any], *, quiet: bool) -> str | None:
    """Let one event happen again; what is different then."""
    if job is None:
        raise ValueError("an event before the launcher has begun")
    job.now = line["mono"]
    event = recording.from_json(line["event"], job.now)
    if not quiet:
        sys.stdout.write(f"{job.now:.3f} {json.dumps(line['event'], separators=(',', ':'))[:200]}\n")
    reduce(job, event)
    again_at = plan.look(job) if isinstance(event, Look) else None
    done = recording.described(job.take_actions())
    if not quiet:
        sys.stdout.write("".join(f"  -> {each}\n" for each in done))
    before = list(line["done"])
    for was, now in zip(before, done, strict=False):
        if was != now:
            return f"{type(event).__name__} at {job.now:.3f} was answered with {was!r}, and now with {now!r}"
    if len(before) != len(done):
        more, what = ("was", before[len(done) :]) if len(before) > len(done) else ("is now", done[len(before) :])
        return f"{type(event).__name__} at {job.now:.3f} {more} answered with {what[0]!r}, too"
    if not _close(line["again_at"], again_at):
        return f"{type(event).__name__} at {job.now:.3f} has looked again at {line['again_at']}, and now at {again_at}"
    return None


def _close(before: float | None, now: float | None) -> bool:
    return before == now or (before is not None and now is not None and abs(before - now) < CLOSE_S)
