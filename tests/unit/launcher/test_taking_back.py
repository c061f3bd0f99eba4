"""Training goes on while nobody hears of it: what the launcher does when it hears of it again, and until then."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.isolation import alone
from tests.unit.launcher.simulated import Cluster, Rules
from tests.unit.launcher.test_driver import causes, running


def lives(cluster: Cluster) -> dict[str, int]:
    """Which life each host's process is in."""
    return {process.host: process.life for process in cluster.training}


def undisturbed(cluster: Cluster) -> bool:
    """Whether nobody was blamed, ended or interrupted since the start."""
    found = [cluster.events(name) for name in ("fenced", "struck", "exited")]
    return not any(found) and causes(cluster) == ["start"] and not cluster.told["update"]


# --- the launcher's own link


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        ([100.0, 100.0], False),
        ([89.0, 99.0], False),  # one that speaks could go on without the silent one
        ([89.9, 90.7], True),  # no beat of the other one has come either
        ([89.9], True),
        ([20.0, 45.0], True),
        ([20.0, 39.9], False),  # too long: they are gone
        ([], False),
    ],
)
def test_a_launcher_is_alone_if_no_host_of_the_world_is_heard_and_not_for_ever(
    heard: list[float], *, expected: bool
) -> None:
    assert alone(100.0, heard, limit_s=10.0, grace_s=60.0) is expected


def test_without_any_grace_hosts_are_gone_when_they_are_silent() -> None:
    assert not alone(100.0, [89.0, 89.5], limit_s=10.0, grace_s=0.0)


def test_a_launcher_that_was_cut_off_for_a_while_disturbs_nobody_who_trains() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    before = lives(cluster)
    cluster.cut.update("abc")
    cluster.run(12.0)
    cluster.cut.clear()
    cluster.run(60.0)
    assert undisturbed(cluster)
    assert lives(cluster) == before
    (isolated,) = cluster.events("isolated")
    assert isolated["hosts"] == ["a", "b", "c"]


def test_hosts_that_come_back_one_after_the_other_are_all_taken_back() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    before = lives(cluster)
    for name in "abc":
        cluster.cut.add(name)
        cluster.run(0.3)
    cluster.run(20.0)
    for name in "abc":
        cluster.disconnect(name)
        cluster.cut.discard(name)
    for name in "abc":
        cluster.run(3.0)
        cluster.reconnect(name)
    cluster.run(60.0)
    assert undisturbed(cluster)
    assert lives(cluster) == before


def test_a_host_that_does_not_come_back_with_the_others_is_cut_off_then() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    cluster.cut.update("abc")
    cluster.run(15.0)
    cluster.cut.difference_update("ab")
    cluster.run(9.0)
    assert not cluster.events("fenced")
    cluster.until(lambda: cluster.world == ["a", "b"], within=8.0)
    assert [event["host"] for event in cluster.events("fenced")] == ["c"]


@pytest.mark.parametrize("boot_s", [4.0, 20.0])
def test_a_newcomer_that_is_heard_is_no_reason_to_cut_off_those_who_train(boot_s: float) -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.boot_s["d"] = boot_s
    cluster.hosts(a=1, b=1, d=1)
    cluster.run(0.5)
    cluster.cut.update("ab")
    cluster.run(30.0)
    assert not cluster.events("fenced")
    cluster.cut.clear()
    cluster.until(lambda: sorted(cluster.world) == ["a", "b", "d"], within=12.0)
    assert causes(cluster) == ["start", "hosts added"]
    assert lives(cluster) == {"a": 1, "b": 1, "d": 1}


def test_ranks_that_nobody_saw_getting_on_are_not_taken_to_stand_still() -> None:
    cluster = running("a", "b", rules=Rules(progress_timeout_s=12.0, restart_stalled=True))
    cluster.run(3.0)
    cluster.agents["b"][0].wedged = True  # it waits for others when it is heard last
    cluster.run(2.0)
    cluster.cut.update("ab")
    cluster.agents["b"][0].wedged = False
    cluster.run(20.0)
    cluster.cut.clear()
    cluster.run(30.0)
    assert not cluster.events("stalled")
    assert undisturbed(cluster)


def test_hosts_that_are_really_gone_are_replaced_when_the_orphans_grace_is_over() -> None:
    cluster = running("a", "b", rules=Rules(orphan_grace_s=40.0))
    cluster.run(2.0)
    cluster.cut.update("ab")
    cluster.dead.update("ab")
    cluster.run(12.0)
    cluster.hosts(c=1, d=1)
    cluster.run(23.0)
    assert cluster.driver.station.generation == 1
    meeting = cluster.driver.station.rendezvous
    waited = cluster.until(lambda: meeting.formed and {life.seat.host for life in meeting.members} == {"c", "d"})
    assert 35.0 + waited > 40.0
    assert {event["host"] for event in cluster.events("fenced")} == {"a", "b"}


def test_the_only_host_may_be_silent_for_as_long() -> None:
    cluster = running("a", rules=Rules(orphan_grace_s=40.0))
    cluster.run(2.0)
    cluster.cut.add("a")
    cluster.run(35.0)
    cluster.cut.clear()
    cluster.run(10.0)
    assert undisturbed(cluster)
    cluster.cut.add("a")
    cluster.until(lambda: cluster.events("fenced"), within=42.0)
