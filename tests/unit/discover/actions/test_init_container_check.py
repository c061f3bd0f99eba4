"""A daemon that stands in its own pod's way says so and ends; no other does."""

import pytest

from discover.actions.init_container_check import LOOKS, PAUSE, SURE, Place, PlaceCheck, place_of
from discover.kube.transport import RequestFailed, Trouble
from hvd_elastic_ext.core.clock import ManualClock
from tests.support.waiting import wait_until

DEADLINE = 60.0
RUNNING, ENDED, WAITING = {"running": {}}, {"terminated": {"exitCode": 0}}, {"waiting": {}}


def pod(*inits: tuple[str, str | None, object], initialized: bool = False):
    """``inits``: name, restartPolicy and state of each init container."""
    spec = [{"name": name, **({"restartPolicy": policy} if policy else {})} for name, policy, _ in inits]
    statuses = [{"name": name, "state": state} for name, _, state in inits]
    conditions = [{"type": "Initialized", "status": "True" if initialized else "False"}]
    return {"spec": {"initContainers": spec}, "status": {"initContainerStatuses": statuses, "conditions": conditions}}


IN_THE_WAY = pod(("setup", None, ENDED), ("discover", None, RUNNING))


@pytest.mark.parametrize(
    ("own", "place"),
    [
        (IN_THE_WAY, (Place.IN_THE_WAY, "discover")),
        (pod(("discover", "Always", RUNNING)), (Place.RIGHT, "")),
        (pod(("discover", "Always", RUNNING), ("setup", None, RUNNING)), (Place.RIGHT, "")),
        (pod(), (Place.RIGHT, "")),
        (pod(("setup", None, ENDED), initialized=True), (Place.RIGHT, "")),
        (pod(("setup", None, ENDED)), (Place.UNKNOWN, "")),
        (pod(("discover", None, WAITING)), (Place.UNKNOWN, "")),
        ({}, (Place.RIGHT, "")),
        ({"spec": {"initContainers": ["nonsense", {"name": "a"}]}, "status": []}, (Place.UNKNOWN, "")),
    ],
)
def test_where_it_stands_is_read_off_its_own_pod(own, place):
    assert place_of(own) == place


class Looking:
    def __init__(self, *shows: object) -> None:
        self.shows = list(shows)
        self.looks = 0
        self.ends: list[tuple[str, int]] = []
        self.clock = ManualClock()
        self.check = PlaceCheck(self._read, "own pod ns/p", end=lambda *told: self.ends.append(told), clock=self.clock)

    def _read(self):
        show = self.shows[min(self.looks, len(self.shows) - 1)]
        self.looks += 1
        if isinstance(show, Exception):
            raise show
        return show

    def until_it_rests(self) -> None:
        """Let time pass until it looks no more."""
        self.check.start()

        def rests() -> bool:
            self.clock.advance(PAUSE)
            return not self.check._thread.is_alive()

        wait_until(rests, what="no more looks", timeout=DEADLINE)


@pytest.fixture
def looking():
    made: list[Looking] = []

    def start(*shows: object) -> Looking:
        made.append(Looking(*shows))
        return made[-1]

    yield start
    for each in made:
        each.check.stop()


BUSY = RequestFailed(Trouble.ANSWERED, "too many requests", code=429)


def test_one_that_is_in_the_way_ends_with_the_remedy_once_that_is_sure(looking):
    looks = looking(BUSY, RequestFailed(Trouble.REFUSED, "refused"), pod(("discover", None, WAITING)), IN_THE_WAY)
    looks.until_it_rests()
    ((why, code),) = looks.ends
    assert code == 2
    assert "init container discover" in why
    assert "--exit-with-container" in why
    assert looks.looks == 3 + SURE


def test_an_init_container_that_has_just_ended_is_not_taken_for_this_one(looking):
    looks = looking(*[IN_THE_WAY] * (SURE - 1), pod(("setup", None, ENDED), initialized=True))
    looks.until_it_rests()
    assert looks.ends == []
    assert looks.looks == SURE


@pytest.mark.parametrize(
    ("show", "looks"),
    [
        (pod(), 1),
        (RequestFailed(Trouble.ANSWERED, "forbidden", code=403), 1),
        (RequestFailed(Trouble.ANSWERED, "not found", code=404), 1),
        (RequestFailed(Trouble.SILENT, "no answer"), LOOKS),
        (BUSY, LOOKS),
    ],
)
def test_who_is_right_or_may_not_look_looks_no_more(looking, show, looks):
    made = looking(show)
    made.until_it_rests()
    assert made.ends == []
    assert made.looks == looks


def test_it_may_be_stopped_at_any_time(looking):
    never = looking(pod())
    never.check.stop()
    waiting = looking(BUSY)
    waiting.check.start()
    wait_until(lambda: waiting.looks == 1, what="a look", timeout=DEADLINE)
    waiting.check.stop()
    wait_until(lambda: not waiting.check._thread.is_alive(), what="the end", timeout=DEADLINE)
