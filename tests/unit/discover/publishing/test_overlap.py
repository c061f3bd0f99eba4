"""The last survivor in the hosts file: what stock Horovod, looking once a second, can come to see."""

import math
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.publishing.files import HostsFile, PublishFailed
from discover.publishing.overlap import (
    Overlap,
    OverlapLimits,
    PublishedHosts,
    RunningHosts,
    overlap,
    still_valid,
)
from discover.selection.objects import Key, PodView
from discover.selection.selection import Selection
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.clock import ManualClock
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Departure, Publication


def hosts(*names: str) -> HostSet:
    return HostSet(tuple(Host(name, 1) for name in names))


class Reading:
    """A hosts file whose daemon's clock, and whose pods' lives, are the test's."""

    def __init__(self, path, *, limits: OverlapLimits | None = None) -> None:
        self.path = path / "hosts"
        self.clock = ManualClock(wall=1000.0)
        self.dead: set[str] = set()
        self.sequence = 0
        self.limits = limits
        self.departing: dict[str, float | None] = {}
        self.open()

    def open(self) -> None:
        self.file = HostsFile(
            self.path,
            overlap=Overlap(alive=lambda host: host.name not in self.dead, clock=self.clock, limits=self.limits),
        )

    def publish(self, *names: str, after: float = 0.0) -> list[str]:
        self.clock.advance(after)
        self.sequence += 1
        departures = tuple(Departure(name, "drained", at) for name, at in self.departing.items() if name not in names)
        self.file.publish(Publication("life", self.sequence, hosts(*names), departures))
        return [line.partition(":")[0] for line in self.path.read_text().splitlines()]


@pytest.fixture
def reading(tmp_path):
    made = Reading(tmp_path, limits=OverlapLimits(least=2.0, most=2.0))
    yield made
    made.file.close()


def test_rule_20_if_all_hosts_drain_one_stays_until_a_new_one_was_beside_it_for_two_seconds(reading):
    assert reading.publish("a", "b") == ["a", "b"]
    assert len(survivor := reading.publish(after=60.0)) == 1
    assert reading.publish(after=100.0) == survivor
    assert reading.publish("c", after=10.0) == [*survivor, "c"]
    assert reading.publish("c", after=1.99) == [*survivor, "c"]
    assert reading.publish("c", after=0.02) == ["c"]


def test_hosts_that_have_one_in_common_are_published_as_they_are(reading):
    reading.publish("a", "b")
    assert reading.publish("b", "c") == ["b", "c"]


def test_the_one_kept_is_dropped_when_its_pod_is_gone_too(reading):
    reading.publish("a")
    assert reading.publish(after=10.0) == ["a"]
    reading.dead = {"a"}
    assert reading.publish(after=1.0) == []


def test_the_living_are_kept_and_not_the_dead(reading):
    reading.publish("a", "b", "c")
    reading.dead = {"a", "c"}
    assert reading.publish("d", after=10.0) == ["b", "d"]


def test_the_one_that_has_the_most_time_left_is_kept(reading):
    reading.publish("a", "b", "c")
    reading.departing = {"a": 1030.0, "b": 1120.0, "c": 1015.0}
    assert reading.publish(after=1.0) == ["b"]


def test_a_silent_host_is_kept_only_if_there_is_no_other(reading):
    reading.publish("a", "b")
    reading.departing = {"b": 1030.0}
    assert reading.publish("c", after=1.0) == ["b", "c"]
    reading.dead = {"b"}
    assert reading.publish("c") == ["a", "c"]


def test_the_kept_host_comes_before_new_ones(reading):
    reading.publish("z")
    assert reading.publish("a", after=10.0) == ["z", "a"]


def test_two_changes_within_a_readers_second_are_one_to_it(reading):
    reading.publish("a")
    reading.publish("a", "b", after=10.0)
    assert reading.publish("b", after=0.1) == ["a", "b"], "a reader may have seen nothing but a so far"
    assert reading.publish("b", after=2.0) == ["b"]


def test_more_hosts_that_come_meanwhile_do_not_keep_the_survivor_longer(reading):
    reading.publish("a")
    reading.publish("b", after=10.0)
    reading.publish("b", "c", after=1.0)
    assert reading.publish("b", "c", after=1.0) == ["b", "c"]


def test_what_an_earlier_run_wrote_counts_as_read(reading):
    reading.publish("a")
    reading.file.close()
    reading.open()
    assert reading.publish("b") == ["a", "b"]
    assert reading.publish("b", after=2.0) == ["b"]


def test_without_a_file_everything_is_published_as_it_is(reading):
    assert reading.publish() == []
    assert reading.publish("a") == ["a"]


