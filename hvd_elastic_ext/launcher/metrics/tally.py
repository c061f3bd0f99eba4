"""What has happened since the launcher began, counted from the events of the journal."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.launcher.metrics.figures import Figure, Samples


class _Counted(NamedTuple):
    """A counter: of ``event``, or of the number in its ``field``, by the words in its ``label``."""

    name: str
    help: str
    event: str
    label: str | None = None
    field: str | None = None


_COUNTERS: Final = (
    _Counted("worlds", "Worlds that have formed, by cause", "resized", "cause"),
    _Counted("downtime_seconds", "Without a step for a new world, by its cause", "resized", "cause", "downtime_s"),
    _Counted(
        "lost_steps", "Steps that were lost with a world, by the cause of the next", "resized", "cause", "steps_lost"
    ),
    _Counted("process_exits", "Training processes that have ended, by cause", "exited", "cause"),
    _Counted("strikes", "Faults that slots, hosts, pods and nodes were charged with, by cause", "struck", "cause"),
    _Counted("hosts_fenced", "Silent hosts and processes that were cut off", "fenced"),
    _Counted("stalls", "Times that processes made no progress", "stalled"),
    _Counted("notices", "Hosts that were said to go soon", "notice"),
    _Counted("checkpoints", "Checkpoints that have become whole", "sealed"),
    _Counted("checkpoint_seconds", "From commits to whole checkpoints of them", "sealed", field="seconds"),
    _Counted("checkpoint_bytes", "Bytes of whole checkpoints", "sealed", field="bytes"),
    _Counted("checkpoints_given_up", "Checkpoints that were given up", "not_sealed"),
    _Counted("lists_refused", "Host lists that were not accepted", "refused"),
    _Counted("requests_for_hosts", "Changes of the number of hosts that were asked for", "scaled"),
    _Counted("failed_requests_for_hosts", "Requests for hosts that failed", "not_scaled"),
    _Counted("sleeps", "Times that the job went to sleep", "slept"),
    _Counted("asleep_seconds", "Asleep, of sleeps that are over", "woke", field="slept_s"),
    _Counted("restarts_from_scratch", "Times that nothing of the training was left", "training_restarted"),
)


class Tally:
    """Counts events, from any thread. ``wall`` gives the time in Unix seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._counts = {each.name: Counter[tuple[str, ...]]() for each in _COUNTERS}
        self._sealed: tuple[float, float] | None = None
        self._names: tuple[str, ...] = ()

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of the journal."""
        with self._lock:
            for each in _COUNTERS:
                if each.event == event:
                    key = () if each.label is None else (str(fields.get(each.label)),)
                    amount = 1 if each.field is None else fields.get(each.field)
                    self._counts[each.name][key] += amount or 0
            if event == "sealed":
                self._sealed = self._wall(), float(fields["step"])
            elif event == "started":
                self._names = tuple(str(fields[name]) for name in ("job", "run", "version"))

    def figures(self) -> list[Figure]:
        """What was counted."""
        with self._lock:
            return list(self._figures())

    def _figures(self) -> Iterator[Figure]:
        if self._names:
            words = "The job, its run, and the version of the launcher"
            yield Figure("job_info", words, {self._names: 1}, ("job", "run", "version"))
        for each in _COUNTERS:
            labels = () if each.label is None else (each.label,)
            counts: Samples = dict(self._counts[each.name]) if labels else {(): float(self._counts[each.name][()])}
            yield Figure(each.name, each.help, counts, labels, counter=True)
        if self._sealed is not None:
            when, step = self._sealed
            yield Figure("checkpoint_timestamp_seconds", "When the newest checkpoint became whole", {(): when})
            yield Figure("checkpoint_step", "Its step", {(): step})
