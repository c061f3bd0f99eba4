"""Training that ends because all ranks leave the process within the training function, as early stopping is often
written.

They leave one after the other. So, for a short time after the first one, no other world is called, and no process is
started. An end in any other way is followed at once, as always.
"""

from __future__ import annotations

import logging

from hvd_elastic_ext.launcher.departures import clean_exits
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health import blame
from hvd_elastic_ext.launcher.health.endings import Departure, DepartureOutcome
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Find out whether training is done, or what follows otherwise."""
    clean_exits.forget_after_next_world(job)
    part = job.clean_exits
    if not part.open:
        return NOTHING
    found, waited = clean_exits.outcome(job), part.until is not None
    part.until = found.until
    if found.departure is Departure.WAIT:
        return Plan(found.until)
    part.open = False
    if found.departure is Departure.DONE:
        log.info("%s: training is done", found.reason)
        job.outcome.finishing = True
        return NOTHING
    _log(job, found, waited=waited)
    if part.alone:
        last = max(part.left, key=lambda life: part.left[life].at)
        job.fail(blame.all_left(job, f"{last.seat}: left with exit code 0 before training was done"))
    return NOTHING


def _log(job: JobState, found: DepartureOutcome, *, waited: bool) -> None:
    part = job.clean_exits
    if found.departure is Departure.RESUMABLE and not part.logged:
        part.logged = True
        log.info("ranks left the training function with exit code 0, and training goes on: %s", found.reason)
    elif found.departure is Departure.PART and not part.advised:
        clean_exits.advise(job, found.reason)
    elif found.departure is Departure.PART and waited:
        log.info("%s: training goes on", found.reason)
