"""A job without enough hosts saves what memory holds, and sleeps then."""

from __future__ import annotations

from hvd_elastic_ext.launcher.checkpoints.save_then_stop import save_before, training_resumed
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.shortage import why_short
from hvd_elastic_ext.launcher.state.facts.custody import is_awaited
from hvd_elastic_ext.launcher.state.facts.memory import next_look
from hvd_elastic_ext.launcher.state.planner_answer import Plan


def plan(job: JobState) -> Plan:
    """Save the newest commit while no world can form; end that once one does."""
    if job.decision.members is not None:
        training_resumed(job)
    elif job.options.below_min == "sleep" and not job.can_end_by_itself and job.clean_exits.until is None:
        short = why_short(job)
        if short is None or not is_awaited(job):  # only the newest commit may be saved
            job.fail(save_before(job, short=short))
    return Plan(next_look(job))
