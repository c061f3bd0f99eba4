"""Applies the limits of job, cluster and time to a policy's wish: ``(now, seen, limits, memory) -> decision``.

A policy wishes what is best by what it has seen. Here is what it need not know: how many hosts are allowed, that a
change costs time, that a wish must last, that a cluster may not give what was asked for, and that nobody wants a size
that changes back and forth. So every policy has the same limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from hvd_elastic_ext.launcher.scaling.observations import STEPS, Observations, Wish

HOUR_S: Final = 3600.0
BACK_S: Final = 3600.0
BACK: Final = 2
"""How often within :data:`BACK_S` a policy with a model may return to a size that it has left."""


UNKNOWN_GAIN: Final = 0.1
"""Assumed gain of a change, as a share of the present work, if the policy does not know it."""


class Policy(Protocol):
    """``least`` and ``most``: allowed sizes."""

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish: ...


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """What a policy may not do, whatever it wishes."""

    least: int = 1
    """Fewest hosts."""
    most: int = 1
    """Most hosts."""
    changes: int = 6
    """Most changes of size in any hour."""
    up_s: float = 0.0
    """How long wishes must be above the present size; then the smallest of them is used."""
    down_s: float = 300.0
    """How long wishes must be below the present size; then the largest of them is used."""
    horizon_s: float = 600.0
    """Within this time a change must gain more than its time without steps costs."""
    give_up_s: float = 300.0
    """How long requested hosts may be missing; then the request is reduced to the hosts that came."""
    retry_s: float = 600.0
    """How long it stays reduced."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the requested size."""

    at: float
    """When (mono)."""
    before: int
    after: int
    trial: bool = False
    """Only to measure the speed there."""


@dataclass(frozen=True, slots=True)
class Memory:
    """State between decisions."""

    wishes: tuple[tuple[float, int], ...] = ()
    """Wished size by time, for the length of a window."""
    changes: tuple[Change, ...] = ()
    short_since: float | None = None
    """Since when fewer hosts than requested have been there."""
    ceiling: tuple[int, float] | None = None
    """The most hosts that the cluster gives, and until when that is assumed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many hosts to ask for."""

    size: int
    """The same as before if ``change`` is False."""
    reason: str
    """For the journal and users."""
    change: bool = False
    trial: bool = False
    """The change is a trial, to measure the speed at that size; the reason says so."""


def decide(
    now: float, policy: Policy, seen: Observations, limits: ScaleLimits, memory: Memory
) -> tuple[Decision, Memory]:
    """Decide the number of hosts to ask for. It is never outside ``limits``, and changes at most as often as they
    allow.

    A size outside of ``least`` and ``most`` is left at once, and a request that the cluster does not fulfil is reduced:
    these do not count as changes.
    """
    memory = _noted(now, seen, limits, memory)
    most = limits.most if memory.ceiling is None else max(limits.least, min(limits.most, memory.ceiling[0]))
    asked = max(limits.least, min(limits.most, seen.wanted))
    if asked != seen.wanted:
        return Decision(asked, f"{seen.wanted} hosts are outside of {limits.least} to {limits.most}", True), memory
    if asked > most:
        return Decision(most, f"no more than {most} of {asked} hosts came in {limits.give_up_s:g} s", True), replace(
            memory, short_since=None, wishes=()
        )
    if seen.size != asked:
        return Decision(asked, f"{seen.size} of {asked} hosts train"), replace(memory, wishes=())
    wish = policy.wish(now, seen, limits.least, most)
    if (tried := _trial_under_way(asked, seen, memory)) is not None and wish.size == asked:
        wish = replace(wish, reason=f"a trial ({tried}): {wish.reason}")
    decision, after = _followed(now, wish, asked, most, seen, limits, memory)
    if not decision.change and wish.otherwise is not None:  # not where a trial has led it
        return _followed(now, wish.otherwise, asked, most, seen, limits, memory)
    return decision, after


