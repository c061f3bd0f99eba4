"""What is known of a world with processes that cannot change worlds."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.rules.membership.world_change import Move


@dataclass(slots=True)
class EngineChange:
    """One change on its way. ``told_at`` and ``first_gone_at`` are times (mono)."""

    move: Move
    cause: str
    reason: str
    told_at: float | None = None
    first_gone_at: float | None = None


@dataclass(slots=True)
class Restarting:
    """How far the world is that ends for the next one."""

    announced: int
    """The newest generation that was begun."""
    change: EngineChange | None = None
    done: set[Life] = field(default_factory=set)
    """Members that have ended well by themselves."""
    ended: dict[Seat, float] = field(default_factory=dict)
    """When members of the world that is to change have ended for that (mono)."""
    blamed: bool = False
    """A process of the newest world is known to have failed."""
    errors: set[str] = field(default_factory=set)
    """What members of the newest world have failed with, by digest."""
    unexplained: list[float] = field(default_factory=list)
    """When worlds have ended within an hour though no process has failed (mono)."""
