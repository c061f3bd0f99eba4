"""The launcher itself was paused: messages of that time are not read yet, so silence and waits count less."""

from __future__ import annotations

import logging

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.launcher_pauses import report_pause

log = logging.getLogger(__name__)


def launcher_paused(job: JobState, seconds: float) -> None:
    """Move all times since which something is awaited by ``seconds``."""
    state, limit_s = job.launcher_pauses, job.options.heartbeat_timeout_s
    line, state.short = report_pause(
        job.now, seconds, state.short, heartbeat_timeout_s=limit_s, logged_at=state.logged_at
    )
    if line:
        log.warning("%s", line)
        state.logged_at = job.now
    now = job.now
    job.fleet.newer_lives = {
        name: each._replace(since=min(now, each.since + seconds)) for name, each in job.fleet.newer_lives.items()
    }
    for agent in job.roster.agents.values():
        agent.last_message_at = (
            min(now, agent.last_message_at + seconds) if agent.last_message_at else agent.last_message_at
        )
    job.roster.commits.launcher_paused(seconds)
    if job.transfers.current is not None:
        job.transfers.current.began += seconds
    job.custody.may_end_since = {host: since + seconds for host, since in job.custody.may_end_since.items()}
    for worker in job.roster.workers.values():
        worker.killed_at += seconds if worker.killed is not None else 0.0
        worker.moved_at = min(now, worker.moved_at + seconds) if worker.moved_at else 0.0
    job.liveness.moved.clear()