def test_time_begins_when_the_file_was_written_and_not_with_the_first_attempt(reading, monkeypatch):
    reading.publish("a")

    def full(self, publication):
        raise PublishFailed("hosts", "no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(HostsFile, "publish", full)
        for _ in range(5):
            with pytest.raises(PublishFailed):
                reading.publish("b", after=10.0)
    assert reading.publish("b", after=1.0) == ["a", "b"]
    assert reading.publish("b", after=1.0) == ["a", "b"]
    assert reading.publish("b", after=1.1) == ["b"]


def test_without_a_deadline_they_stand_together_for_longer(tmp_path):
    reading = Reading(tmp_path)
    reading.publish("a")
    assert reading.publish("b", after=60.0) == ["a", "b"]
    assert reading.publish("b", after=9.9) == ["a", "b"]
    assert reading.publish("b", after=0.1) == ["b"]
    reading.file.close()


@pytest.mark.parametrize(("left", "stand"), [(math.inf, 10.0), (30.0, 10.0), (12.0, 6.0), (3.0, 2.0), (-5.0, 2.0)])
def test_the_time_together_is_half_of_what_is_left_between_two_bounds(left, stand):
    assert OverlapLimits().stand(left) == stand


@pytest.mark.parametrize("limits", [{"least": 1.0}, {"least": 5.0, "most": 4.0}])
def test_times_that_a_reader_can_miss_are_refused(limits):
    with pytest.raises(ValueError, match="stand together"):
        OverlapLimits(**limits)


NAMES = st.sets(st.sampled_from("abcdef"), max_size=4)
STEP = st.tuples(st.floats(0.0, 3.0), NAMES, NAMES)


@given(steps=st.lists(STEP, min_size=1, max_size=25), phase=st.floats(0.0, 0.999))
def test_a_reader_that_looks_once_a_second_never_sees_two_lists_with_nobody_in_common(steps, phase):
    """Unless all of the earlier one are dead. ``steps``: seconds that pass, hosts wanted, pods that die."""
    now, shown, dead = 0.0, (), set()
    for passes, wanted, dying in steps:
        now += passes
        dead |= dying
        stays = hosts(*sorted(wanted - dead))
        chosen, _ = overlap(now, shown, stays, stand=2.0, alive=_living(dead), left={})
        shown = (*shown, PublishedHosts(chosen, now))
        looked = [_seen(shown, at) for at in _seconds(phase, now)]
        if len(looked) > 1 and (before := set(looked[-2].names) - dead):
            assert before & set(looked[-1].names)
        assert set(chosen.names) >= set(stays.names)


def _living(dead: set[str]) -> Callable[[Host], bool]:
    return lambda host: host.name not in dead


def _seconds(phase: float, now: float) -> list[float]:
    """The last two moments at which the reader looked."""
    last = math.floor(now - phase) + phase
    return [at for at in (last - 1.0, last, now) if at >= 0.0]


def _seen(shown: tuple[PublishedHosts, ...], at: float) -> HostSet:
    return next((each.hosts for each in reversed(shown) if each.since <= at), HostSet())


def test_the_past_is_forgotten_once_a_reader_must_have_looked():
    past = tuple(PublishedHosts(hosts(name), since) for name, since in (("a", 0.0), ("b", 10.0), ("c", 11.5)))
    assert [each.hosts.names[0] for each in still_valid(11.9, past, stand=2.0)] == ["a", "b", "c"]
    assert [each.hosts.names[0] for each in still_valid(12.0, past, stand=2.0)] == ["b", "c"]
    assert [each.hosts.names[0] for each in still_valid(99.0, past, stand=2.0)] == ["c"]


def verdict(name: str, uid: str, *, phase: str = "Running", host: str = "") -> Verdict:
    named = Host(host, 1, uid) if host else None
    return Verdict(PodView(Key("ns", name), uid, "1", phase=phase), Grade.UNFIT, "not ready", named)


@pytest.mark.parametrize(
    ("host", "there"),
    [
        (Host("w-0.job.ns.svc", 1, "u0"), True),
        (Host("w-0.job.ns.svc", 1, "of an earlier pod"), False),
        (Host("w-0.job.ns.svc", 1), True),
        (Host("10.0.0.7", 1), True),
        (Host("w-1.job.ns.svc", 1, "u1"), False),
        (Host("w-9.job.ns.svc", 1), False),
    ],
)
def test_a_host_is_there_as_long_as_its_own_pod_is_and_has_not_ended(host, there):
    selection = Selection(
        (
            verdict("w-0", "u0"),
            verdict("w-1", "u1", phase="Failed", host="w-1.job.ns.svc"),
            verdict("w-2", "u2", host="10.0.0.7"),
        )
    )
    assert (host in RunningHosts(selection)) is there


def test_the_history_of_fast_changes_takes_little_memory(tmp_path):
    many = hosts(*(f"w{number}" for number in range(1000))).hosts
    file = HostsFile(tmp_path / "hosts", overlap=Overlap(alive=lambda host: True, clock=ManualClock()))

    def publish(number: int) -> None:
        file.publish(Publication("life", number, HostSet(many[number:])))

    publish(1)
    tracemalloc.start()
    for number in range(2, 102):
        publish(number)
    taken = tracemalloc.get_traced_memory()[0] / 100
    tracemalloc.stop()
    file.close()
    assert taken < 12_000, f"{taken:.0f} bytes for each set of hosts"
