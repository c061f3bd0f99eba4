"""The list of hosts that is in use, and what a new one changes.

The order of hosts is their seniority: newcomers come last. A list that is refused leaves the hosts as they were. An
*empty* list, while processes run, is refused first: a daemon or a script that has lost its cluster publishes one, and
the job would end for nothing. It is accepted once no process runs any more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from hvd_elastic_ext.core.errors import HOSTS_KEPT
from hvd_elastic_ext.core.hosts import Host, HostSet, is_same
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.health import silence
from hvd_elastic_ext.launcher.health.host_requests import NEEDED
from hvd_elastic_ext.launcher.health.strikes import RestartDelays, unreached

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.events import HostsChanged
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent, Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId
    from hvd_elastic_ext.launcher.membership.world_change import WorldLimits

log = logging.getLogger(__name__)


class NewerLife(NamedTuple):
    """``host``: as it was listed last, with the life of its present container; ``since``: since when (mono)."""

    host: Host
    since: float


@dataclass(slots=True)
class Fleet:
    """The published hosts, and what is known of former ones."""

    hosts: HostSet = field(default_factory=HostSet)
    first_limits: WorldLimits | None = None
    """The first limits of a job that starts on all listed slots."""
    empty_list_refused: bool = False
    """The newest list is empty and was not accepted, because processes ran."""
    list_refused: str | None = None
    """Why the newest list cannot be used; None if it can."""
    unreported_ends: dict[ProcessId, tuple[Worker, int]] = field(default_factory=dict)
    """Ended processes of an earlier launcher, with exit codes: it may not have known of their ends."""
    recovering: set[str] = field(default_factory=set)
    """Hosts on which a member failed, until they are in a world again."""
    cut_off_live: set[ProcessId] = field(default_factory=set)
    """Processes that were in a world when their host was cut off, or that died as they were to leave it, while members
    of the newest one may wait for them."""
    restart_delays: RestartDelays = field(default_factory=RestartDelays)
    pods: dict[str, Host] = field(default_factory=dict)
    """By host name, the newest published pod with its newest life."""
    newer_lives: dict[str, NewerLife] = field(default_factory=dict)
    """Hosts whose listed life differs from that of their agent."""
    lost: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By host, the UID of the pod with the agent that was cut off last, and that agent's identity. An agent of another
    identity may belong to the pod that came after."""
    cut_off: dict[str, str] = field(default_factory=dict)
    """Hosts that were cut off for their silence and have not returned, and why. Their processes may still run."""

    def by_seniority(self, lives: Iterable[ProcessId]) -> list[ProcessId]:
        """Processes in the order of their hosts in the list, and of their slots."""
        senior = {name: number for number, name in enumerate(self.hosts.names)}
        return sorted(lives, key=lambda life: (senior.get(life.seat.host, len(senior)), life))


def needed_unlisted(job: JobState) -> dict[str, float]:
    """Hosts that train on though they are not listed any more, because the world would be below ``--min-np`` without
    them.

    By host, since when it is not listed (mono). If no host is listed, all are kept for another reason.
    """
    listed = job.fleet.hosts
    if listed.has_all(job.roster.agents.keys()):
        return {}
    gone = {name: agent.unlisted_at for name, agent in job.roster.agents.items() if name not in listed}
    if not gone or not listed.names or not job.formed:
        return {}
    on = Counter(life.seat.host for life in job.world.members)
    stays = on.total() - sum(on[name] for name in gone) >= job.options.limits.least
    return {} if stays else {name: since for name, since in gone.items() if on[name]}


# --- a list that names no host, or is refused


def is_refused(hosts: HostSet, departing: Collection[str], *, works: bool) -> bool:
    """Whether a list is not believed: it names no host, not even one that is ``departing``, while the job ``works``.

    Far more often its source is broken than all hosts are gone at once; if they are, no process runs soon. Pure.
    """
    return not hosts and not departing and works


def keeps_unlisted(job: JobState) -> bool:
    """Whether hosts stay in use although the newest list names none."""
    return job.fleet.empty_list_refused


def list_refused(job: JobState) -> str:
    """Why the newest list of hosts is not used; empty if it is."""
    refused = job.fleet.list_refused
    return "" if refused is None else f"the newest host list is refused: {refused.removesuffix(HOSTS_KEPT)}"


def why_fewer(job: JobState) -> list[str]:
    """Which part of the newest list explains that there are too few hosts."""
    fleet, refused = job.fleet, list_refused(job)
    found = [refused] if refused else []
    if not refused and fleet.empty_list_refused:
        found.append("the newest host list names no host")
    if not fleet.hosts.names:
        found.append("no host is published")
    return found


def unlisted_in_use(job: JobState, published: HostSet) -> dict[Host, str]:
    """Hosts in use that the newest list, ``published``, does not name, and the reasons."""
    if job.outcome.over:
        return {}
    if job.fleet.empty_list_refused:
        why = "the newest list names no host: those known before are kept while they work"
        return {host: why for host in job.fleet.hosts if host.name not in published}
    found, needed = {}, needed_unlisted(job)
    for name, agent in job.roster.agents.items():
        if name in job.adoption.missing:
            found[agent.host] = "an earlier launcher started its agent, which has not connected to this one yet"
        elif name not in published:
            leaves = ", and leaves at its next step" if job.roster.on(name) else ""
            leaves = NEEDED if name in needed else leaves
            found[agent.host] = f"it is not listed any more{leaves}"
    return {host: why for host, why in found.items() if host.name not in published}


