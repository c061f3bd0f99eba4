"""Whether a watch that looks well still tells all there is."""

import threading

import pytest

from discover.pods.views import pod_view
from discover.watch.audit import LARGE_JOB, SMALL_JOB, WATCH_LAG, WatchAudit, find_missed, store_interval
from discover.watch.collection import RequestKind
from discover.watch.reflector import WatchStatus
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from tests.unit.discover.scripted_collection import Scripted, listing, pod


def compared(*pods):
    return [pod_view(each) for each in pods]


def known(*pods):
    return {view.key: view for view in map(pod_view, pods)}


A, B = pod("a", 3), pod("b", 4)
MISSED = "the watch missed a change: it did not tell of "
AHEAD = ApiError.of_status({"message": "Too large resource version"}, code=504)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([A], "of the end of pod n/b"),
        ([A, B, pod("c", 20)], "of pod n/c"),
        ([A, pod("b", 20)], "of pod n/b"),
        ([A, pod("b", 4, uid="new")], "of pod n/b"),
    ],
)
def test_what_a_list_says_and_the_watch_does_not_is_missed(listed, words):
    assert words in find_missed(compared(*listed), "50", known=known(A, B), known_version="10")


@pytest.mark.parametrize("version", ["50", "51", "a"], ids=["as far", "further", "no number"])
def test_a_watch_that_is_not_behind_the_list_has_missed_nothing(version):
    assert find_missed([], "50", known=known(A, B), known_version=version) == ""


@pytest.mark.parametrize(("pods", "seconds"), [(0, 60.0), (LARGE_JOB, 60.0), (10_000, 600.0)])
def test_the_more_pods_the_less_often_the_store_lists_them(pods, seconds):
    assert store_interval(pods) == seconds


class Watched:
    """A reflector that stands where the test put it."""

    def __init__(self, *pods, version: str = "10") -> None:
        self.status = WatchStatus(watching=True, last_event_at=0.0)
        self.there = known(*pods)
        self.version = version
        self.confirmed = 0
        self.relists: list[str] = []

    def known(self):
        return dict(self.there), self.version

    def confirm_in_sync(self) -> None:
        self.confirmed += 1

    def force_relist(self, why: str) -> None:
        self.relists.append(why)


class InstantClock:
    """Its waits take no time; what happens meanwhile is said in ``meanwhile``."""

    def __init__(self, clock) -> None:
        self.mono, self.wall = clock.mono, clock.wall
        self.waited: list[float] = []
        self.meanwhile = lambda: None

    def wait(self, event: threading.Event, timeout: float) -> bool:
        self.waited.append(timeout)
        self.meanwhile()
        return event.is_set()


@pytest.fixture
def rig(manual_clock):
    def make(watched, *answers):
        clock, script = InstantClock(manual_clock), Scripted(manual_clock, *answers)
        return WatchAudit(script, watched, clock=clock), script, clock

    return make


def test_a_watch_that_told_everything_is_confirmed(rig):
    watched = Watched(A, B)
    audit, script, _ = rig(watched, listing(50, A, B))
    assert audit.turn() == 15.0
    assert (watched.confirmed, watched.relists) == (1, [])
    assert {(request.ask, request.version) for request in script.requests} == {(RequestKind.RELIST, "10")}


def test_a_watch_that_stays_behind_is_ended(rig):
    watched = Watched(A)
    audit, _, clock = rig(watched, listing(50, A, B))
    audit.turn()
    assert clock.waited == [WATCH_LAG]
    assert watched.relists == [f"{MISSED}pod n/b"]
    assert watched.confirmed == 0


def test_a_watch_that_catches_up_is_trusted(rig):
    watched = Watched(A)
    audit, _, clock = rig(watched, listing(50, A, B))
    clock.meanwhile = lambda: watched.there.update(known(B))
    audit.turn()
    assert (watched.confirmed, watched.relists) == (1, [])


def test_nobody_looks_while_the_watch_talks(rig, manual_clock):
    watched = Watched(A)
    watched.status = WatchStatus(watching=True, last_event_at=manual_clock.mono() - 10.0)
    audit, script, _ = rig(watched, listing(50, A))
    assert audit.turn() == 5.0
    assert script.requests == []
    manual_clock.advance(5.0)
    assert audit.turn() == 15.0
    assert watched.confirmed == 1


