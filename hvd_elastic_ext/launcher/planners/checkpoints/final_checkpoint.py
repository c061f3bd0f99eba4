"""The last checkpoint of a job that has succeeded, made before its agents end: their memory holds the last commit.

Storage that fails or does not answer delays the end only for a limited time: training is done in any case.
"""

from __future__ import annotations

import logging

from hvd_elastic_ext.launcher.checkpoints import attempt, finished, save_then_stop
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.rules.checkpoints.final_checkpoint import decide
from hvd_elastic_ext.launcher.state.facts.memory import is_waiting
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Start nothing if the newest checkpoint of this job says that training is done."""
    done, how = job.restore.done, job.options.durability
    if done is not None and how is not None and not (job.ending or job.world.begun):
        log.warning("%s", finished.message(done, how.place))
        job.final_checkpoint.over = job.outcome.finishing = True
    return NOTHING


def save(job: JobState) -> Plan:
    """Save the end of training once all processes have ended, or are late, and before the agents end."""
    ends = job.outcome.finishing and job.outcome.failure is None and job.shutdown.gone_by is None
    ready = ends and (job.shutdown.is_late(job.now) or not job.roster.workers)
    job.final_checkpoint.waits = ready and _needs_agents(job)
    return NOTHING


def _needs_agents(job: JobState) -> bool:
    """Whether there is still something to save. Logs how that ended."""
    state = job.final_checkpoint
    if state.over:
        return False
    if state.since is None:
        state.since = job.now
        save_then_stop.training_resumed(job)
        attempt.training_finished(job)
    done = save_then_stop.save_before(job, short="training is done", skip_waiting=True, read_back=False)
    waits, why = decide(
        job.now - state.since,
        saved=done is not None,
        answered=not is_waiting(job),
        durable_s=job.cost.durable_s,
    )
    if waits:
        return True
    state.over = True
    if done is not None and not job.roster.agents:
        why = "no agent is left that could write it"
    if why:
        _, step = job.checkpoints.newest
        useless = job.checkpoints.useless
        if step is not None:
            newest = f"the newest is of step {step}, and the same command continues from there"
        elif useless is not None:
            newest = f"the same command cannot go on: no job can resume from {useless.path}: {useless.why}"
        else:
            newest = "there is none, and the same command starts from the beginning"
        log.warning("training is done, but no checkpoint has its end: %s; %s", why, newest)
        job.record("not_sealed", reason=f"the end of training: {why}")
    elif done is not None and done.path is not None:
        log.warning("training is done; step %s is in %s", done.step, done.path)
    return False
