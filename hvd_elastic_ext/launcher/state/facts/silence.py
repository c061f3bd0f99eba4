"""How long a process may be silent until it counts as failed."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.rules.membership.world_change import ChangeAction

BEAT_S: Final = 2.0
"""A process may have received a message this long before its silence: the time between heartbeats."""
INTERPRETER_S: Final = 60.0
"""Longest silence of a process that is starting, has not begun its training loop, is done, or was sent away: imports,
preparations and the end of an interpreter take time, and on a busy machine no thread sends heartbeats meanwhile.
"""
STARTS_S: Final = 120.0
"""Longest time until a process trains; one without an elastic loop cannot report that it does."""


def limit_s(job: JobState, worker: Worker) -> float:
    """Seconds of silence after which a process is killed. One that starts or leaves may be silent for longer."""
    limit, rendezvous = job.options.heartbeat_timeout_s, job.rendezvous
    # A process that was silent before its order to leave has not received the order.
    silent_since = job.now - worker.silent_s + BEAT_S
    ordered = worker.leaving is not None and silent_since > worker.leaving_since
    left = ordered and rendezvous.formed and worker.life not in rendezvous.members
    slow = worker.done or left or worker.stage is Stage.BOOTING or worker.in_prologue
    slow = slow or (not job.in_place and (_imports(job, worker) or _ends(job, worker, silent_since)))
    return max(limit, INTERPRETER_S) if slow else limit


def _imports(job: JobState, worker: Worker) -> bool:
    """Whether a process that has its rank may still be loading what it trains with."""
    return not worker.loops and worker.step_s is None and job.now < worker.since + STARTS_S


def _ends(job: JobState, worker: Worker, silent_since: float) -> bool:
    """Whether all leave their world on purpose, and this one has the order."""
    change = job.restarting.change
    drains = change is not None and change.move is ChangeAction.DRAIN and worker.life in job.world.members
    return drains and change is not None and change.began is not None and silent_since > change.began