def test_rule_06_nobody_looks_while_there_is_no_watch(rig):
    """A server that is away is not tried from here as well."""
    watched = Watched(A)
    watched.status = WatchStatus(watching=False)
    audit, script, _ = rig(watched, listing(50, A))
    audit.turn()
    assert script.requests == []


@pytest.mark.parametrize(("code", "renewed"), [(401, 1), (403, 0), (429, 0), (500, 0)])
def test_a_server_that_refuses_the_list_is_no_reason_to_leave_the_watch(rig, code, renewed):
    watched = Watched(A)
    audit, script, _ = rig(watched, ApiError.of_status({"message": "no"}, code=code))
    audit.turn()
    assert watched.relists == []
    assert script.renewed == renewed


def test_rule_11_a_server_that_does_not_know_the_version_for_long_was_restored(rig):
    watched = Watched(A)
    audit, _, _ = rig(watched, AHEAD)
    audit.turn()
    assert watched.relists == []
    audit.turn()
    assert len(watched.relists) == 1


def test_a_server_whose_cache_is_behind_the_first_list_was_not_restored(rig):
    """Where etcd does not tell it how far it is, it stays where the last change of a pod was."""
    watched, set_back = Watched(A, B, version="50"), []
    audit, script, _ = rig(watched, AHEAD, listing(60, A, B), listing(70, A, B))
    audit._store_restored = set_back.append
    for _ in range(3):
        audit.turn()
    assert (watched.confirmed, watched.relists, set_back) == (3, [], [])
    assert [request.ask for request in script.requests] == [
        RequestKind.RELIST,
        RequestKind.UNPAGED,
        RequestKind.UNPAGED,
        RequestKind.UNPAGED,
    ]
    watched.version = "65"  # something has happened to a pod
    audit.turn()
    assert script.requests[-1].ask is RequestKind.RELIST


def test_what_only_the_store_knows_is_compared_too(rig):
    watched = Watched(A, version="50")
    audit, _, _ = rig(watched, AHEAD, listing(60, A, B))
    audit.turn()
    assert watched.relists == [f"{MISSED}pod n/b"]


def test_a_store_restored_to_the_same_pods_is_found(rig):
    watched, set_back = Watched(A, version="50"), []
    audit, _, _ = rig(watched, listing(50, A), AHEAD, listing(40, A), AHEAD, listing(40, A))
    audit._store_restored = set_back.append
    for _ in range(3):
        audit.turn()
    assert (len(watched.relists), len(set_back)) == (1, 1)


def test_half_a_list_is_no_list(rig):
    watched = Watched(A)
    audit, _, _ = rig(watched, [b'{"items":['])
    audit.turn()
    assert (watched.confirmed, watched.relists) == (0, [])


def looks(audit, watched, clock, *, until) -> None:
    """Look every 15 seconds, under a watch that says nothing."""
    begun = clock.mono()
    while clock.mono() < begun + until:
        audit.turn()
        clock.advance(15.0)
        watched.status = WatchStatus(watching=True, last_event_at=0.0)


def test_many_pods_are_listed_from_the_store_only(rig, manual_clock):
    crowd = [pod(f"w-{number}", 3) for number in range(2 * LARGE_JOB)]
    watched = Watched(*crowd)
    audit, script, _ = rig(watched, ApiError(Reason.SILENT, "no data arrives"), listing(50, *crowd[1:]))
    looks(audit, watched, manual_clock, until=200.0)
    assert [request.ask for request in script.requests] == [RequestKind.UNPAGED]  # one that failed is not repeated
    looks(audit, watched, manual_clock, until=120.0)
    assert watched.relists == [f"{MISSED}the end of pod n/w-0"]


def test_a_restored_store_is_found_with_many_pods_too(rig, manual_clock):
    watched = Watched(*[pod(f"w-{number}", 3) for number in range(SMALL_JOB + 1)])
    audit, _, _ = rig(watched, listing(9, A))
    looks(audit, watched, manual_clock, until=90.0)
    assert len(watched.relists) == 1


def test_few_pods_are_listed_from_the_store_once_a_minute(rig, manual_clock):
    watched = Watched(A)
    audit, script, _ = rig(watched, listing(10, A))
    looks(audit, watched, manual_clock, until=150.0)
    whole = [number for number, request in enumerate(script.requests) if request.ask is RequestKind.UNPAGED]
    assert whole == [4, 8]
    assert {request.version for request in script.requests if request.ask is RequestKind.RELIST} == {"10"}
