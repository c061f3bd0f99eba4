"""Whether a watch that looks well still tells all there is."""

import threading

import pytest

from discover.kube.reflector import WatchStatus
from discover.kube.transport import Failure, RequestFailed, RequestKind
from discover.kube.views import pod_view
from discover.kube.watch_audit import (
    BOOKMARK_TIMEOUT,
    LARGE_JOB,
    SMALL_JOB,
    WATCH_LAG,
    PodVersion,
    WatchAudit,
    find_missed,
    list_interval,
)
from tests.unit.discover.scripted import Scripted, bookmark, error, event, listing, pod


def compared(*pods):
    return [PodVersion.of(each) for each in pods]


def known(*pods):
    return {view.key: view for view in map(pod_view, pods)}


A, B = pod("a", 3), pod("b", 4)


def test_what_is_the_same_is_not_missed():
    assert find_missed(compared(A, B), "50", known=known(B, A), known_version="10") == ""


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


def test_a_watch_that_is_as_far_as_the_list_has_missed_nothing():
    assert find_missed([], "50", known=known(A, B), known_version="50") == ""
    assert find_missed([], "50", known=known(A, B), known_version="51") == ""


def test_from_versions_that_are_no_numbers_nothing_is_concluded():
    assert find_missed([], "b", known=known(A), known_version="a") == ""


@pytest.mark.parametrize(
    ("pods", "seconds"), [(0, 0.0), (SMALL_JOB, 0.0), (SMALL_JOB + 1, 60.0), (LARGE_JOB, 60.0), (10_000, 600.0)]
)
def test_the_more_pods_the_less_often_they_are_listed(pods, seconds):
    assert list_interval(pods) == seconds


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
    assert watched.relists == ["the watch missed a change: it did not tell of pod n/b"]
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
    audit, script, _ = rig(watched, RequestFailed(Failure.ANSWERED, "no", code=code))
    audit.turn()
    assert watched.relists == []
    assert script.renewed == renewed


def test_rule_11_a_server_that_does_not_know_the_version_for_long_was_restored(rig):
    ahead = RequestFailed(Failure.ANSWERED, "too large", code=504, causes=("ResourceVersionTooLarge",))
    watched = Watched(A)
    audit, _, _ = rig(watched, ahead)
    audit.turn()
    assert watched.relists == []
    audit.turn()
    assert len(watched.relists) == 1


AHEAD = RequestFailed(Failure.ANSWERED, "too large", code=504, causes=("ResourceVersionTooLarge",))


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
    assert watched.relists == ["the watch missed a change: it did not tell of pod n/b"]


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


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"metadata": None}])
def test_what_is_no_object_is_not_compared(raw):
    with pytest.raises(ValueError, match="no metadata"):
        PodVersion.of(raw)


CROWD = [pod(f"w-{number}", 3) for number in range(SMALL_JOB + 1)]
ONE = listing(10, A)
"""The answer to a list of one."""


@pytest.fixture
def crowd(rig, manual_clock):
    """More pods than are listed often; what is asked for first is a list of one, then a watch."""

    def make(*answers):
        watched = Watched(*CROWD)
        audit, script, clock = rig(watched, *answers)
        return watched, audit, script, clock

    return make


def asked(script) -> list[tuple[RequestKind, int, int]]:
    return [(request.ask, request.most, request.ends) for request in script.requests]


def test_for_many_pods_a_second_watch_confirms_the_first(crowd):
    watched, audit, script, clock = crowd(ONE, [bookmark(90)])
    assert audit.turn() == 15.0
    assert (watched.confirmed, watched.relists, clock.waited) == (1, [], [])
    assert asked(script) == [(RequestKind.PAGED, 1, 0), (RequestKind.WATCH, 0, 1)]
    assert [request.version for request in script.requests] == ["", "10"]


def test_what_a_second_watch_shows_and_the_first_does_not_leads_to_a_list(crowd):
    news = [event("MODIFIED", pod("w-0", 20))]
    watched, audit, script, clock = crowd(ONE, news, listing(50, pod("w-0", 20), *CROWD[1:]))
    audit.turn()
    assert clock.waited == [WATCH_LAG, WATCH_LAG]
    assert asked(script)[2:] == [(RequestKind.RELIST, 0, 0)]
    assert watched.relists == ["the watch missed a change: it did not tell of pod n/w-0"]


def test_a_watch_that_is_only_late_is_trusted(crowd):
    watched, audit, script, clock = crowd(ONE, [event("DELETED", pod("w-0", 20))])

    def catch_up() -> None:
        watched.version = "20"

    clock.meanwhile = catch_up
    audit.turn()
    assert (watched.confirmed, watched.relists, len(script.requests)) == (1, [], 2)


def test_a_short_watch_that_may_not_begin_where_the_first_one_is_proves_nothing(crowd):
    watched, audit, script, _ = crowd(ONE, [error(410)], listing(50, *CROWD))
    audit.turn()
    assert (watched.confirmed, watched.relists, len(script.requests)) == (1, [], 3)


def test_a_restored_store_is_found_with_many_pods_too(crowd):
    watched, audit, _, _ = crowd(listing(9, A))
    audit.turn()
    assert watched.relists == []
    audit.turn()
    assert len(watched.relists) == 1


