"""A job that sleeps: when it wakes, and when it has waited long enough. Pure: ``(now, facts, limits) → decision``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.hosts import HostSet

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.health.ledger import HealthLedger
    from hvd_elastic_ext.launcher.membership.world_change import WorldLimits


FIRST_SETTLE_S: Final = 30.0
"""How long hosts must stay if they have just woken a job that slept again. It doubles each time, up to
:data:`MAX_SETTLE_S`.
"""
MAX_SETTLE_S: Final = 300.0


class SleepAction(Enum):
    """What a sleeping job does."""

    SLEEP_ON = "sleep on"
    WAKE = "wake"
    END = "end"


@dataclass(frozen=True, slots=True)
class SleepFacts:
    """What is known of one sleep."""

    since: float
    """When it began (mono)."""
    slots: int
    """Those that may work now."""
    enough_since: float | None = None
    """Since when they have been enough (mono)."""
    end_reason: str | None = None
    """Why it is to end, if it is."""
    next_release: float | None = None
    """When a block ends (mono), and there may be more slots."""


@dataclass(frozen=True, slots=True)
class SleepDecision:
    """A decision. ``again_at``: when time alone may change it (mono)."""

    act: SleepAction
    reason: str
    again_at: float | None = None


def slots_there(now: float, hosts: HostSet, ledger: HealthLedger) -> int:
    """Count the slots of published hosts that are not blocked."""
    return sum(len(ledger.usable_slots(now, host)) for host in hosts)


def settle_s(usual_s: float, idle_wakes: int) -> float:
    """How long enough slots must stay. ``idle_wakes``: how often hosts that are still there woke the job without
    training.
    """
    return max(usual_s, pause_after(idle_wakes, first=FIRST_SETTLE_S, longest=MAX_SETTLE_S)) if idle_wakes else usual_s


def decide(now: float, facts: SleepFacts, limits: WorldLimits, max_wait_s: float | None) -> SleepDecision:
    """Decide what a sleeping job does. It wakes once the slots that it needs have stayed for a while."""
    if facts.end_reason is not None:
        return SleepDecision(SleepAction.END, facts.end_reason)
    ends = None if max_wait_s is None else facts.since + max_wait_s
    if limits.size(facts.slots, begun=True):
        since = now if facts.enough_since is None else facts.enough_since
        there = f"slots usable: {facts.slots}, needed: {limits.least}"
        if now >= since + limits.settle_s:
            return SleepDecision(SleepAction.WAKE, there)
        return SleepDecision(SleepAction.SLEEP_ON, there, since + limits.settle_s)
    if ends is not None and now >= ends:
        return SleepDecision(
            SleepAction.END, f"slots needed: {limits.least}; in --max-wait-time {max_wait_s:g} s they never were there"
        )
    times = [at for at in (ends, facts.next_release) if at is not None and at > now]
    return SleepDecision(
        SleepAction.SLEEP_ON, f"slots usable: {facts.slots}, needed: {limits.least}", min(times, default=None)
    )
