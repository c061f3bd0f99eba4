"""Which seats get processes, if there are too many of them."""

from __future__ import annotations

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.membership.chosen_hosts import seats
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage, WorldLimits


def test_wanted_seats_are_those_of_the_largest_world_that_may_be() -> None:
    both = [(Host("a", 4), (0, 1, 3)), (Host("b", 2), (0, 1))]
    assert len(seats(both, WorldLimits())) == 5
    assert seats(both, WorldLimits(most=2)) == (Seat("a", 0), Seat("a", 1))
    assert len(seats(both, WorldLimits(allowed=(2, 4, 8)))) == 4
    assert len(seats(both, WorldLimits(least=8))) == 5  # too few: all of them get ready


def test_who_has_taken_a_place_keeps_it_when_a_more_senior_host_comes_back() -> None:
    hosts, two = [(Host(name, 1), [0]) for name in "abcd"], WorldLimits(most=2)
    a, b, c, d = (Seat(name, 0) for name in "abcd")
    assert seats(hosts, two) == (a, b)
    assert seats(hosts, two, lambda: {a: Stage.LIVE, c: Stage.LIVE}) == (a, c)
    assert seats(hosts, two, lambda: {c: Stage.LIVE, b: Stage.BOOTING, d: Stage.PARKED}) == (c, d)
    assert seats(hosts, two, lambda: {d: Stage.BOOTING}) == (a, d)
    assert seats(hosts[:2], two, lambda: {c: Stage.LIVE}) == (a, b)
