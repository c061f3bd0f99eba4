"""Whether the next world has to wait for the newest commit. Saves for the next launcher who holds it."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.launcher.custody.custody import FORMS, CustodyAction
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.state.effects.membership.custody import custody_decision
from hvd_elastic_ext.launcher.state.facts.custody import candidates, is_in_sync, leaving_or_unlisted
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, HeldBack, Plan

NOTE_S: Final = 1.0
"""How often the holders of the newest commit are saved for the next launcher, which can then report losses."""
NOTE_EACH_S: Final = 0.002
"""What each slot with a commit adds to that: saving thousands takes a while."""


def why_not(job: JobState) -> HeldBack | None:
    """Why the next world does not form before the newest commit is available. ``transfers`` moves it."""
    part = job.custody
    part.decision, part.holds_back, part.needs_none = FORMS, False, is_in_sync(job)
    if part.needs_none:
        return None
    seats, ready = candidates(job)
    if not seats and not leaving_or_unlisted(job):
        return None
    part.decision = custody_decision(job, seats, ready=ready)
    members = job.decision.members
    # The commits of members of a world are known only when they ask for their ranks; ``may_form`` decides then.
    if members is None or any(worker.stage is Stage.LIVE for worker in job.roster.present(members)):
        return None
    part.needs_none = (
        part.decision.act is CustodyAction.FORM
    )  # the memory of a process that is about to train is its own
    part.holds_back = not part.needs_none
    return HeldBack(part.decision.reason, part.decision.until) if part.holds_back else None


def note(job: JobState) -> Plan:
    """Save newer commits for the next launcher from time to time.

    Save at once the first commit, a loss, the answer of a holder that the last launcher noted, and a new world's cost.
    """
    part, commits = job.custody, job.roster.commits
    known = bool(commits.held), frozenset(commits.gone), commits.stale, job.checkpoints.stored, job.resize.unrecorded
    due = commits.held and job.now - part.noted_at >= NOTE_S + NOTE_EACH_S * len(commits.held)
    if known != part.noted or due:
        part.noted_at, part.noted = job.now, known
        job.save()
    return NOTHING