def test_many_pods_are_listed_now_and_then_all_the_same(crowd, manual_clock):
    watched, audit, script, _ = crowd(*[ONE, []] * 4, listing(50, *CROWD))
    for _ in range(5):
        audit.turn()
        manual_clock.advance(15.0)
        watched.status = WatchStatus(watching=True, last_event_at=0.0)
    assert asked(script)[-1] == (RequestKind.UNPAGED, 0, 0)
    assert (len(script.requests), watched.confirmed) == (9, 5)


@pytest.mark.parametrize("said", [b"{}", b'{"type":"ADDED"}', b"no JSON"])
def test_a_short_watch_that_cannot_be_read_proves_nothing_and_changes_nothing(crowd, said):
    watched, audit, _, _ = crowd(ONE, [said + b"\n"])
    audit.turn()
    assert (watched.confirmed, watched.relists) == (0, [])


def looks(audit, watched, clock, *, until) -> list[float]:
    """Look every 15 seconds, under a watch that says nothing; return when, in seconds, each was certain of it all."""
    begun, certain = clock.mono(), []
    while clock.mono() < begun + until:
        before = watched.confirmed
        audit.turn()
        certain += [clock.mono() - begun] if watched.confirmed > before else []
        clock.advance(15.0)
        watched.status = WatchStatus(watching=True, last_event_at=0.0)
    return certain


FURTHER = listing(40, A)
"""What a list of one says when something has happened, to these pods or to others."""

MORE = [pod(f"w-{number}", 3) for number in range(5 * LARGE_JOB)]
"""So many that they are listed once in 300 seconds."""


@pytest.fixture
def store(rig):
    """A server with more pods still, whose watches tell nothing; answers are by what is asked."""

    def make(*pods, first=FURTHER):
        watched = Watched(*MORE)
        audit, script, _ = rig(watched, first)
        answers = {RequestKind.PAGED: first, RequestKind.WATCH: [], RequestKind.UNPAGED: listing(41, *pods)}

        def opened(request):
            script.requests.append(request)
            if isinstance(answers[request.ask], Exception):
                raise answers[request.ask]
            yield from answers[request.ask]

        script.open = opened
        return watched, audit, script, answers

    return make


def whole_lists(script) -> int:
    return sum(request.ask is RequestKind.UNPAGED for request in script.requests)


def test_a_server_with_a_frozen_cache_is_found_by_its_store_within_two_minutes(store, manual_clock):
    watched, audit, script, _ = store(*MORE[1:])
    assert looks(audit, watched, manual_clock, until=90.0) == []  # and no word that all is known
    assert watched.relists == ["the watch missed a change: it did not tell of the end of pod n/w-0"]
    assert whole_lists(script) == 1


def test_a_watch_that_comes_to_where_the_store_was_is_trusted(store, manual_clock):
    watched, audit, script, answers = store(*MORE)
    assert looks(audit, watched, manual_clock, until=60.0) == []
    watched.version = "40"
    assert looks(audit, watched, manual_clock, until=30.0) == [0.0, 15.0]
    answers[RequestKind.PAGED] = listing(45, A)
    assert looks(audit, watched, manual_clock, until=60.0) == []  # it counts from here
    assert (watched.relists, whole_lists(script)) == ([], 0)


def test_rare_bookmarks_lead_to_more_lists_only_at_first(store, manual_clock):
    """Of what other objects have made of its store, a quiet server need not tell a watch for ten minutes."""
    watched, audit, script, _ = store(*MORE)
    looks(audit, watched, manual_clock, until=1800.0)
    assert watched.relists == []
    assert whole_lists(script) <= 1800 / list_interval(len(MORE)) + 3


def test_a_failed_list_of_many_pods_is_not_repeated_by_every_check(store, manual_clock):
    """A cache that stands still is a server in trouble, and such a list is fifty megabytes of its store's."""
    watched, audit, script, answers = store(*MORE[1:])
    answers[RequestKind.UNPAGED] = RequestFailed(Failure.SILENT, "no data arrives")
    looks(audit, watched, manual_clock, until=900.0)
    assert 900 / list_interval(len(MORE)) <= whole_lists(script) <= 900 / BOOKMARK_TIMEOUT
    answers[RequestKind.UNPAGED] = listing(41, *MORE[1:])
    looks(audit, watched, manual_clock, until=90.0)
    assert len(watched.relists) == 1


def test_a_failed_list_from_the_store_is_repeated_by_the_next_check_of_a_small_job(rig, manual_clock):
    watched = Watched(A)
    no = RequestFailed(Failure.ANSWERED, "busy", code=429)
    old, new = listing(10, A), listing(20, pod("a", 20))
    audit, script, _ = rig(watched, old, old, old, old, no, new)
    looks(audit, watched, manual_clock, until=90.0)
    assert [request.ask for request in script.requests[4:]] == [RequestKind.UNPAGED, RequestKind.UNPAGED]
    assert len(watched.relists) == 1


def test_few_pods_are_listed_from_the_store_once_a_minute(rig, manual_clock):
    watched = Watched(A)
    audit, script, _ = rig(watched, listing(10, A))
    looks(audit, watched, manual_clock, until=150.0)
    whole = [number for number, request in enumerate(script.requests) if request.ask is RequestKind.UNPAGED]
    assert whole == [4, 8]
    assert {request.version for request in script.requests if request.ask is RequestKind.RELIST} == {"10"}
