"""Metrics of a job at one moment, by its state. Pure.

Names and units follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/). Labels are hosts of the
job, and words of closed lists. Steps, ranks and reasons are not labels, nor are ``job`` and ``instance``, which
Prometheus sets itself. With more than :data:`MAX_HOSTS` hosts, no host has samples of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import USAGE
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.reporting import waits
from hvd_elastic_ext.launcher.scaling.scaling import signals_of

PREFIX: Final = "hvd_elastic_"


RESERVED_NAMES: Final = frozenset({
    "world_size", "generation", "generation_entered", "waiting", "asleep", "step", "step_seconds", "commit_seconds",
    "progress_age_seconds", "hosts_listed", "slots_listed", "hosts_connected", "hosts_blocked", "hosts_with_notice",
    "processes", "heartbeat_age_seconds", "host_cpu_ratio", "host_gpu_ratio", "host_memory_ratio", "processes_wanted",
    "hosts_desired", "job_info", "checkpoint_timestamp_seconds", "checkpoint_step",
    "goodput_ratio", "useful_slot_seconds", "possible_slot_seconds", "host_gpu_memory_ratio",
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
    yield _one("waiting", "1 while the job waits for something before it can train", waits.waits_for(job) is not None)
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
    yield _one("hosts_with_notice", "Hosts that will be gone soon", len(job.leaves_by))
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
