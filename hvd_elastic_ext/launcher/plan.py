"""Decisions of the launcher. Pure: facts in, a decision and its reason out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

World = Mapping[str, int]
"""Processes on each host, most senior host first."""


@dataclass(frozen=True, slots=True)
class Resize:
    """From one world to the next, for the journal. ``cause`` is one of a fixed few."""

    cause: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    size: int


def describe_resize(
    before: World | None, after: World, *, failed: Collection[str], cooled_down: Collection[str]
) -> Resize:
    """Say what a new world changes and why.

    ``before`` is None for the first world; ``failed`` names hosts on which a
    process ended without being told to since the last world formed, and
    ``cooled_down`` those whose block has run out since. A fault outweighs
    whatever else changed with it, because it is what interrupted training.
    """
    old = before or {}
    added = tuple(host for host in after if after[host] > old.get(host, 0))
    removed = tuple(host for host in old if old[host] > after.get(host, 0))
    size = sum(after.values())
    if before is None:
        cause = "start"
    elif failed:
        cause = "worker failed"
    elif added and not removed and all(host in cooled_down for host in added):
        cause = "cooldown over"
    elif added and removed:
        cause = "hosts changed"
    elif added:
        cause = "hosts added"
    elif removed:
        cause = "hosts removed"
    else:
        cause = "formed again"
    return Resize(cause, added, removed, size)


def must_tell(
    *,
    now: float,
    generation: int,
    actual: World,
    desired: World,
    told: tuple[int, World, float] | None,
    again_after_s: float,
) -> tuple[bool, str]:
    """Decide whether workers have to hear of ``desired``: ``(tell, reason)``.

    ``told`` is what they were told last: in which generation, which world, and
    when (mono). Desired is compared with actual at every look, so that a lost
    message is repaired by a later look and not lost for good.
    """
    if not actual:
        return False, "there is no world yet"
    if dict(desired) == dict(actual):
        return False, "the world is as desired"
    if told is None or told[0] != generation or dict(told[1]) != dict(desired):
        return True, "workers do not know of this world"
    if now - told[2] >= again_after_s:
        return True, f"workers were told {again_after_s:g} s ago and have not acted"
    return False, "workers were told"
