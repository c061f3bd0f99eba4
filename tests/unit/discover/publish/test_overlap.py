"""The last survivor in the hosts file: what stock Horovod, looking once a second, can come to see."""

import math
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.pods.views import Key, PodView
from discover.publish.files import HostsFile, PublishFailed
from discover.publish.overlap import Overlap, OverlapLimits, PublishedHosts, RunningHosts, overlap, still_valid
from discover.verdicts.verdicts import Grade, Selection, Verdict
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Departure, Publication
from tests.support.clock import ManualClock


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


def play(reading: Reading, script: str) -> None:
    """Publish, one after the other: ``SECONDS PASS: HOSTS [dead NAMES] [leaving NAME@WHEN ...] = THE FILE``.

    ``restart`` opens the file again, as another run of the daemon does.
    """
    for step in script.split(";"):
        if step.strip() == "restart":
            reading.file.close()
            reading.open()
            continue
        after, _, rest = step.partition(":")
        rest, _, shown = rest.partition("=")
        rest, _, leaving = rest.partition("leaving")
        names, _, dead = rest.partition("dead")
        reading.dead |= set(dead.split())
        reading.departing |= {name: float(at) for name, _, at in (each.partition("@") for each in leaving.split())}
        assert reading.publish(*names.split(), after=float(after)) == shown.split(), step


def test_rule_20_if_all_hosts_drain_one_stays_until_a_new_one_was_beside_it_for_two_seconds(reading):
    play(reading, "0: a b = a b; 60: = a; 100: = a; 10: c = a c; 1.99: c = a c; 0.02: c = c")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=name)
        for name, script in {
            "hosts with one in common are published as they are": "0: a b = a b; 0: b c = b c",
            "the one kept is dropped when its pod is gone": "0: a = a; 10: = a; 1: dead a =",
            "the living are kept and not the dead": "0: a b c = a b c; 10: d dead a c = b d",
            "the one that has the most time left is kept": "0: a b c = a b c; 1: leaving a@1030 b@1120 c@1015 = b",
            "a silent host is kept only if there is no other": (
                "0: a b = a b; 1: c leaving b@1030 = b c; 0: c dead b = a c"
            ),
            "the kept host comes before new ones": "0: z = z; 10: a = z a",
            "two changes within a second are one to a reader": "0: a = a; 10: a b = a b; 0.1: b = a b; 2: b = b",
            "more hosts do not keep the survivor longer": "0: a = a; 10: b = a b; 1: b c = a b c; 1: b c = b c",
            "what an earlier run wrote counts as read": "0: a = a; restart; 0: b = a b; 2: b = b",
            "without a file everything is published as it is": "0: =; 0: a = a",
        }.items()
    ],
)
def test_the_file_shares_a_living_host_with_what_readers_still_go_by(reading, script):
    play(reading, script)


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
