"""A new list of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hvd_elastic_ext.core.hosts import Host, HostSet, is_same
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent, Worker
from hvd_elastic_ext.launcher.state.effects.health import cut_off
from hvd_elastic_ext.launcher.state.facts.health import unreached
from hvd_elastic_ext.launcher.state.parts.membership import NewerLife


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
        cut_off.move_to_new_pod(job, agent, host)
    elif agent is not None and agent.host.uid not in ("", host.uid):
        cut_off.cut_off_dead(job, agent, "its pod was recreated")
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
    cut_off.end_earlier_lives(job)


def _forget_former(job: JobState, host: str) -> None:
    """Forget the notes about the former pod or container."""
    job.fleet.restart_delays.forget(host)
    job.fleet.recovering.discard(host)
    job.fleet.unreachable.pop(host, None)


def _says_more(host: Host, known: Host) -> bool:
    """Whether a list gives the life of a pod that was known without one."""
    return bool(host.life) and not known.life and host.uid == known.uid
