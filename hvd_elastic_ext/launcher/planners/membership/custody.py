"""Sees to the newest commit: asks the rules of the same name what may be done, and has it done."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from hvd_elastic_ext.launcher.planners.checkpoints import before_sleep, coordinator, restore
from hvd_elastic_ext.launcher.planners.membership import transfers
from hvd_elastic_ext.launcher.rules.membership import custody
from hvd_elastic_ext.launcher.rules.membership.custody import FORMS, Act, Facts, Limits, Loss, Stored, Verdict
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan

log = logging.getLogger(__name__)

ENDS_S: Final = 5.0
"""How long the end of a process that was killed is waited for; as a rule it is told at once."""
NOTE_S: Final = 1.0
"""How often the newest commit is noted for the next launcher: a loss is told by what was noted last."""
NOTE_EACH_S: Final = 0.002
"""What each slot that holds one adds to that: a note of thousands takes a while."""


def held_back(job: JobState, decision: Decision) -> Decision:
    """Have the newest commit brought to those who need it; the decision, or that it has to wait for that."""
    now = job.now
    transfers.look(job)
    job.custody.holds_back = False
    job.custody.may_end_since = {
        host: at for host, at in job.custody.may_end_since.items() if host in job.custody.asked_for
    }
    job.custody.asked_for.clear()
    if _calm(job):
        transfers.cancel(job)
        job.custody.verdict = FORMS
        return decision
    seats, ready = _candidates(job, decision)
    if not seats and not _leaves_by(job):
        job.custody.verdict = FORMS
        return decision
    job.custody.verdict = _act(
        job, custody.judge(now, _facts(job, seats, ready=ready), Limits(job.rules.commit_wait_s))
    )
    begins = decision.members is not None and not _anybody_is_in_a_world(job, decision)
    if begins and job.custody.verdict.act is Act.FORM:
        transfers.cancel(job)  # nobody may write to the memory of who is about to train
    if not begins or job.custody.verdict.act is Act.FORM:
        return decision
    job.custody.holds_back = True
    return Decision(None, "", job.custody.verdict.reason, job.custody.verdict.until)


def note(job: JobState) -> Plan:
    """Have the next launcher know of newer commits in a while; at once of the first one, of one that is gone, of
    what a holder says that the last launcher had noted, and of what a new world has cost."""
    now, commits = job.now, job.roster.commits
    stale = sum(held.stale for held in commits.held.values())
    known = bool(commits.held), frozenset(commits.gone), stale, job.checkpoints.stored, job.resize.untold
    if known != job.custody.noted or (
        commits.held and now - job.custody.noted_at >= NOTE_S + NOTE_EACH_S * len(commits.held)
    ):
        job.custody.noted_at, job.custody.noted = now, known
        job.save()
    return NOTHING


def may_form(job: JobState) -> tuple[bool, Loss | None]:
    """Whether the members of the newest world, all of whom wait for their ranks, may be told them.

    The loss, if the world forms behind a commit that was told once.
    """
    now = job.now
    seats = tuple(life.seat for life in job.world.members)
    plain = job.roster.commits.plain(seats) and not _storage_may_be_newer(job, seats)
    if plain and all(now >= until for until in _ending(job).values()):
        transfers.cancel(job)
        job.custody.verdict = FORMS
        return True, None
    verdict = _act(job, custody.judge(now, _facts(job, seats, ready=True), Limits(job.rules.commit_wait_s)))
    job.custody.verdict = verdict
    if verdict.act is Act.FORM:
        transfers.cancel(job)
    return verdict.act is Act.FORM, verdict.loss


def formed(job: JobState, loss: Loss | None) -> int | None:
    """A world has formed; how many steps it has to do again, None if no step is known of."""
    progress = job.roster.commits.formed([life.seat for life in job.world.members])
    transfers.formed(job)
    if loss is None:
        return None if progress is None else progress.lost
    stored = job.checkpoints.stored
    if stored is not None and stored.commit is not None and (loss.left is None or stored.commit > loss.left[0]):
        job.checkpoints.stored = None  # it is not there any more, or not whole
    lost = max(loss.steps, 0 if progress is None else progress.lost)
    names, at = ", ".join(loss.holders) or "storage", 0 if loss.left is None else loss.left[1]
    log.warning("%d steps are lost: the newest commit, of step %d, was held by %s; %s. Training goes on after step "
                "%d", lost, loss.newest[1], names, loss.why, at)  # fmt: skip
    return lost


def next_look(job: JobState) -> float | None:
    """When something may be due (mono)."""
    times = [job.custody.verdict.until, transfers.next_look(job)]
    return min((at for at in times if at is not None), default=None)


def needs(job: JobState, host: str) -> bool:
    """Whether the agent of a host has to stay for what only it holds."""
    now = job.now
    job.custody.asked_for.add(host)
    since = job.custody.may_end_since.setdefault(host, now)
    if _calm(job) and not _is_ahead(job, host) and _some_stay(job):
        return not _heard_since(job, since)
    heard = {name for name, agent in job.roster.agents.items() if agent.heard > since}
    facts = _facts(job, (), ready=False)
    needed, _ = custody.is_needed(now, host, facts, Limits(job.rules.commit_wait_s), told_at=since, heard=heard)
    return needed


def pause(job: JobState) -> None:
    """Nothing is decided for now: who may end has had no time to send what it holds."""
    job.custody.may_end_since.clear()


def launcher_paused(job: JobState, seconds: float) -> None:
    """The launcher itself stood still for so long: what it waits for has had no time."""
    job.roster.commits.launcher_paused(seconds)
    transfers.launcher_paused(job, seconds)
    job.custody.may_end_since = {host: since + seconds for host, since in job.custody.may_end_since.items()}
    for worker in job.roster.workers.values():
        worker.killed_at += seconds if worker.killed is not None else 0.0


def awaits(job: JobState) -> bool:
    """Whether somebody is waited for who alone holds the newest commit: nothing older may take its place yet."""
    return (
        not _calm(job)
        and custody.awaited(job.now, _facts(job, (), ready=False), Limits(job.rules.commit_wait_s)) is not None
    )


def noted(job: JobState, *, over: bool, well: bool) -> list[dict[str, Any]]:
    """What the next launcher is to know of commits: of a job that is ``over``, and not ``well``, what is lost."""
    commits, durability = job.roster.commits, job.rules.durability
    if not over:
        return commits.to_json()
    if well or durability is None:
        return []
    stored = job.checkpoints.stored
    return commits.left_behind(None if stored is None else stored.commit)


# --- facts


def _calm(job: JobState) -> bool:
    """A world trains and has agreed on its state: its members hold the newest commit."""
    return job.standing and job.formed and job.settled


def _is_ahead(job: JobState, host: str) -> bool:
    """Whether a host holds what the world that trains has formed behind, and has not made up for yet."""
    commits = job.roster.commits
    own = commits.of_host(host)
    theirs = (held for life in job.world.members if (held := commits.commit_of(life.seat)) is not None)
    return own is not None and own > max(theirs, default=own)


def _some_stay(job: JobState) -> bool:
    """Whether one of those who train is not about to go, with what it holds."""
    leaves_by = _leaves_by(job)
    return any(life.seat.host not in leaves_by for life in job.world.members)


def _heard_since(job: JobState, since: float) -> bool:
    """Whether one of those who train has spoken since then: it may be gone with all that it holds."""
    agents = job.roster.agents
    members = {life.seat.host for life in job.world.members}
    return any((agent := agents.get(host)) is not None and agent.heard > since for host in members)


def _candidates(job: JobState, decision: Decision) -> tuple[tuple[Seat, ...], bool]:
    """Who forms the next world, or may; and whether they are to form it now."""
    roster = job.roster
    if not job.formed:  # :func:`may_form` is asked when all its members wait for their ranks
        return (), False
    if decision.members is not None:
        return tuple(life.seat for life in decision.members), True
    trains = any(worker.killed is None and worker.stage is Stage.LIVE for worker in roster.workers.values())
    enough = job.rules.limits.size(len(job.wanted), begun=job.world.begun) > 0
    if trains or not enough:
        return (), False
    return tuple(seat for seat in job.wanted if _joined(job, seat.host)), False


def _anybody_is_in_a_world(job: JobState, decision: Decision) -> bool:
    """What these hold is known only when they ask for their ranks; :func:`may_form` is asked then."""
    workers = job.roster.present(decision.members or ())
    return any(worker.stage is Stage.LIVE for worker in workers)


def _facts(job: JobState, seats: Iterable[Seat], *, ready: bool) -> Facts:
    roster = job.roster
    members, leaves_by = tuple(seats), _leaves_by(job)
    keepers = () if members else _keepers(job, leaves_by)
    return Facts(
        roster.commits.holdings(leaves_by),
        members,
        ready,
        frozenset(seat for seat in (*members, *keepers) if _writable(job, seat)),
        keepers,
        _stored(job),
        transfers.failing(job),
        transfers.loading(job),
        transfers.looked(job),
        frozenset(seat for seat in roster.workers if not _is_quiet(job, seat)),
        _ending(job),
        transfers.sending(job),
        coordinator.readers(job),
    )


def _ending(job: JobState) -> dict[Seat, float]:
    """Processes of worlds that were killed, and until when their end is waited for."""
    agents = job.roster.agents
    return {
        seat: worker.killed_at + ENDS_S
        for seat, worker in job.roster.workers.items()
        if worker.killed is not None and worker.generation and (agent := agents.get(seat.host)) and agent.joined
    }


def _leaves_by(job: JobState) -> Mapping[str, float]:
    """Hosts that will be gone, and when: by a notice, or because they are listed no more."""
    told = dict(job.leaves_by)
    for name, agent in job.roster.agents.items():
        if name not in job.fleet.hosts or agent.finishing:
            told.setdefault(name, math.inf)
    return told


def _storage_may_be_newer(job: JobState, seats: Iterable[Seat]) -> bool:
    stored, commits = _stored(job), job.roster.commits
    own = max((held for seat in seats if (held := commits.commit_of(seat)) is not None), default=None)
    return stored is not None and (own is None or (stored.commit is not None and stored.commit > own))


def _keepers(job: JobState, leaves_by: Mapping[str, float]) -> tuple[Seat, ...]:
    stay = [host for host in job.fleet.hosts if host.name not in leaves_by and _joined(job, host.name)]
    return tuple(Seat(host.name, slot) for host in stay for slot in range(host.slots))


def _joined(job: JobState, host: str) -> bool:
    agent = job.roster.agents.get(host)
    return agent is not None and agent.joined and not agent.finishing


def _writable(job: JobState, seat: Seat) -> bool:
    return _is_quiet(job, seat) and _joined(job, seat.host)


def _is_quiet(job: JobState, seat: Seat) -> bool:
    """Whether no process commits into a seat's memory now."""
    worker = job.roster.workers.get(seat)
    return worker is None or worker.stage is not Stage.LIVE or worker.life in job.rendezvous.waiting


