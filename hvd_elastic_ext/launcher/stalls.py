"""Who stands still though it beats: ``(now, members, limit) → stall with its reason``. Pure.

A process beats from a thread of its own, whatever its main thread does. That a
main thread gets on shows in what it counts: steps, commits, checks and
``elastic.heartbeat()``. One that waits for the others in a collective does not
get on either, and is not to blame for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_elastic_ext.launcher.rendezvous import Life


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a world; ``rank`` is -1 before it has one. ``moved_at``: when its count last grew (mono)."""

    life: Life
    rank: int
    moved_at: float
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """``lag``: who is waited for, empty if all wait for one another. ``since_s``: for how long the last of them has."""

    lag: tuple[Member, ...]
    waiting: int
    since_s: float
    reason: str


def stall(now: float, members: Sequence[Member], limit: float) -> Stall | None:
    """Say who holds a world up.

    Somebody who is not waiting has not got on for ``limit`` seconds while
    somebody waits for it; or nobody has got on, waiting or not. A rank that does
    something else for long, and says so by ``heartbeat()``, holds nobody up.
    """
    late = [member for member in members if now - member.moved_at >= limit]
    lag = tuple(member for member in late if not member.waiting)
    # They cannot have waited for longer than the others have stood still; nor do they wait if they get on.
    waiting = sum(member.waiting and now - member.moved_at >= limit / 2 for member in members)
    if not late or (len(late) < len(members) and not (lag and waiting)):
        return None
    since = min(now - member.moved_at for member in lag or late)
    return Stall(lag, waiting, since, _reason(lag, waiting, of=len(members), since=since))


def absence(now: float, absent: Sequence[Member], limit: float, *, waiting: int) -> Stall | None:
    """Say for whom the next world waits, of its members that have not come to it; ``waiting`` have.

    Those who have not got on for ``limit`` seconds, and do not wait for somebody themselves.
    """
    late = tuple(member for member in absent if now - member.moved_at >= limit and not member.waiting)
    if not late:
        return None
    since = min(now - member.moved_at for member in late)
    names = ", ".join(str(member.life.seat) for member in late[:4])
    more = f" and {len(late) - 4} more" if len(late) > 4 else ""
    return Stall(late, waiting, since, f"the next world waits for {names}{more}, no progress for {since:.0f} s")


def _reason(lag: Sequence[Member], waiting: int, *, of: int, since: float) -> str:
    if not lag:
        return f"all {of} ranks have waited for one another for {since:.0f} s"
    names = ", ".join(f"{member.rank} on {member.life.seat}" for member in lag[:4])
    more = f" and {len(lag) - 4} more" if len(lag) > 4 else ""
    others = f"{waiting} of {of} wait for it" if waiting else "nobody waits for it"
    return f"no progress for {since:.0f} s of rank {names}{more}: {others}"
