"""Keeps the newest commit: asks ``rules/membership/custody.py`` what may be done, and starts the transfers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from hvd_elastic_ext.launcher.planners.membership import transfers
from hvd_elastic_ext.launcher.rules.membership import custody
from hvd_elastic_ext.launcher.rules.membership.custody import FORMS, Act, Loss, Verdict
from hvd_elastic_ext.launcher.rules.membership.next_world import Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.facts.custody import (
    candidates,
    ending,
    facts_for,
    is_calm,
    leaves_by,
    storage_may_be_newer,
)
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, HeldBack, Plan

log = logging.getLogger(__name__)

NOTE_S: Final = 1.0
"""How often the newest commit is saved for the next launcher, which reports losses by that."""
NOTE_EACH_S: Final = 0.002
"""What each slot with a commit adds to that: saving thousands takes a while."""


def why_not(job: JobState) -> HeldBack | None:
    """Start the transfers that the next world needs; why it does not form before they are done."""
    part, decision = job.custody, job.decision
    transfers.look(job)
    part.holds_back = False
    part.may_end_since = {host: at for host, at in part.may_end_since.items() if host in part.asked_for}
    part.asked_for.clear()
    part.verdict = FORMS
    if is_calm(job):
        transfers.cancel(job)
        return None
    seats, ready = candidates(job)
    if not seats and not leaves_by(job):
        return None
    part.verdict = _judge(job, seats, ready=ready)
    # What members of a world hold is known only when they ask for their ranks; :func:`may_form` is asked then.
    live = any(worker.stage is Stage.LIVE for worker in job.roster.present(decision.members or ()))
    if decision.members is None or live:
        return None
    if part.verdict.act is Act.FORM:
        transfers.cancel(job)  # the memory of a process that is about to train is its own
        return None
    part.holds_back = True
    return HeldBack(part.verdict.reason, part.verdict.until)


def note(job: JobState) -> Plan:
    """Save newer commits for the next launcher from time to time.

    Save at once the first commit, a loss, the answer of a holder that the last launcher noted, and a new world's cost.
    """
    part, commits = job.custody, job.roster.commits
    stale = sum(held.stale for held in commits.held.values())
    known = bool(commits.held), frozenset(commits.gone), stale, job.checkpoints.stored, job.resize.unrecorded
    due = commits.held and job.now - part.noted_at >= NOTE_S + NOTE_EACH_S * len(commits.held)
    if known != part.noted or due:
        part.noted_at, part.noted = job.now, known
        job.save()
    return NOTHING


def may_form(job: JobState) -> tuple[bool, Loss | None]:
    """Whether the members of the newest world, all of which wait for their ranks, may get them.

    Also the loss, if the world forms without the newest commit that was ever reported.
    """
    seats = tuple(life.seat for life in job.world.members)
    plain = job.roster.commits.plain(seats) and not storage_may_be_newer(job, seats)
    if plain and all(job.now >= until for until in ending(job).values()):
        transfers.cancel(job)
        job.custody.verdict, job.custody.holds_back = FORMS, False
        return True, None
    job.custody.verdict = verdict = _judge(job, seats, ready=True)
    job.custody.holds_back = verdict.act is not Act.FORM
    if not job.custody.holds_back:
        transfers.cancel(job)
    return not job.custody.holds_back, verdict.loss


def formed(job: JobState, loss: Loss | None) -> int | None:
    """Note that a world has formed. Return the steps that it does again; None if no step is known."""
    progress = job.roster.commits.formed([life.seat for life in job.world.members])
    transfers.formed(job)
    if loss is None:
        return None if progress is None else progress.lost
    stored = job.checkpoints.stored
    if stored is not None and stored.commit is not None and (loss.left is None or stored.commit > loss.left[0]):
        job.checkpoints.stored = None  # it could not be loaded: it is gone or damaged
    lost = max(loss.steps, 0 if progress is None else progress.lost)
    names, at = ", ".join(loss.holders) or "storage", 0 if loss.left is None else loss.left[1]
    log.warning("%d steps are lost: the newest commit, of step %d, was held by %s; %s. Training goes on after step "
                "%d", lost, loss.newest[1], names, loss.why, at)  # fmt: skip
    return lost


def next_look(job: JobState) -> float | None:
    """When to look again (mono)."""
    times = [job.custody.verdict.until, transfers.next_look(job)]
    return min((at for at in times if at is not None), default=None)


def launcher_paused(job: JobState, seconds: float) -> None:
    """The launcher was paused: extend what it waits for by that time."""
    job.roster.commits.launcher_paused(seconds)
    transfers.launcher_paused(job, seconds)
    job.custody.may_end_since = {host: since + seconds for host, since in job.custody.may_end_since.items()}
    for worker in job.roster.workers.values():
        worker.killed_at += seconds if worker.killed is not None else 0.0


def _judge(job: JobState, seats: Iterable[Seat], *, ready: bool) -> Verdict:
    """Ask the rules, and start the transfer that they want."""
    verdict = custody.judge(job.now, facts_for(job, seats, ready=ready), job.options.commit_wait_s)
    _log(job, verdict)
    if verdict.act not in (Act.SEND, Act.LOAD):
        return verdict
    assert verdict.target is not None
    hosts = {verdict.target.host} | ({verdict.source.seat.host} if verdict.source is not None else set())
    if not job.transfers.may_begin(job.now) or not hosts.isdisjoint(job.busy):
        return replace(verdict, act=Act.WAIT)
    if verdict.source is not None:
        transfers.send(job, verdict.source, verdict.target)
    else:
        transfers.load(job, verdict.target)
    return verdict


def _log(job: JobState, verdict: Verdict) -> None:
    what = verdict.reason if verdict.until is not None else ""
    named = what.partition(";")[0]
    if named != job.custody.logged:
        job.custody.logged = named
        if what:
            log.warning("no world is formed yet: %s", what)