def _stored(job: JobState) -> Stored | None:
    """The newest checkpoint; before the first world, in which hosts load what there is, one that is known of."""
    how = job.rules.durability
    if how is None:
        return None
    stored = job.checkpoints.stored
    if not job.world.begun:
        return stored if stored is not None and stored.commit is not None else None
    return stored or Stored(None, 0, how.place)


# --- acting


def _act(job: JobState, verdict: Verdict) -> Verdict:
    _say(job, verdict)
    if verdict.act not in (Act.SEND, Act.LOAD):
        return verdict
    assert verdict.target is not None
    hosts = {verdict.target.host} | ({verdict.source.seat.host} if verdict.source is not None else set())
    if not transfers.may_begin(job) or any(_is_busy(job, host) for host in hosts):
        return replace(verdict, act=Act.WAIT)
    if verdict.source is not None:
        transfers.send(job, verdict.source, verdict.target)
    else:
        transfers.load(job, verdict.target)
    return verdict


def _say(job: JobState, verdict: Verdict) -> None:
    what = verdict.reason if verdict.until is not None else ""
    named = what.partition(";")[0]
    if named != job.custody.said:
        job.custody.said = named
        if what:
            log.warning("no world is formed yet: %s", what)


def _is_busy(job: JobState, host: str) -> bool:
    """Whether a host's agent is on an errand for a checkpoint: it does one errand at a time."""
    return any(part.is_busy(job, host) for part in (coordinator, restore, before_sleep))
