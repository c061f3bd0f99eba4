"""The journal of a job: one JSON object for each line, append-only.

Every line has ``t`` (Unix seconds, for users), ``mono`` (seconds, for
durations within one machine), ``generation`` and ``event``; other fields depend
on the event. Readers ignore events and keys that they do not know, and a last
line that a crash cut off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.json_text import to_text

FOLDERS: Final = ".hvd-elastic"
"""The folder that contains a folder for each job, in the directory where jobs are started."""
FILE: Final = "journal.jsonl"
"""Name of the journal in a job's folder, if no other path is given."""

EVENTS: Final[Mapping[str, str]] = {
    "started": "the launcher began; run (another name than before: a new run begins), job, command, version, "
    "checkpoints (where they go; null: none are made), autoscale (the policy, or null), "
    "output (the folder of processes' output; null: it is not kept)",
    "published": "a new host list was accepted; number, hosts, departing, added, removed, grown, shrunk",
    "refused": "a host list was read and not accepted; reason, kept: whether earlier hosts stay in use",
    "spawned": "a training process was started; host, slot, pid, where it is planned: rank, local_rank, and warm if "
    "its imports were done before (--preload)",
    "standby": "a newcomer's processes were started without interrupting anyone; host, slot, "
    "trains (false: the world has lost a member, and nothing trains meanwhile)",
    "parked": "a newcomer is ready to join; host, slot",
    "resized": "a new world was formed; cause, reason, added, removed, failed (by host), hosts (slots by host), size, "
    "downtime_s, steps_lost (null: no step is known of), lost_because (it continues behind a reported commit: its "
    "holders, and why they could not send it), without (at the start: what --min-np does not wait for, and why), "
    "slots_before (of hosts that stay in it with more or fewer slots), slots_added, slots_removed, slots_failed (by "
    "host, the numbers of its slots; of hosts of which others stay), call (the training call, from the second one on)",
    "exited": "a training process ended; host, slot, rank (if it had one), code, cause, reason",
    "struck": "a slot, host, pod or node is blocked for a time after a fault; subject, cause, reason, host, "
    "cooldown_s, until, "
    "host_blocked (why all slots of the host are blocked, or null), host_blocked_s, "
    "waived (why the slot or host is used again at once, if it is), again (the strikes so far, if the reason is that "
    "of the last one)",
    "fenced": "a silent host or process was cut off; host, slot (of a process), reason",
    "isolated": "no host of the world sends messages: the launcher's own network is suspected; hosts, reason",
    "stalled": "processes send heartbeats and make no progress; ranks, hosts, since_s, waiting, finished (ranks that "
    "others wait for), reason",
    "trains_alone": "each rank trains alone, without averages over ranks; size, rank (that reports it), host, reason",
    "straggler": "a process is slower than the others for long; host, slot, rank, step_s, median_s, drained, reason",
    "blocked": "a host is blocked by hand; host, for_s (null: for good), reason",
    "cleared": "blocks and strikes of a host were removed, by hand; or its block alone, as no other host may work "
    "(waived); host, reason, waived",
    "notice": "a host is about to go; host, reason, deadline",
    "notice_over": "a notice was taken back; host, reason",
    "advised": "a cloud announced that a host may have to go, or will go later; host, reason (null: no longer)",
    "notices_unavailable": "a host cannot ask its cloud for notices; host, source, reason (null: it can again)",
    "stepped": "an optimizer step was done (sampled); step, rank, size, call, host, values",
    "committed": "a commit was made (sampled); number, step, rank, size, call, host, values",
    "synced": "a world agreed on its state; step, rank, size, call, host, values, root, sent_bytes, reason",
    "rolled_back": "a process returned to its last commit; step, steps_lost, rank, call, host",
    "inherited": "a process continued from the commit of the one before it in its slot; step, number, rank, call, host",
    "call_ended": "a training call is over, and its result was kept for processes that come later, or was not; call, "
    "step, bytes, kept, reason (why it was not)",
    "call_skipped": "a process that came later passed over a training call that was over; call, step, rank, host",
    "sent": "a commit went from one agent to another; source, host, slot, step, bytes, seconds, reason",
    "not_sent": "a commit could not be sent to a host, or no checkpoint loaded; host, reason",
    "deadline_missed": "hosts will be gone before the ranks can agree to let them go; steps_lost, call, reason",
    "memory": "commits will not fit into the memory that is granted; needed (bytes), call, reason",
    "sealed": "a checkpoint became whole; path, step, call, bytes, seconds (from the commit on), since_asked_s",
    "not_sealed": "a checkpoint was given up; reason, again_s, call (if a process says so)",
    "interval": "checkpoints (seconds) or commits (calls: one in so many of commit()) come this often now; reason",
    "checkpoint_skipped": "a checkpoint on storage is damaged: an older one is tried; host, reason",
    "not_resumed": "a host could not load a checkpoint; host, reason",
    "slept": "the job went to sleep: all its processes have ended; path, step, reason",
    "not_slept": "the job does not go to sleep yet, for something would be lost; reason",
    "released": "a sleeping job released its workers; replicas (asked for now), before, reason",
    "workers_requested": "a job that sleeps asked the cluster for its workers; replicas, reason",
    "workers_not_requested": "the cluster did not answer a request about workers; reason",
    "woke": "there are hosts again for a job that slept; slept_s, reason",
    "resumed": "the job began, or went on, with a checkpoint; path, step, call, host, slot, seconds, reason",
    "training_restarted": "no commit or checkpoint is left, so training starts anew; number, steps_lost, reason",
    "not_resized": "the world stays as it is, for the script has no elastic loop; cause, reason",
    "scaled": "another number of hosts is asked for; hosts, before, leaving, reason, trial, observed",
    "scale_recommended": "another number of hosts is recommended; hosts, reason, trial, observed",
    "not_scaled": "a request for hosts failed; hosts, reason",
    "job_restarted": "a job that failed is started again; number, pause_s, reason",
    "finished": "the job ended; code, reason",
}
"""Events and the fields of their lines. To write another name is an error of this package."""


