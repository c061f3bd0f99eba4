"""No world starts without the newest commit that a host holds: asks ``rules/membership/custody.py``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hvd_elastic_ext.launcher.custody import custody, transfers
from hvd_elastic_ext.launcher.custody.custody import FORMS, CommitLoss, CustodyAction, CustodyDecision
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.facts.custody import ending, facts_for, has_newest, storage_may_be_newer

log = logging.getLogger(__name__)


def custody_decision(job: JobState, seats: Sequence[Seat], *, ready: bool) -> CustodyDecision:
    """Ask the rules whether a world of ``seats`` may form, and what has to be sent first."""
    if ready and has_newest(job, seats):
        decision = FORMS
    else:
        decision = custody.decide(job.now, facts_for(job, seats, ready=ready), job.options.commit_wait_s)
    _log(job, decision)
    return decision


def _log(job: JobState, decision: CustodyDecision) -> None:
    what = decision.reason if decision.until is not None else ""
    named = what.partition(";")[0]
    if named != job.custody.logged:
        job.custody.logged = named
        if what:
            log.warning("no world is formed yet: %s", what)


def may_form(job: JobState) -> tuple[bool, CommitLoss | None]:
    """Whether the members of the newest world, which all wait for their ranks, may get them.

    Also the loss, if the world forms without the newest commit that was ever reported.
    """
    seats = tuple(life.seat for life in job.world.members)
    plain = job.roster.commits.covers_newest(seats) and not storage_may_be_newer(job, seats)
    if plain and all(job.now >= until for until in ending(job).values()):
        transfers.cancel(job)
        job.custody.decision, job.custody.holds_back = FORMS, False
        return True, None
    job.custody.decision = decision = custody_decision(job, seats, ready=True)
    job.custody.holds_back = decision.act is not CustodyAction.FORM
    if job.custody.holds_back:
        transfers.begin(job, decision)
    else:
        transfers.cancel(job)
    return not job.custody.holds_back, decision.loss


def world_formed(job: JobState, loss: CommitLoss | None) -> int | None:
    """Note that a world has formed. Return the number of steps that it repeats; None if no step is known."""
    progress = job.roster.commits.world_formed([life.seat for life in job.world.members])
    transfers.world_formed(job)
    if loss is None:
        return None if progress is None else progress.lost
    stored = job.checkpoints.stored
    if stored is not None and stored.commit is not None and (loss.left is None or stored.commit > loss.left[0]):
        job.checkpoints.stored = None  # it could not be loaded: it is gone or damaged
    lost = max(loss.steps, 0 if progress is None else progress.lost)
    names, at = ", ".join(loss.holders) or "storage", 0 if loss.left is None else loss.left[1]
    cure = "" if job.options.durability is not None else "; --checkpoint-every auto would keep them on storage"
    log.warning("%d steps are lost: the newest commit, of step %d, was held by %s; %s. Training goes on after step "
                "%d%s", lost, loss.newest[1], names, loss.why, at, cure)  # fmt: skip
    return lost
