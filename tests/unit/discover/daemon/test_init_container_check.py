"""A daemon that stands in its own pod's way says so and ends; no other does."""

import pytest

from discover.daemon.own_pod import CHECKS, CONFIRMATIONS, PAUSE, InitContainerCheck, Placement, placement_of
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until

DEADLINE = 60.0
RUNNING, ENDED, WAITING = {"running": {}}, {"terminated": {"exitCode": 0}}, {"waiting": {}}


def pod(*inits: tuple[str, str | None, object], initialized: bool = False):
    """``inits``: name, restartPolicy and state of each init container."""
    spec = [{"name": name, **({"restartPolicy": policy} if policy else {})} for name, policy, _ in inits]
    statuses = [{"name": name, "state": state} for name, _, state in inits]
    conditions = [{"type": "Initialized", "status": "True" if initialized else "False"}]
    return {"spec": {"initContainers": spec}, "status": {"initContainerStatuses": statuses, "conditions": conditions}}


BLOCKING = pod(("setup", None, ENDED), ("discover", None, RUNNING))


@pytest.mark.parametrize(
    ("own", "place"),
    [
        (BLOCKING, (Placement.BLOCKING, "discover")),
        (pod(("discover", "Always", RUNNING)), (Placement.RIGHT, "")),
        (pod(("discover", "Always", RUNNING), ("setup", None, RUNNING)), (Placement.RIGHT, "")),
        (pod(), (Placement.RIGHT, "")),
        (pod(("setup", None, ENDED), initialized=True), (Placement.RIGHT, "")),
        (pod(("setup", None, ENDED)), (Placement.UNKNOWN, "")),
        (pod(("discover", None, WAITING)), (Placement.UNKNOWN, "")),
        ({}, (Placement.RIGHT, "")),
        ({"spec": {"initContainers": ["nonsense", {"name": "a"}]}, "status": []}, (Placement.UNKNOWN, "")),
    ],
)
def test_the_placement_is_read_from_its_own_pod(own, place):
    assert placement_of(own) == place


class Looking:
    def __init__(self, *shows: object) -> None:
        self.shows = list(shows)
        self.looks = 0
        self.ends: list[tuple[str, int]] = []
        self.clock = ManualClock()
        self.check = InitContainerCheck(
            self._read, "own pod ns/p", end=lambda *told: self.ends.append(told), clock=self.clock
        )

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
            return not self.check._thread.running

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


BUSY = ApiError.of_status({"message": "too many requests"}, code=429)


def test_a_blocking_init_container_ends_with_the_remedy_once_confirmed(looking):
    looks = looking(BUSY, ApiError(Reason.UNREACHABLE, "refused"), pod(("discover", None, WAITING)), BLOCKING)
    looks.until_it_rests()
    ((why, code),) = looks.ends
    assert code == 2
    assert "init container discover" in why
    assert "--exit-with-container" in why
    assert looks.looks == 3 + CONFIRMATIONS


def test_an_init_container_that_has_just_ended_is_not_taken_for_this_one(looking):
    looks = looking(*[BLOCKING] * (CONFIRMATIONS - 1), pod(("setup", None, ENDED), initialized=True))
    looks.until_it_rests()
    assert looks.ends == []
    assert looks.looks == CONFIRMATIONS


@pytest.mark.parametrize(
    ("show", "looks"),
    [
        (pod(), 1),
        (ApiError.of_status({"message": "forbidden"}, code=403), 1),
        (ApiError.of_status({"message": "not found"}, code=404), 1),
        (ApiError(Reason.SILENT, "no answer"), CHECKS),
        (BUSY, CHECKS),
    ],
)
def test_the_check_ends_when_the_placement_is_right_or_may_not_be_read(looking, show, looks):
    made = looking(show)
    made.until_it_rests()
    assert made.ends == []
    assert made.looks == looks
