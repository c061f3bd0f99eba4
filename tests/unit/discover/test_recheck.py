"""Whether a watch that looks well still tells all there is."""

import threading

import pytest

from discover.recheck import FEW, GRACE, Listed, Recheck, interval, missed
from discover.transport import Ask, RequestFailed, Trouble
from discover.views import pod_view
from discover.watch import Contact
from tests.unit.discover.scripted import Scripted, listing, pod


def compared(*pods):
    return [Listed.of(each) for each in pods]


def known(*pods):
    return {view.key: view for view in map(pod_view, pods)}


A, B = pod("a", 3), pod("b", 4)


def test_what_is_the_same_is_not_missed():
    assert missed(compared(A, B), "50", known=known(B, A), known_version="10") == ""


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
    assert words in missed(compared(*listed), "50", known=known(A, B), known_version="10")


def test_a_watch_that_is_as_far_as_the_list_has_missed_nothing():
    assert missed([], "50", known=known(A, B), known_version="50") == ""
    assert missed([], "50", known=known(A, B), known_version="51") == ""


def test_from_versions_that_are_no_numbers_nothing_is_concluded():
    assert missed([], "b", known=known(A), known_version="a") == ""


def test_few_pods_are_looked_at_often():
    assert (interval(FEW), interval(FEW + 1)) == (15.0, 60.0)


class Watched:
    """A reflector that stands where the test put it."""

    def __init__(self, *pods, version: str = "10") -> None:
        self.contact = Contact(watching=True, told=0.0)
        self.there = known(*pods)
        self.version = version
        self.confirmed = 0
        self.distrusted: list[str] = []

    def known(self):
        return dict(self.there), self.version

    def confirm(self) -> None:
        self.confirmed += 1

    def distrust(self, why: str) -> None:
        self.distrusted.append(why)


class Hurried:
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
        hurried, script = Hurried(manual_clock), Scripted(manual_clock, *answers)
        return Recheck(script, watched, clock=hurried), script, hurried

    return make


def test_a_watch_that_told_everything_is_confirmed(rig):
    watched = Watched(A, B)
    recheck, script, _ = rig(watched, listing(50, A, B))
    assert recheck.turn() == 15.0
    assert (watched.confirmed, watched.distrusted) == (1, [])
    assert {(request.ask, request.version) for request in script.requests} == {(Ask.SINCE, "10")}


def test_what_says_the_same_as_before_is_not_read_again(rig):
    watched = Watched(A, B)
    recheck, script, _ = rig(watched, *[listing(50 + n, A, B) for n in range(9)])
    for _ in range(4):
        recheck.turn()
    assert watched.confirmed == 4
    assert len(script.requests) == 5  # the first time twice: once to see that it is new, once to read it


def test_a_watch_that_stays_behind_is_not_trusted(rig):
    watched = Watched(A)
    recheck, _, hurried = rig(watched, listing(50, A, B))
    recheck.turn()
    assert hurried.waited == [GRACE]
    assert watched.distrusted == ["the watch is deaf: it did not tell of pod n/b"]
    assert watched.confirmed == 0


def test_a_watch_that_catches_up_is_trusted(rig):
    watched = Watched(A)
    recheck, _, hurried = rig(watched, listing(50, A, B))
    hurried.meanwhile = lambda: watched.there.update(known(B))
    recheck.turn()
    assert (watched.confirmed, watched.distrusted) == (1, [])


def test_nobody_looks_while_the_watch_talks(rig, manual_clock):
    watched = Watched(A)
    watched.contact = Contact(watching=True, told=manual_clock.mono() - 10.0)
    recheck, script, _ = rig(watched, listing(50, A))
    assert recheck.turn() == 5.0
    assert script.requests == []
    manual_clock.advance(5.0)
    assert recheck.turn() == 15.0
    assert watched.confirmed == 1


def test_nobody_looks_while_there_is_no_watch(rig):
    """§7-6: a server that is away is not tried from here as well."""
    watched = Watched(A)
    watched.contact = Contact(watching=False)
    recheck, script, _ = rig(watched, listing(50, A))
    recheck.turn()
    assert script.requests == []


@pytest.mark.parametrize(("code", "renewed"), [(401, 1), (403, 0), (429, 0), (500, 0)])
def test_a_server_that_refuses_the_list_is_no_reason_to_leave_the_watch(rig, code, renewed):
    watched = Watched(A)
    recheck, script, _ = rig(watched, RequestFailed(Trouble.ANSWERED, "no", code=code))
    recheck.turn()
    assert watched.distrusted == []
    assert script.renewed == renewed


def test_a_server_that_knows_no_such_version_for_long_was_set_back(rig):
    """§7-11"""
    ahead = RequestFailed(Trouble.ANSWERED, "too large", code=504, causes=("ResourceVersionTooLarge",))
    watched = Watched(A)
    recheck, _, _ = rig(watched, ahead)
    recheck.turn()
    assert watched.distrusted == []
    recheck.turn()
    assert len(watched.distrusted) == 1


def test_half_a_list_is_no_list(rig):
    watched = Watched(A)
    recheck, _, _ = rig(watched, [b'{"items":['])
    recheck.turn()
    assert (watched.confirmed, watched.distrusted) == (0, [])


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"metadata": None}])
def test_what_is_no_object_is_not_compared(raw):
    with pytest.raises(ValueError, match="no metadata"):
        Listed.of(raw)
