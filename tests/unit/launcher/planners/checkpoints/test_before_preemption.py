"""What is done about an end of everything that is foreseen: a checkpoint at once, and one as late as it can be."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.planners.checkpoints.before_preemption import OVER_S, Call, decide, lead_s
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import ON_NOTICE
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.storing import Storing


@pytest.mark.parametrize(
    ("now", "by", "before", "expected"),
    [
        (100.0, None, 8.0, Call.NONE),
        (100.0, 220.0, 8.0, Call.NOW),
        (211.9, 220.0, 8.0, Call.NOW),
        (212.0, 220.0, 8.0, Call.LAST),
        (110.0, 220.0, 125.0, Call.LAST),
        (220.0 + OVER_S, 220.0, 8.0, Call.LAST),
        (220.1 + OVER_S, 220.0, 8.0, Call.NONE),
    ],
)
def test_the_last_one_begins_as_late_as_it_can_be_made_for_sure(
    now: float, by: float | None, before: float, expected: Call
) -> None:
    assert decide(now, by, before) is expected


def test_it_begins_the_sooner_the_longer_a_checkpoint_takes_and_its_commit_is_waited_for() -> None:
    assert lead_s(1.0) == 8.0
    assert lead_s(1.0, 4.0) == 16.0
    assert lead_s(40.0) == 125.0


def reclaimed(in_s: float | None) -> Storing:
    """Two hosts that are both needed, of which one is to go."""
    cluster = Storing(ON_NOTICE, limits=Limits(start=2, least=2, settle_s=0.1))
    cluster.answers = {(host, "load"): {} for host in "ab"}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.training) == 2)
    cluster.run(10.0)
    cluster.write_notice("b", "spot reclaim", in_s)
    return cluster


def test_where_less_than_training_needs_will_be_left_all_that_was_trained_is_durable_before() -> None:
    cluster = reclaimed(120.0)
    begun = cluster.clock.mono()
    cluster.run(119.0)
    first, last = [line["mono"] - begun for line in cluster.events("sealed")]
    assert first < 10.0
    assert 100.0 < last < 119.0
    assert cluster.stays[-1] is True
    assert False in cluster.stays


def test_who_does_not_say_when_it_goes_is_thought_to_leave_as_little_time_as_any_cloud() -> None:
    cluster = reclaimed(None)
    begun = cluster.clock.mono()
    cluster.run(29.0)
    first, last = [line["mono"] - begun for line in cluster.events("sealed")]
    assert first < 10.0
    assert 15.0 < last < 29.0


def test_a_notice_that_is_taken_back_has_everybody_go_on() -> None:
    cluster = reclaimed(30.0)
    cluster.until(lambda: True in cluster.stays and len(cluster.events("sealed")) == 2)
    assert None not in cluster.stays
    cluster.write_notice("b", "")
    cluster.run(2.0)
    assert cluster.stays[-2:] == [None, None]
    assert not cluster.events("not_sealed")


def test_where_time_is_short_the_first_one_is_the_last() -> None:
    cluster = reclaimed(15.0)
    cluster.run(14.0)
    assert len(cluster.events("sealed")) == 1
    assert all(cluster.stays)


def test_an_end_that_does_not_come_has_everybody_go_on() -> None:
    cluster = reclaimed(20.0)
    cluster.run(20.0 + OVER_S + 5.0)
    assert cluster.stays[-1] is None


def test_those_who_are_left_go_on_to_the_next_world() -> None:
    cluster = reclaimed(30.0)
    cluster.until(lambda: len(cluster.events("sealed")) == 2)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: sorted(cluster.world) == ["a", "c"])
    assert None in cluster.stays


def both_are_to_go(**how: float) -> Storing:
    """Two hosts that are to go, of which one would do; the last checkpoint is made, and nobody trains beyond it."""
    cluster = Storing(ON_NOTICE, limits=Limits(start=2, least=1, settle_s=0.1))
    cluster.answers = {(host, "load"): {} for host in "ab"}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.training) == 2)
    cluster.run(10.0)
    now = cluster.clock.mono()
    cluster.publish(HostSet(()), {host: ("spot reclaim", now + in_s) for host, in_s in how.items()})
    cluster.until(lambda: True in cluster.stays and len(cluster.events("sealed")) == 2, within=max(how.values()))
    return cluster


def test_who_is_left_when_the_first_one_goes_trains_no_further_than_the_last_checkpoint() -> None:
    cluster = both_are_to_go(a=25.0, b=30.0)
    worlds = len(cluster.events("resized"))
    cluster.kill("a")
    cluster.run(4.0)
    assert len(cluster.events("resized")) == worlds
    assert not cluster.training


def test_who_is_left_goes_on_when_its_end_does_not_come() -> None:
    cluster = both_are_to_go(a=25.0, b=30.0)
    cluster.kill("a")
    cluster.run(30.0 + OVER_S + 5.0)
    assert cluster.training


def test_a_world_that_goes_on_behind_the_last_checkpoint_has_another_one_made() -> None:
    """Its commit may be gone, or a newer one be known of: who trains again is held up again while there is time."""
    cluster = both_are_to_go(a=25.0, b=30.0)
    cluster.driver.job.checkpoints.stored = None
    cluster.kill("a")
    cluster.until(lambda: len(cluster.training) == 1, within=10.0)
    cluster.until(lambda: len(cluster.events("sealed")) > 2 and cluster.stays[-1] is True, within=29.0)


def test_where_enough_stay_nothing_is_made_for_a_host_that_goes() -> None:
    cluster = Storing(ON_NOTICE)
    cluster.answers = {(host, "load"): {} for host in "ab"}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.training) == 2)
    cluster.write_notice("b", "spot reclaim", 20.0)
    cluster.run(30.0)
    assert not cluster.events("sealed")


def test_a_commit_that_was_long_waited_for_has_the_last_one_begin_sooner() -> None:
    """Ranks that evaluate commit nothing for seconds."""
    begun = []
    for busy_s in (0.0, 6.0):
        cluster = Storing(ON_NOTICE, limits=Limits(start=2, least=2, settle_s=0.1))
        cluster.busy_s = busy_s
        cluster.answers = {(host, "load"): {} for host in "ab"}
        cluster.hosts(a=1, b=1)
        cluster.until(lambda: len(cluster.training) == 2)  # noqa: B023
        cluster.run(30.0)
        cluster.write_notice("b", "spot reclaim", 60.0)
        at = cluster.clock.mono()
        cluster.until(lambda: True in cluster.stays, within=60.0)  # noqa: B023
        begun.append(cluster.clock.mono() - at)
        cluster.run(60.0 - begun[-1])
        assert len(cluster.events("sealed")) == 2
    assert begun[1] < begun[0] - 5.0