_OWN = frozenset({"t", "mono", "dropped"})


class Sink(Protocol):
    """The destination of lines: any object that is opened to append text."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class Journal:
    """Writes events, with one ``write`` call for each line, so that several processes may append to one file.

    A sink that fails (a full disk) never stops the job. The line is dropped and
    counted in :attr:`dropped`, and the next line that is written contains the
    count as ``dropped``. ``announce`` is called with each event, its generation and fields, even if it is not written.
    """

    def __init__(self, sink: Sink, clock: Clock, announce: Callable[[str, int, Mapping[str, Any]], None] | None = None):
        self._sink = sink
        self._announce = announce
        self._clock = clock
        self.dropped = 0
        """Number of lines lost since the last written one."""

    def record(self, event: str, /, *, generation: int, at_mono: float | None = None, **fields: Any) -> None:
        """Append one event. Numbers that JSON does not know (NaN, infinity) are written as null.

        ``at_mono``: the time of the event (mono), if it is not the present time.

        Raises ``ValueError`` for an unknown event name and for a field that every line has of its own.
        """
        check(event, fields)
        now = self._clock.mono()
        ago = 0.0 if at_mono is None else now - at_mono
        line: dict[str, Any] = {
            "t": round(self._clock.wall() - ago, 6),
            "mono": round(now - ago, 6),
            "generation": generation,
            "event": event,
            **fields,
        }
        if self.dropped:
            line["dropped"] = self.dropped
        # A failed write may have left a part of its line: a new line keeps that part out of this line.
        text = ("\n" if self.dropped else "") + to_text(line, default=str) + "\n"
        try:
            self._sink.write(text)
            self._sink.flush()
        except OSError:
            self.dropped += 1
        else:
            self.dropped = 0
        if self._announce is not None:
            self._announce(event, generation, fields)


def with_dropped(line: str, count: int) -> str:
    """Add to a line of a journal how many lines are missing before it. Another text is returned as it is."""
    head, brace, rest = line.rpartition("}")
    if not brace or not head.startswith("{") or rest.strip():
        return line
    return f'{head},"dropped":{count}}}{rest}'


def check(event: str, fields: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for an unknown event name and for a field that every line has of its own."""
    if event not in EVENTS:
        raise ValueError(f"unknown journal event {event!r}; add it to EVENTS")
    taken = [name for name in fields if name in _OWN]
    if taken:
        raise ValueError(f"journal field {taken[0]!r} is every line's own; use another name")


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a journal, as it was read."""

    t: float
    mono: float
    generation: int
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field; ``default`` if the line does not have it."""
        return self.fields.get(key, default)


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the records of a journal in order, and skip other lines.

    A journal is evidence after a crash, so no line is an error: incomplete lines
    and lines of other programs are skipped.
    """
    for line in lines:
        record = parse_line(line)
        if record is not None:
            yield record


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)
"""Reads NaN, infinity and 1e999 as null: readers write JSON, too, which has none of them."""


def parse_line(line: str) -> Record | None:
    """Read one line. Return None if it is incomplete or not a line of a journal."""
    try:
        entry = _DECODER.decode(line)
        return Record(
            t=float(entry.pop("t")),
            mono=float(entry.pop("mono")),
            generation=int(entry.pop("generation")),
            event=str(entry.pop("event")),
            fields=entry,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
