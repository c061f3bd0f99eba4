"""An API server that is away for ten minutes: how often it is tried, and how soon it is followed again.

In virtual time through the real reflector, its rules and its pauses. `make bench` (`cluster-outage`) has the same in
real time.
"""

from __future__ import annotations

import random
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.watch.collection import Request, RequestKind
from discover.watch.reflector import PODS, Reflector
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from tests.support.clock import ManualClock
from tests.unit.discover.scripted_collection import CountedMetrics, event, listing, pod

AWAY = 600.0
RETURN = 35.0
CONNECT = 5.0
"""Seconds after which a connection that nobody accepts or refuses is given up."""


class Server:
    """Has two pods, is away for a time, and then says that a third one came meanwhile.

    ``takes``: seconds that an attempt takes while it is away; none if connections are refused.
    """

    where = "pods of namespace n at https://there"

    def __init__(self, clock: ManualClock, *, back: float, takes: float) -> None:
        self._clock = clock
        self._back = back
        self._takes = takes
        self.asked: list[tuple[float, RequestKind]] = []
        self._opened = False

    def open(self, request: Request) -> Generator[bytes, None, None]:
        self.asked.append((self._clock.mono(), request.ask))
        if request.ask is not RequestKind.WATCH:
            return self._listed()
        return self._watched()

    def _listed(self) -> Generator[bytes, None, None]:
        yield from listing(10, pod("a", 3), pod("b", 4))

    def _watched(self) -> Generator[bytes, None, None]:
        now = self._clock.mono()
        if not self._opened:
            self._opened = True
            self._clock.advance(5.0)
            raise ApiError(Reason.CUT, "reset by peer")
        if now < self._back:
            self._clock.advance(self._takes)
            raise ApiError(Reason.UNREACHABLE, "nobody there")
        yield event("ADDED", pod("c", 11))
        self._clock.advance(300.0)

    def reload_credentials(self) -> None:
        """There are no credentials."""

    def interrupt(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing to give up."""


class Outage:
    """``told``: when news came. ``asked``: the attempts made while the server was away."""

    def __init__(self, *, seed: int, takes: float, away: float = AWAY) -> None:
        clock = ManualClock(mono=0.0)
        begun = 5.0
        back = begun + away
        server = Server(clock, back=back, takes=takes)
        self.told: list[float] = []

        def tell(news: bool) -> None:
            if news:
                self.told.append(clock.mono())

        draw = random.Random(seed).random
        reflector = Reflector(server, PODS, tell, clock=clock, draw=draw, metrics=CountedMetrics())
        while clock.mono() < back + 2 * RETURN and len(self.told) < 2:
            clock.advance(reflector.turn())
        self.asked = [ask for at, ask in server.asked if begun <= at < back]
        self.late = self.told[1] - back


@pytest.mark.parametrize("takes", [0.0, CONNECT], ids=["refused", "not even refused"])
@pytest.mark.parametrize(("away", "most"), [(AWAY / 2, 16), (AWAY, 35)], ids=["five minutes", "ten minutes"])
@given(st.integers(0, 1 << 32))
def test_rule_06_a_server_that_is_away_is_tried_only_so_often(away: float, most: int, takes: float, seed: int):
    outage = Outage(seed=seed, takes=takes, away=away)
    assert len(outage.asked) <= most
    assert set(outage.asked) == {RequestKind.WATCH}
    assert len(outage.told) == 2  # the list before, and what came since


@pytest.mark.parametrize("takes", [0.0, CONNECT], ids=["refused", "not even refused"])
@given(st.integers(0, 1 << 32), st.floats(AWAY / 2, AWAY))
def test_rule_06_a_server_that_is_back_is_followed_within_35_seconds(takes: float, seed: int, away: float):
    assert Outage(seed=seed, takes=takes, away=away).late <= RETURN
