"""``hvd-elastic events --replay FILE``: runs the driver over recorded events, and compares its decisions with the
recorded ones.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.user_files import read_text
from hvd_elastic_ext.launcher.driver import plan, recording
from hvd_elastic_ext.launcher.driver.events import Event, Look
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.folder.handover import state_at_start

DIFFERENT: Final = 1
"""Exit code if a decision differs."""
REMEDY: Final = "give a file that `hvd-elastic run --record-events FILE` of this version wrote"
TIME_TOLERANCE_S: Final = 1e-6
"""Times that differ by less are the same: a recorded time is a rounded one."""


class Recorded:
    """The recorded results of an event. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for another line."""

    def __init__(self, line: Mapping[str, Any]) -> None:
        match line:
            case {
                "number": int(number),
                "event": dict(event),
                "done": [*done],
                "again_at": None | int() | float() as again_at,
                "error": None | str() as error,
            }:
                self.number, self.event, self.done = number, event, done
                self.again_at: float | None = again_at
                self.error: str | None = error
            case _:
                raise TypeError


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic events --replay``."""
    options = Parser(prog="hvd-elastic events", description="Run the driver over recorded events.", allow_abbrev=False)
    options.add_argument("--replay", metavar="FILE", type=Path, required=True, help="what --record-events wrote")
    options.add_argument("--quiet", action="store_true", help="only say whether it decides the same")
    options.add_argument("--state", action="store_true", help="print the state of the job after the last event")
    return options


def main(argv: Sequence[str]) -> int:
    """Replay a file; 0 if every decision is the same. Raises :class:`UsageError` if it is not a recording."""
    options = parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stdout, level=logging.CRITICAL if options.quiet else logging.INFO, format="  %(message)s"
    )
    job: JobState | None = None
    count = last = 0
    for number, line in _lines(options.replay):
        try:
            if "recording" in line:
                job, last = _state_at_start(line), 0
                continue
            before, now = Recorded(line), _time(line["mono"])
            event = recording.from_json(before.event, now)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            why = f" ({error})" if isinstance(error, ValueError) else ""
            raise UsageError(f"{options.replay}:{number}: is not a line of a recording{why}; {REMEDY}") from None
        if job is None:
            raise UsageError(
                f"{options.replay}:{number}: an event before the start of its launcher; give a complete file"
            )
        if before.number != last + 1:
            raise UsageError(_missing(options.replay, number, last + 1, before.number - 1, count))
        count, last = count + 1, before.number
        problem = _replay_event(job, now, event, before, quiet=options.quiet)
        if problem is not None:
            sys.stdout.write(f"{options.replay}:{number}: {problem}\n")
            return DIFFERENT
    if job is None:
        raise UsageError(f"{options.replay}: is not a recording, or an empty one; {REMEDY}")
    if options.state:
        sys.stdout.write(f"{job}\n")
    sys.stdout.write(f"{count} events: the same decisions\n")
    return 0


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    *lines, torn = read_text(path, expected=REMEDY).split("\n")
    if torn and lines:
        sys.stderr.write(f"hvd-elastic events: {path}: the last line is cut off; passed over\n")
    for number, line in enumerate(lines, 1):
        try:
            found = recording.parsed(line)
        except (ArithmeticError, RecursionError, TypeError, ValueError):
            found = None
        if isinstance(found, dict):
            yield number, found
        elif number == 1 or found is not None:
            raise UsageError(f"{path}:{number}: is not a line of a recording; {REMEDY}")
        else:
            sys.stderr.write(f"hvd-elastic events: {path}:{number}: the line is cut off; passed over\n")


def _time(mono: object) -> float:
    found = finite_number(mono)
    if found is None:
        raise TypeError
    return found


def _state_at_start(line: Mapping[str, Any]) -> JobState:
    if line["recording"] != recording.VERSION:
        raise ValueError(f"version {line['recording']}, and this program reads version {recording.VERSION}")
    return state_at_start(line)


def _missing(path: Path, line: int, first: int, last: int, count: int) -> str:
    what = f"event {first} is" if first == last else f"events {first} to {last} are"
    return (
        f"{path}:{line}: {what} missing before this line, as after a full disk; the {count} events before lead to the "
        "same decisions, and what came later cannot be replayed"
    )


def _replay_event(job: JobState, now: float, event: Event, before: Recorded, *, quiet: bool) -> str | None:
    """Replay one event. Return the difference; None if there is none."""
    job.now = now
    if not quiet:
        sys.stdout.write(f"{job.now:.3f} {recording.text_of(before.event)[:200]}\n")
    where = f"{type(event).__name__} at {job.now:.3f}"
    again_at = error = None
    try:
        reduce(job, event)
        again_at = plan.look(job) if isinstance(event, Look) else None
    except Exception as defect:  # noqa: BLE001 what is replayed may be a defect of the driver
        error = recording.error_text(defect)
    if error != before.error:
        was, now_is = before.error or "no error", error or "no error"
        return f"{where} ended with {was}, and now with {now_is}"
    if error is not None:
        sys.stdout.write(f"{where} ends with {error}, as it did\n")
        return None
    done = recording.described(job.take_actions())
    if not quiet:
        sys.stdout.write("".join(f"  -> {each}\n" for each in done))
    for was, now_done in zip(before.done, done, strict=False):
        if was != now_done:
            return f"{where} led to {was!r}, and now leads to {now_done!r}"
    if len(before.done) != len(done):
        less = len(before.done) > len(done)
        verb, what = ("led", before.done[len(done) :]) if less else ("now leads", done[len(before.done) :])
        return f"{where} {verb} also to {what[0]!r}"
    if not _close(before.again_at, again_at):
        return f"{where} set the next look to {before.again_at}, and now sets it to {again_at}"
    return None


def _close(before: float | None, now: float | None) -> bool:
    return before == now or (before is not None and now is not None and abs(before - now) < TIME_TOLERANCE_S)