# --- what happens


def listed(job: JobState, event: HostsChanged) -> None:
    """A list of hosts was published, or refused."""
    refused_before, fleet = job.fleet.empty_list_refused, job.fleet
    fleet.list_refused = event.refused
    fleet.empty_list_refused = is_refused(event.hosts, event.departing, works=bool(job.roster.workers))
    if fleet.empty_list_refused:
        if refused_before:
            return  # a line of its own reports a list that is refused later
        log.warning("a list without any host was published; the hosts known so far are kept while they work")
        return
    if job.fleet.hosts and not event.hosts and not event.departing:
        log.info("hosts: none (%s)", ", ".join(f"-{name}" for name in job.fleet.hosts.names))
    publish(job, event.hosts)
    notices.published(job, event.departing)


def publish(job: JobState, hosts: HostSet) -> None:
    """Apply a new list. Hosts inherited from an earlier launcher are known only by name until now."""
    job.fleet.hosts = hosts
    for pod in hosts:
        if pod.uid and pod != (before := job.fleet.pods.get(pod.name)):
            job.fleet.pods[pod.name] = pod
            if before is not None and pod.uid != before.uid:
                _check_recreated(job, pod)
            elif before is not None and not is_same(pod.life, before.life):
                _forget_former(job, pod.name)
    known: list[Agent | Worker] = [*job.roster.agents.values(), *job.roster.workers.values()]
    find = hosts.by_name.get  # there may be thousands
    for each in known:
        host = find(each.host.name)
        if (
            host is not None
            and host is not each.host
            and (not (each.host.uid or each.host.node) or _says_more(host, each.host))
        ):
            each.host = host
    _check_earlier_lives(job, hosts)


def follow_slots(job: JobState, usable: Sequence[tuple[Host, Sequence[int]]]) -> None:
    """Before its first world: a job that starts on all slots does not wait for slots that its user has removed.

    With ``--min-np`` it waits for those that are ``usable`` and not on a host that could not be reached.
    """
    if job.options.all_slots_of is None or job.world.begun or job.world.members:
        return
    first = job.fleet.first_limits = job.fleet.first_limits or job.options.limits
    slots = job.fleet.hosts.slots
    if first.least < first.start:
        reached = sum(len(numbers) for host, numbers in usable if not unreached(job, host))
        slots = max(first.least, min(slots, reached))
    if (limits := first.of_slots(slots)) != job.options.limits:
        job.options = replace(job.options, limits=limits)


def _check_recreated(job: JobState, host: Host) -> None:
    """A new pod has the name of a former one: forget the former one, and do not wait for it."""
    agent = job.roster.agents.get(host.name)
    uid, lost = job.fleet.lost.get(host.name, ("", ""))
    if agent is not None and agent.joined and uid and uid == agent.host.uid and lost != agent.identity:
        silence.move_to_new_pod(job, agent, host)
    elif agent is not None and agent.host.uid not in ("", host.uid):
        silence.cut_off_dead(job, agent, "its pod was recreated")
    elif agent is None and uid not in ("", host.uid):  # it was cut off before
        job.roster.commits.agent_ended(host.name, "its pod was recreated")
    _forget_former(job, host.name)


def _check_earlier_lives(job: JobState, hosts: HostSet) -> None:
    """Note which agents belong to containers that the new list shows as replaced."""
    now, before = job.now, job.fleet.newer_lives
    job.fleet.newer_lives = {}
    for name, agent in job.roster.agents.items():
        host = hosts.get(name)
        if host is None:
            agent.unlisted_at = now if hosts else agent.unlisted_at
        elif agent.host is not host and not is_same(agent.host.life, host.life):
            known = before.get(name)
            since = known.since if known is not None and known.host.life == host.life else now
            job.fleet.newer_lives[name] = NewerLife(host, since)
    silence.end_earlier_lives(job)


def _forget_former(job: JobState, host: str) -> None:
    """Forget the notes about the former pod or container."""
    job.fleet.restart_delays.forget(host)
    job.fleet.recovering.discard(host)
    job.fleet.cut_off.pop(host, None)


def _says_more(host: Host, known: Host) -> bool:
    """Whether a list gives the life of a pod that was known without one."""
    return bool(host.life) and not known.life and host.uid == known.uid


# --- planner


def plan(job: JobState) -> Plan:
    """Accept an empty list once no agent is connected and no process runs."""
    roster = job.roster
    if (
        job.fleet.empty_list_refused
        and not roster.workers
        and not any(agent.joined for agent in roster.agents.values())
    ):
        job.fleet.empty_list_refused = False
        log.warning("no host is published, and no agent answers: the hosts are gone")
        publish(job, HostSet())
        notices.published(job, {})
    return NOTHING
