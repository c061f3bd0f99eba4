"""The part of an engine in a change of the world: in place, or with other processes. Planners do not name engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.causes import Ending
from hvd_elastic_ext.launcher.membership import engines, next_world
from hvd_elastic_ext.launcher.membership.next_world import WorldDecision
from hvd_elastic_ext.launcher.state.facts.difference import difference


def _decide(job: JobState) -> WorldDecision:
    return next_world.decide_by(job.now, difference(job), job.options.limits)


class Engine(NamedTuple):
    """What planners ask of an engine. The defaults are for Horovod, whose processes live through changes of their
    world.
    """

    advance: Callable[[JobState], WorldDecision] = _decide
    """Which processes form the next world now, if any. Ends members that have to end before that."""
    world_begun: Callable[[JobState], None] = lambda job: None
    """Note that the world of the decision is called now."""
    look: Callable[[JobState], float | None] = lambda job: None
    """Do what is due after a decision. Returns when something is due next (mono)."""
    cause_of_end: Callable[[JobState, Worker, Ending, int], Ending] = lambda job, worker, ending, code: ending
    """The cause of a process's end, by what the engine knows beyond its exit code."""
    world_not_begun: Callable[[JobState, int, str], None] = lambda job, generation, why: None
    """The program that starts the processes of a world has failed, or has ended before they were done."""


_IN_PLACE: Final = Engine()
_RESTARTING: Final = Engine(
    engines.advance, engines.world_begun, engines.look, engines.cause_of_end, engines.world_not_begun
)


def engine_of(job: JobState) -> Engine:
    """The engine of a job."""
    return _IN_PLACE if job.in_place else _RESTARTING
