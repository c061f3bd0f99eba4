"""How often is looked, what is said of it, and when."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.agent.notices.files import Notice
from hvd_elastic_ext.agent.notices.metadata import Announcement, NoResponse
from hvd_elastic_ext.agent.notices.poller import (
    ABSENT_S,
    LOST_S,
    REPORT_AFTER,
    VOID_S,
    Poller,
    going,
)

NOW = 1000.0
SPOT = Announcement("taken back", at=NOW + 120)
ADVICE = Announcement("likely to be taken back", advisory=True)


class Source:
    """Says what it is told to: words, or why it cannot."""

    name = "somewhere"
    every_s = 5.0
    ahead_s = 0.0

    def __init__(self) -> None:
        self.announcements: list[Announcement] | str = []

    def look(self) -> list[Announcement]:
        if isinstance(self.announcements, str):
            raise NoResponse(self.announcements)
        return self.announcements


class Polling:
    def __init__(self) -> None:
        self.source = Source()
        self.wall = NOW
        self.said: list[dict[str, Any]] = []
        self.poller = Poller(self.source, wall=lambda: self.wall, report=lambda **said: self.said.append(said))

    def once(self, *announcements: Announcement) -> float:
        self.source.announcements = list(announcements)
        return self.poller.once()

    def fail(self, why: str = "refused") -> float:
        self.source.announcements = why
        return self.poller.once()

    @property
    def going(self) -> list[Notice | None]:
        return [each["going"] for each in self.said if "going" in each]

    @property
    def problems(self) -> list[str | None]:
        return [each["problem"] for each in self.said if "problem" in each]


@pytest.fixture
def polling() -> Polling:
    return Polling()


def test_what_is_said_is_passed_on_once_and_so_is_its_end(polling: Polling) -> None:
    for announcements in ((), (), (SPOT,), (SPOT,), (), ()):
        assert polling.once(*announcements) == 5.0
    assert polling.going == [None, Notice("taken back", NOW + 120), None]
    assert polling.problems == []


def test_a_time_is_taken_when_the_word_comes_and_not_again(polling: Polling) -> None:
    for announcement in (Announcement("preempted", within_s=30.0), SPOT):
        polling.once()
        polling.said.clear()
        polling.source.ahead_s = 7.0
        polling.once(announcement)
        first = polling.going
        polling.wall += 10.0
        polling.source.ahead_s = 9.0
        polling.once(announcement)
        assert polling.going == first


def test_a_time_goes_on_where_one_that_looked_before_has_taken_it(polling: Polling) -> None:
    preempted = Announcement("preempted", within_s=30.0)
    polling.once(preempted)
    (first,) = polling.going
    later = Polling()
    later.poller = Poller(
        later.source, wall=lambda: NOW + 9, report=lambda **said: later.said.append(said), before=first
    )
    later.once(preempted)
    later.once()
    later.once(preempted)
    assert later.going == [first, None, Notice("preempted", NOW + 39)]


def test_a_word_that_comes_again_is_another_one(polling: Polling) -> None:
    for _ in range(2):
        polling.once(Announcement("preempted", within_s=30.0))
        polling.once()
        polling.wall += 100.0
    assert polling.going == [Notice("preempted", NOW + 30), None, Notice("preempted", NOW + 130), None]


def test_the_clouds_clock_is_what_its_times_are_by() -> None:
    assert going(Announcement("w", at=NOW + 120), NOW, 90.0) == Notice("w", NOW + 30)
    assert going(Announcement("w"), NOW, 90.0) == Notice("w")
    assert going(Announcement("w", within_s=30.0), NOW, 90.0) == Notice("w", NOW + 30)


def test_of_several_words_the_soonest_counts_and_advice_does_not(polling: Polling) -> None:
    polling.once(ADVICE)
    polling.once(Announcement("some day"), SPOT, Announcement("later", at=NOW + 500), ADVICE)
    assert polling.said == [
        {"going": None, "advice": "likely to be taken back"},
        {"going": Notice("taken back", NOW + 120), "advice": "likely to be taken back"},
    ]


def test_a_word_whose_time_is_long_over_is_of_an_earlier_life_and_one_that_is_late_is_not(polling: Polling) -> None:
    polling.wall = NOW + 120 + VOID_S - 1
    polling.once(SPOT)
    polling.wall += 2
    polling.once(SPOT)
    assert polling.going == [Notice("taken back", NOW + 120), None]


def test_what_was_said_holds_while_nobody_answers(polling: Polling) -> None:
    polling.once(SPOT)
    for _ in range(20):
        polling.fail()
    polling.once(SPOT)
    assert polling.going == [Notice("taken back", NOW + 120)]


def test_a_failure_is_complained_of_when_it_lasts_once_and_so_is_its_end(polling: Polling) -> None:
    for _ in range(2):
        for _ in range(REPORT_AFTER - 1):
            polling.fail()
        assert polling.problems == []
        polling.once()
    for _ in range(20):
        polling.fail("hung up")
    assert polling.problems == ["hung up"]
    polling.once()
    polling.once()
    assert polling.problems == ["hung up", None]


def test_who_never_answered_is_asked_rarely_and_who_did_is_asked_often(polling: Polling) -> None:
    pauses = [polling.fail() for _ in range(10)]
    assert pauses[:3] == [10.0, 20.0, 40.0]
    assert pauses[-1] == ABSENT_S
    assert sum(pauses[:REPORT_AFTER]) < 120
    polling.once()
    assert max(polling.fail() for _ in range(10)) == LOST_S
    assert polling.once() == 5.0
