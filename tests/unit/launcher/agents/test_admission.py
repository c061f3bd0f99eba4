"""If there is no room for another connection, the source with the most connections loses one, the oldest first."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.agents.admission import (
    MAX_UNAUTHENTICATED,
    MIN_TIME_S,
    AdmissionDecision,
    Unauthenticated,
    max_unauthenticated,
)

NOW = 100.0


def crowd(*sources: str, now: float = NOW) -> Unauthenticated[int]:
    """Connections, numbered from 0 in their order."""
    strangers = Unauthenticated[int]()
    for number, source in enumerate(sources):
        strangers.add(number, source, now)
    return strangers


def test_as_long_as_there_is_room_nobody_gives_way() -> None:
    assert crowd("a", "a", "a").room(NOW + 60, most=4) == AdmissionDecision()


def test_what_one_place_has_beyond_its_share_gives_way_at_once_and_others_do_not() -> None:
    strangers = crowd("b", "a", "a", "b", "a", "c", "d", "a")  # a share is 2 connections
    decision = strangers.room(NOW, most=8)
    assert (decision.out, decision.wait) == (1, False)
    assert "too many connections" in decision.reason
    assert strangers.remove(1)
    strangers.add(8, "e", NOW)
    assert strangers.room(NOW, most=8).out == 2


def test_where_all_come_from_different_places_each_has_a_moment() -> None:
    strangers = crowd("a", "b", "c", "d")
    assert strangers.room(NOW + MIN_TIME_S / 2, most=4) == AdmissionDecision(wait=True)
    late = strangers.room(NOW + MIN_TIME_S, most=4)
    assert (late.out, late.wait) == (0, False)


def test_our_own_have_their_moment_however_many_they_are() -> None:
    strangers = crowd("", "", "", "")
    assert strangers.room(NOW, most=4) == AdmissionDecision(wait=True)
    assert strangers.room(NOW + MIN_TIME_S, most=4).out == 0


def test_who_is_gone_counts_no_more() -> None:
    strangers = crowd("a", "b")
    strangers.count_bytes(0, 10)
    assert strangers.remove(0)
    assert not strangers.remove(0)
    strangers.count_bytes(0, 10)
    assert (len(strangers), strangers.remove(1), strangers.kept) == (1, True, 0)


def test_of_whom_the_most_is_kept_gives_way_first() -> None:
    strangers = crowd("a", "b", "c")
    for who, size in ((0, 10), (1, 20), (0, 5), (2, 20)):
        strangers.count_bytes(who, size)
    assert strangers.kept == 55
    assert strangers.heaviest() == 1


@pytest.mark.parametrize(("files", "most"), [(256, 64), (1024, 64), (4096, 256), (1 << 20, MAX_UNAUTHENTICATED)])
def test_strangers_may_have_one_in_sixteen_of_the_files(files: int, most: int) -> None:
    assert max_unauthenticated(files) == most
