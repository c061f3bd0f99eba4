"""Metrics of a job at one moment, by its state.

Names and units follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/). Labels are hosts of the
job, and words of closed lists. Steps, ranks and reasons are not labels, nor are ``job`` and ``instance``, which
Prometheus sets itself. With more than :data:`MAX_HOSTS` hosts, no host has samples of its own.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.events import EVENTS, RESIZES
from hvd_elastic_ext.core.goodput import Accounting
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver.roster import USAGE
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership import spares
from hvd_elastic_ext.launcher.membership.world_change import Stage
from hvd_elastic_ext.launcher.reporting import all_waits
from hvd_elastic_ext.launcher.scaling.scaling import signals_of

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState


PREFIX: Final = "hvd_elastic_"


RESERVED_NAMES: Final = frozenset({
    "world_size", "generation", "generation_entered", "waiting", "asleep", "step", "step_seconds", "commit_seconds",
    "progress_age_seconds", "hosts_listed", "slots_listed", "hosts_connected", "hosts_blocked", "hosts_with_notice",
    "processes", "heartbeat_age_seconds", "host_cpu_ratio", "host_gpu_ratio", "host_memory_ratio", "processes_wanted",
    "hosts_desired", "job_info", "checkpoint_timestamp_seconds", "checkpoint_step",
    "spares", "goodput_ratio", "useful_slot_seconds", "possible_slot_seconds", "host_gpu_memory_ratio",
    "oldest_heartbeat_age_seconds",
})  # fmt: skip
"""Names that no observed signal can have."""


MAX_HOSTS: Final = 1000
"""Most connected hosts with samples of their own, five each. Agents serve their own metrics (``--agent-metrics``)."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(?<!_total)")
"""Names of counters end in ``_total``."""
Samples = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class JobMetric:
    """One metric. ``samples``: its value by the values of its ``labels``, () without labels.

    ``counter``: it only grows, from 0 at the launcher's start; its name gets ``_total``.
    """

    name: str
    help: str
    samples: Samples = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    counter: bool = False


def of_job(job: JobState, now: float, listed: HostSet) -> Iterator[JobMetric]:
    """All metrics that follow from the state. ``now`` is in monotonic seconds; ``listed``: the newest host list."""
    yield from _world(job, now)
    yield from _hosts(job, now, listed)
    yield from _sizes(job)
    yield from _observed(job)


def _world(job: JobState, now: float) -> Iterator[JobMetric]:
    members = job.roster.present(job.world.members)
    steps = [worker.step_s for worker in members if worker.step_s is not None]
    generation = max((worker.generation for worker in members), default=0)
    yield _one("world_size", "Ranks of the present world; 0 while there is none", len(members) if job.standing else 0)
    yield _one("generation", "Number of the newest world", job.generation)
    yield _one("generation_entered", "Number of the newest world that a process has entered", generation)
    yield _one(
        "waiting", "1 while the job waits for something before it can train", all_waits.waits_for(job) is not None
    )
    yield _one("step", "Newest completed step that a rank reports", max((worker.step for worker in members), default=0))
    if steps:
        yield _one("step_seconds", "Seconds of a step, of the slowest rank", max(steps))
    if progress := [now - worker.moved_at for worker in members if worker.moved_at]:
        yield _one(
            "progress_age_seconds", "Seconds since the last progress, of the rank with the oldest", max(progress)
        )
    costs = [worker.commit_s for worker in members if worker.commit_s is not None]
    if costs:
        yield _one("commit_seconds", "Seconds that the last commit took, of the slowest rank", max(costs))


def _hosts(job: JobState, now: float, listed: HostSet) -> Iterator[JobMetric]:
    agents = {name: agent for name, agent in job.roster.agents.items() if agent.joined}
    blocked = sum(job.faults.ledger.blocked(now, host).blocked for host in listed)
    yield _one("hosts_listed", "Hosts of the newest list", len(listed))
    yield _one("slots_listed", "Slots of the newest list", listed.slots)
    yield _one("hosts_connected", "Hosts whose agent is connected", len(agents))
    yield _one("hosts_blocked", "Listed hosts that are blocked, after faults or by hand", blocked)
    yield _one("hosts_with_notice", "Hosts that will be gone soon", len(notices.leaves_by(job)))
    processes = dict.fromkeys(Stage, 0)
    for worker in job.roster.workers.values():
        processes[worker.stage] += 1
    yield JobMetric(
        "processes", "Training processes", {(str(s.value),): float(n) for s, n in processes.items()}, ("stage",)
    )
    if agents:
        oldest = now - min(agent.last_message_at for agent in agents.values())
        yield _one(
            "oldest_heartbeat_age_seconds", "Seconds since the last message, of the host with the oldest", oldest
        )
    if len(agents) > MAX_HOSTS:
        agents = {}
    ages: Samples = {(name,): now - agent.last_message_at for name, agent in agents.items()}
    yield JobMetric("heartbeat_age_seconds", "Seconds since the last message of a host's agent", ages, ("host",))
    busy = ("processors that are busy", "time in which GPUs compute", "GPU memory in use", "memory in use")
    for each, words in zip(USAGE, busy, strict=True):
        used: Samples = {(name,): agent.usage[each] for name, agent in agents.items() if each in agent.usage}
        yield JobMetric(f"host_{each}_ratio", f"Share of the {words}", used, ("host",))


def _sizes(job: JobState) -> Iterator[JobMetric]:
    yield _one("processes_wanted", "Processes that the job wants now", len(job.wanted))
    ready, starting = spares.counted(job)
    words = "Processes that are ready to take the place of a lost one (--spares), and those that are not ready yet"
    yield JobMetric("spares", words, {("ready",): float(ready), ("starting",): float(starting)}, ("stage",))
    wanted = job.scaling.wanted if job.scaling.wanted is not None else job.scaling.recommended
    if wanted is not None:
        yield _one("hosts_desired", "Hosts that the job asks for (--autoscale)", wanted)


def _observed(job: JobState) -> Iterator[JobMetric]:
    """Under their own names, as an adapter for a HorizontalPodAutoscaler reads them."""
    for name, value in signals_of(job).items():
        if _NAME.fullmatch(name) and name not in RESERVED_NAMES:
            yield _one(name, "Signal from the script or from --observe", value)


def _one(name: str, words: str, value: float) -> JobMetric:
    return JobMetric(name, words, {(): float(value)})


# --- what has happened since the launcher began


_CAUSES: Final = tuple(map(str, Cause))


def _causes(event: str) -> tuple[str, ...]:
    """The causes that an event may have."""
    return tuple(RESIZES) if event == "resized" else _CAUSES


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
        self._counts = {
            count.name: Counter({(cause,): 0 for cause in _causes(kind.name)} if count.by_cause else {(): 0})
            for kind in EVENTS.values()
            for count in kind.counts
        }
        self._sealed: tuple[float, float] | None = None
        self._names: tuple[str, ...] = ()

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of the journal."""
        with self._lock:
            for count in EVENTS[event].counts:
                key = (str(fields.get("cause")),) if count.by_cause else ()
                amount = 1 if count.field is None else fields.get(count.field)
                self._counts[count.name][key] += amount or 0
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
        for count in (count for kind in EVENTS.values() for count in kind.counts):
            labels = ("cause",) if count.by_cause else ()
            yield JobMetric(count.name, count.help, dict(self._counts[count.name]), labels, counter=True)
        yield JobMetric("commits", "Commits made in memory", {(): self._commits}, counter=True)
        again: Samples = {(cause,): self._redone_s[cause] for cause in RESIZES}
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