def _followed(
    now: float, wish: Wish, asked: int, most: int, seen: Observations, limits: ScaleLimits, memory: Memory
) -> tuple[Decision, Memory]:
    """Return the decision for a wish."""
    size, unsteady, memory = _stabilized(now, max(limits.least, min(most, wish.size)), asked, limits, memory)
    if size == asked:
        return Decision(asked, f"{wish.reason}; {unsteady}" if unsteady else wish.reason), memory
    held_back = (
        _too_often(now, limits, memory, wish)
        or _came_back(now, size, asked, wish, memory)
        or _not_earned(seen, limits, wish)
    )
    if held_back:
        return Decision(asked, f"{wish.reason}; {held_back}"), memory
    change = Change(now, asked, size, trial=wish.trial)
    why = f"a trial of {STEPS} steps: {wish.reason}" if wish.trial else wish.reason
    decision = Decision(size, why, True, trial=wish.trial)
    return decision, replace(memory, changes=(*memory.changes, change), wishes=())


def _trial_under_way(asked: int, seen: Observations, memory: Memory) -> str | None:
    """Which size a trial came from, as long as too few steps are measured to judge it; None if there is no trial."""
    last = memory.changes[-1] if memory.changes else None
    here = seen.speeds.get(seen.size)
    if last is None or not last.trial or last.after != asked or (here is not None and here.measured):
        return None
    return f"{last.before} host{'' if last.before == 1 else 's'} before"


def _noted(now: float, seen: Observations, limits: ScaleLimits, memory: Memory) -> Memory:
    """Drop old entries; note whether requested hosts are missing."""
    ceiling = memory.ceiling if memory.ceiling is not None and now < memory.ceiling[1] else None
    changes = tuple(each for each in memory.changes if now < each.at + max(HOUR_S, BACK_S))
    if seen.size >= seen.wanted:
        return replace(memory, changes=changes, ceiling=ceiling, short_since=None)
    since = now if memory.short_since is None else memory.short_since
    if now >= since + limits.give_up_s:
        ceiling = max(1, seen.size), now + limits.retry_s
    return replace(memory, changes=changes, ceiling=ceiling, short_since=since)


def _stabilized(now: float, size: int, asked: int, limits: ScaleLimits, memory: Memory) -> tuple[int, str, Memory]:
    """Return the size that all wishes of the window allow, and why it is not ``size`` yet."""
    longest = max(limits.up_s, limits.down_s)
    wishes = (*memory.wishes, (now, size))
    while len(wishes) > 1 and now - wishes[1][0] >= longest:
        wishes = wishes[1:]  # the first one left covers the window
    memory = replace(memory, wishes=wishes)
    window_s = limits.up_s if size > asked else limits.down_s
    if size == asked or not window_s:
        return size, "", memory
    if now - wishes[0][0] < window_s:
        return asked, f"for {now - wishes[0][0]:.0f} of {window_s:g} s", memory
    first = max((at for at, _ in wishes if now - at >= window_s), default=now)
    inside = [was for at, was in wishes if at >= first]
    chosen = max(asked, min(inside)) if size > asked else min(asked, max(inside))
    return chosen, "" if chosen != asked else f"not for all of {window_s:g} s", memory


def _too_often(now: float, limits: ScaleLimits, memory: Memory, wish: Wish) -> str:
    """Return why there were too many changes, or "". A trial must leave one change for the return."""
    count = sum(now < each.at + HOUR_S for each in memory.changes)
    if wish.trial and count and count + 1 == limits.changes:
        return f"{count} changes in the last hour leave one, which is not for a trial"
    return f"{count} changes in the last hour are as many as are allowed" if count >= limits.changes else ""


def _came_back(now: float, size: int, asked: int, wish: Wish, memory: Memory) -> str:
    """Return why a return to an earlier size is refused, or "". If a policy knows its gain, changes are trials or
    corrections, and few of them in an hour are enough."""
    if wish.gain is None:
        return ""
    size = asked if wish.trial else size  # the way back from a trial
    left = [each.at for each in memory.changes if each.before == size and now < each.at + BACK_S]
    again = [each for each in memory.changes if each.after == size and left and each.at > left[0]]
    return f"{size} was left within the last hour, and returned to {BACK} times" if len(again) >= BACK else ""


def _not_earned(seen: Observations, limits: ScaleLimits, wish: Wish) -> str:
    """Return why a change does not pay, or "": within the horizon it must gain more work than is lost while training
    stops."""
    gain = UNKNOWN_GAIN if wish.gain is None else wish.gain
    if seen.resize_s <= gain * limits.horizon_s:
        return ""
    return f"a change stops training for {seen.resize_s:.1f} s, which {limits.horizon_s:g} s do not bring back"
