"""One checkpoint in progress, when the next one is due, and which commit it contains. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.launcher.checkpoints.schedule import Cadence
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId

AHEAD_S: Final = 0.5
"""Seconds. The named commit is this far ahead of the newest one, so that the message reaches all ranks before it."""

Name = tuple[int, int, int]
"""Of a commit: incarnation, generation, number."""


class Kept(NamedTuple):
    """The commit that a process keeps: its identity, its step, and its side of the memory.

    ``files``: a function of the user has saved the content there, and the other ranks keep only their own state.
    Training waited ``stall_s`` seconds for that.
    """

    commit: tuple[int, int, int, int]
    step: int
    side: int
    files: bool = False
    stall_s: float = 0.0


class Parts(NamedTuple):
    """Which of a commit's ``parts`` each member on one host writes; None: only its own state."""

    parts: int
    of: Mapping[ProcessId, int | None]


Work = Mapping[str, Parts]
"""The parts of each host that writes."""


@dataclass(slots=True)
class Attempt:
    """One checkpoint in progress. ``ranks``: the rank of each member of the world whose commit it contains."""

    generation: int
    ranks: Mapping[ProcessId, int]
    began: float
    wanted: Name
    stay: bool = False
    """No process trains beyond the commit, because the job ends with it."""
    at_rest: bool = False
    """No process trains, so it contains the commit in memory."""
    kept: dict[ProcessId, Kept] = field(default_factory=dict)
    misses: int = 0
    written: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    sealing: bool = False
    answer: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = math.inf
    kept_at: float = 0.0

    @property
    def stall_s(self) -> float:
        """Seconds that training waited for it, beyond the commit."""
        return max(kept.stall_s for kept in self.kept.values())

    @property
    def measurable(self) -> bool:
        """Whether training continues meanwhile, so that the cost can be measured."""
        return not (self.stay or self.at_rest)

    @property
    def hosts(self) -> dict[str, list[ProcessId]]:
        """The members on each host."""
        found: dict[str, list[ProcessId]] = {}
        for life in self.ranks:
            found.setdefault(life.seat.host, []).append(life)
        return found

    def work(self, *, apart: bool) -> Work:
        """What each host writes, if hosts share their storage. If they are ``apart``, each host writes a whole
        checkpoint, or none."""
        source = next((life for life, kept in self.kept.items() if kept.files), None)
        if source is None:
            return {
                host: Parts(
                    len(lives) if apart else len(self.ranks),
                    {life: place if apart else self.ranks[life] for place, life in enumerate(lives)},
                )
                for host, lives in self.hosts.items()
            }
        return {
            host: Parts(1, {life: 0 if life == source else None for life in lives})
            for host, lives in self.hosts.items()
            if not apart or host == source.seat.host
        }

    @property
    def root(self) -> str:
        """The host of the lowest rank, which completes the checkpoint."""
        return min(self.ranks.items(), key=lambda item: item[1])[0].seat.host


class Last(NamedTuple):
    """The newest checkpoint: when it was made, or this launcher began (mono), and its step."""

    at: float
    step: int


def due(now: float, step: int, last: Last, every: Cadence, interval_s: float) -> bool:
    """Whether another checkpoint is due. Pure. ``interval_s``: the interval that ``auto`` has chosen."""
    if every.notice_only or step <= last.step:
        return False
    if every.steps is not None:
        return step - last.step >= every.steps
    return now - last.at >= (interval_s if every.seconds is None else every.seconds)


def ahead(newest: Name, per_s: float, misses: int, *, age_s: float = 0.0) -> Name:
    """Choose a commit that no rank has passed when the message arrives. Pure.

    ``per_s``: commits a second; ``age_s``: how long ago ``newest`` was the newest. The checkpoint waits for the
    commit, so it is as near as possible; a missed one costs a message and another try.
    """
    margin = 1 + math.ceil(per_s * (age_s + AHEAD_S))
    return (newest[0], newest[1], newest[2] + margin * 2**misses)
