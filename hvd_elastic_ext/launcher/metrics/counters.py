"""Counts what has happened since the launcher began, from the events of the journal."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.goodput import Accounting
from hvd_elastic_ext.launcher.metrics.gauges import JobMetric, Samples
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.membership.next_world import CAUSES


class _Counted(NamedTuple):
    """A counter: of ``event``, or of the number in its ``field``, split by its ``cause`` into ``causes``."""

    name: str
    help: str
    event: str
    causes: tuple[str, ...] = ()
    field: str | None = None


_CAUSES: Final = tuple(map(str, Cause))


_COUNTERS: Final = (
    _Counted("worlds", "Worlds that have formed, by cause", "resized", CAUSES),
    _Counted(
        "downtime_seconds", "Seconds without a step for a new world, by its cause", "resized", CAUSES, "downtime_s"
    ),
    _Counted(
        "lost_steps", "Steps that were lost with a world, by the cause of the next", "resized", CAUSES, "steps_lost"
    ),
    _Counted("process_exits", "Training processes that have ended, by cause", "exited", _CAUSES),
    _Counted("strikes", "Strikes against slots, hosts, pods and nodes, by cause", "struck", _CAUSES),
    _Counted("hosts_fenced", "Silent hosts and processes that were cut off", "fenced"),
    _Counted("stalls", "Times that processes made no progress", "stalled"),
    _Counted("notices", "Hosts with notice that they will go soon", "notice"),
    _Counted("checkpoints", "Completed checkpoints", "sealed"),
    _Counted("checkpoint_seconds", "Seconds from a commit to its completed checkpoint", "sealed", field="seconds"),
    _Counted("checkpoint_bytes", "Bytes of completed checkpoints", "sealed", field="bytes"),
    _Counted("checkpoints_given_up", "Checkpoints that were given up", "not_sealed"),
    _Counted("lists_refused", "Host lists that were not accepted", "refused"),
    _Counted("requests_for_hosts", "Changes of the number of hosts that were asked for", "scaled"),
    _Counted("failed_requests_for_hosts", "Requests for hosts that failed", "not_scaled"),
    _Counted("sleeps", "Times that the job went to sleep", "slept"),
    _Counted("asleep_seconds", "Seconds asleep, of sleeps that are over", "woke", field="slept_s"),
    _Counted("restarts_from_scratch", "Restarts of training without any commit or checkpoint", "training_restarted"),
)


class Counters:
    """Counts events, from any thread. ``wall`` gives the time in Unix seconds, ``mono`` the monotonic one."""

    def __init__(self, wall: Callable[[], float], mono: Callable[[], float]) -> None:
        self._wall, self._mono = wall, mono
        self._lock = threading.Lock()
        self._goodput = Accounting()
        self._redone_s = defaultdict[str, float](float)
        """Seconds of steps that are done again, by the cause of the world that does them."""
        self._commits = 0
        self._commit: int | None = None
        """The number of the newest commit."""
        # From 0, for every cause: Prometheus sees no increase in a series that begins with more.
        self._counts = {each.name: Counter(dict.fromkeys(_keys(each), 0)) for each in _COUNTERS}
        self._sealed: tuple[float, float] | None = None
        self._names: tuple[str, ...] = ()

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of the journal."""
        with self._lock:
            for each in _COUNTERS:
                if each.event == event:
                    key = (str(fields.get("cause")),) if each.causes else ()
                    amount = 1 if each.field is None else fields.get(each.field)
                    self._counts[each.name][key] += amount or 0
            self._goodput.note(event, fields, self._mono())
            if event == "resized":
                lost = fields.get("steps_lost")
                self._redone_s[str(fields.get("cause"))] += (lost or 0) * self._goodput.step_s()
            if event == "committed":
                self._committed(fields.get("number"))
            elif event == "sealed":
                self._sealed = self._wall(), float(fields["step"])
            elif event == "started":
                self._names = tuple(str(fields[name]) for name in ("job", "run", "version"))

    def _committed(self, number: int | None) -> None:
        """A commit was sealed. Not every commit is reported, but all are numbered. A world may continue from an older
        commit.
        """
        if number is not None:
            self._commits += max(1, number - self._commit) if self._commit is not None else 1
            self._commit = number

    def metrics(self) -> list[JobMetric]:
        """The counters."""
        with self._lock:
            return list(self._metrics())

    def _metrics(self) -> Iterator[JobMetric]:
        if self._names:
            words = "The job, its run, and the version of the launcher"
            yield JobMetric("job_info", words, {self._names: 1}, ("name", "run", "version"))
        for each in _COUNTERS:
            labels = ("cause",) if each.causes else ()
            yield JobMetric(each.name, each.help, dict(self._counts[each.name]), labels, counter=True)
        yield JobMetric("commits", "Commits made in memory", {(): self._commits}, counter=True)
        again: Samples = {(cause,): self._redone_s[cause] for cause in CAUSES}
        words = "Time of the steps that were lost with a world, by the cause of the next"
        yield JobMetric("redone_seconds", words, again, ("cause",), counter=True)
        good = self._goodput.goodput(self._mono())
        if good.ratio is not None:
            words = (
                "Useful steps over what the listed hosts could have done since this launcher listed the first of them"
            )
            yield JobMetric("goodput_ratio", words, {(): good.ratio})
            words = "Slot-seconds of the steps that are not done again"
            yield JobMetric("useful_slot_seconds", words, {(): good.useful_s})
            words = "Slot-seconds that the listed hosts had since this launcher listed the first of them"
            yield JobMetric("possible_slot_seconds", words, {(): good.possible_s})
        if self._sealed is not None:
            when, step = self._sealed
            yield JobMetric("checkpoint_timestamp_seconds", "When the newest checkpoint was completed", {(): when})
            yield JobMetric("checkpoint_step", "Step of the newest checkpoint", {(): step})


def _keys(counted: _Counted) -> list[tuple[str, ...]]:
    """The label values of all samples that a counter may have."""
    return [(cause,) for cause in counted.causes] if counted.causes else [()]
