"""When a sleeping job wakes, and when a failed one starts again."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Strike
from hvd_elastic_ext.launcher.job.job import pause_before_restart
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from hvd_elastic_ext.launcher.sleep.sleep_policy import SleepAction, SleepFacts, decide, settle_s, slots_there

LIMITS = WorldLimits(start=2, least=2, settle_s=3.0)


@pytest.mark.parametrize(
    ("facts", "max_wait_s", "act", "again_at"),
    [
        (SleepFacts(90.0, 1), None, SleepAction.SLEEP_ON, None),
        (SleepFacts(90.0, 1), 20.0, SleepAction.SLEEP_ON, 110.0),
        (SleepFacts(80.0, 1), 20.0, SleepAction.END, None),
        (SleepFacts(90.0, 1, next_release=105.0), 20.0, SleepAction.SLEEP_ON, 105.0),
        (SleepFacts(90.0, 2), None, SleepAction.SLEEP_ON, 103.0),
        (SleepFacts(90.0, 2, enough_since=98.0), None, SleepAction.SLEEP_ON, 101.0),
        (SleepFacts(90.0, 2, enough_since=97.0), None, SleepAction.WAKE, None),
        (SleepFacts(80.0, 2, enough_since=99.0), 20.0, SleepAction.SLEEP_ON, 102.0),
        (SleepFacts(90.0, 2, enough_since=90.0, end_reason="stopped by SIGTERM"), None, SleepAction.END, None),
    ],
)
def test_it_wakes_for_enough_that_stay_a_while(
    facts: SleepFacts, max_wait_s: float | None, act: SleepAction, again_at: float | None
) -> None:
    decision = decide(100.0, facts, LIMITS, max_wait_s)
    assert (decision.act, decision.again_at) == (act, again_at)


def test_sizes_that_are_not_allowed_are_not_enough() -> None:
    limits = WorldLimits(least=2, allowed=(4, 8), settle_s=0.0)
    assert decide(1.0, SleepFacts(0.0, 3), limits, None).act is SleepAction.SLEEP_ON
    assert decide(1.0, SleepFacts(0.0, 5, enough_since=0.0), limits, None).act is SleepAction.WAKE


def test_as_many_as_the_smallest_world_needs_are_enough_also_if_the_first_one_needed_more() -> None:
    limits = WorldLimits(start=4, least=2, settle_s=0.0)
    assert decide(1.0, SleepFacts(0.0, 2, enough_since=0.0), limits, None).act is SleepAction.WAKE


def test_hosts_that_are_blocked_do_not_count() -> None:
    hosts = HostSet((Host("a", 2), Host("c", 8)))
    strike = Strike.of(Cause.UNREACHABLE, Host("c", 8), None, at=0.0)
    assert strike is not None
    ledger = HealthLedger().struck(0.0, strike, (10.0, 300.0))
    assert slots_there(1.0, hosts, ledger) == 2
    assert slots_there(11.0, hosts, ledger) == 10


def test_hosts_that_wake_it_in_vain_have_to_stay_ever_longer() -> None:
    assert [settle_s(3.0, times) for times in range(7)] == [3.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    assert settle_s(400.0, 1) == 400.0


def test_a_failure_is_followed_by_ever_longer_pauses_as_often_as_is_allowed() -> None:
    def pauses(failure: JobFailed, policy: str, limit: int = 6) -> list[float | None]:
        return [pause_before_restart(failure, number, policy=policy, limit=limit) for number in range(8)]

    assert pauses(JobFailed("x"), "OnFailure") == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, None, None]
    assert pauses(JobFailed("x"), "OnFailure", 8)[-1] == 360.0
    for failure in (Interrupted(15, "x"), Asleep("x")):
        assert set(pauses(failure, "OnFailure")) == {None}
    assert set(pauses(JobFailed("x"), "Never")) == {None}
