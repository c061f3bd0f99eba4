"""What a change of the world is: within the processes (Horovod), or other processes (torchrun, mpirun).

Belongs here: all that only one engine does. Hosts, agents, health, commits and checkpoints know no engine.
"""

from __future__ import annotations

from typing import Protocol

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.rules.health.causes import Ending
from hvd_elastic_ext.launcher.rules.membership import membership
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Limits, Situation
from hvd_elastic_ext.launcher.state.roster import Worker


class Engine(Protocol):
    """What the driver asks at every look, and of every end of a process."""

    failure: JobFailed | None
    """Why the job cannot go on with this engine."""

    def decide(self, now: float, situation: Situation, limits: Limits) -> Decision:
        """Say who should form the next world now, or that nobody should yet."""

    def begun(self, now: float) -> None:
        """The world that was decided on is called now."""

    def look(self, now: float) -> None:
        """Do what is due, after a decision."""

    def next_look(self) -> float | None:
        """When something is due (mono)."""

    def judged(self, worker: Worker, ending: Ending, code: int) -> Ending:
        """Say why a process has ended, by what the engine knows beyond its exit code."""


class InPlace:
    """Horovod's: processes live through changes of their world."""

    failure: JobFailed | None = None

    def decide(self, now: float, situation: Situation, limits: Limits) -> Decision:
        return membership.decide(now, situation, limits)

    def begun(self, now: float) -> None:
        return

    def look(self, now: float) -> None:
        return

    def next_look(self) -> float | None:
        return None

    def judged(self, worker: Worker, ending: Ending, code: int) -> Ending:
        return ending
