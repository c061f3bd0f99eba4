"""How long a command waits for an API server."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.jobs.cluster.api import AWAY_S, REFUSED_S, Patience, limit_of, next_pause

AWAY = ApiError(Reason.UNREACHABLE, "no answer from the API server: Connection refused")


def refused(code: int) -> ApiError:
    return ApiError.of_status({}, code=code)


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (AWAY, AWAY_S),
        *((refused(code), AWAY_S) for code in (429, 500, 502, 503, 504)),
        *((refused(code), REFUSED_S) for code in (401, 403)),
        *((refused(code), 0) for code in (400, 404, 409, 422)),
        (UsageError("there is no job"), 0),
    ],
)
def test_only_what_passes_is_tried_again(error: Exception, limit: float) -> None:
    assert limit_of(error) == limit


def test_pauses_grow_and_end_with_the_limit() -> None:
    assert [next_pause(0, since=0, failures=number, limit=600) for number in (1, 2, 3, 9)] == [0.5, 1, 2, 10]
    assert next_pause(595, since=0, failures=9, limit=600) == 5
    assert next_pause(600, since=0, failures=9, limit=600) is None


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.errors: list[Exception] = []
        self.patience = Patience(say=self.said.append, sleep=self.sleep, clock=lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ask(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_an_outage_is_told_once_and_its_end_too() -> None:
    world = World()
    assert world.patience.of(world.ask) == "answer"
    world.errors = [AWAY] * 5 + [refused(HTTPStatus.FORBIDDEN)] * 2
    assert world.patience.of(world.ask) == "answer"
    assert world.said == [f"{AWAY}; trying again for up to 600 s", "the API server answers again"]


@pytest.mark.parametrize(("error", "least"), [(AWAY, AWAY_S), (refused(403), REFUSED_S)])
def test_an_error_that_stays_is_raised_in_the_end(error: Exception, least: float) -> None:
    world = World()
    world.patience.of(world.ask)
    world.errors = [error] * 1000
    with pytest.raises(type(error)):
        world.patience.of(world.ask)
    assert world.now == pytest.approx(least)


def test_a_refusal_after_an_outage_has_its_own_time() -> None:
    world = World()
    world.patience.of(world.ask)
    world.errors = [AWAY] * 20 + [refused(403)]
    assert world.patience.of(world.ask) == "answer"
    assert world.now > REFUSED_S


def test_before_the_first_answer_an_error_is_final() -> None:
    world = World()
    world.errors = [AWAY]
    with pytest.raises(ApiError):
        world.patience.of(world.ask)
    assert (world.now, world.said) == (0, [])
