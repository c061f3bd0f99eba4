"""Ranks agree to stop: all at one check, soon, and nobody's notice is lost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from horovod.common.exceptions import HorovodInternalError
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.worker.comms import Pending
from hvd_elastic_ext.worker.sync.interrupts import LONGEST, MEASURED, SPAN_S, Agreement, missed_deadline
from tests.unit.worker.lockstep import LockstepComms, in_lockstep

Move = Literal["step", "ask"]


@dataclass(frozen=True)
class Script:
    """What all ranks do, and when each of them hears its notice: before so many of the moves, or never."""

    moves: tuple[Move, ...]
    heard: tuple[int | None, ...]


def scripts(moves: st.SearchStrategy[list[Move]]) -> st.SearchStrategy[Script]:
    arrivals = st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=4)
    return st.builds(lambda m, h: Script(tuple(m), tuple(h)), moves, arrivals)


TRAINING = st.lists(st.integers(1, 4), min_size=1, max_size=8).map(
    lambda steps: [move for count in steps for move in ["step"] * count + ["ask"]]
)
"""Checks after one or more steps."""
ANYTHING = st.lists(st.sampled_from(["step", "ask"]), min_size=1, max_size=30)


def answers_of(script: Script) -> list[list[int]]:
    """What each rank was told at each check. A rank goes on wanting what it wants, as a State does."""

    def rank_main(comms: LockstepComms) -> list[int]:
        agreement, answers = Agreement(comms), []
        heard = script.heard[comms.rank()]
        for number, move in enumerate(script.moves):
            wanted = int(heard is not None and heard <= number)
            if move == "step":
                agreement.stepped(wanted)
            else:
                answers.append(agreement.ask(wanted))
        agreement.drop()
        return answers

    results, _ = in_lockstep(len(script.heard), rank_main)
    return list(results)


@given(scripts(ANYTHING))
@settings(max_examples=60)
def test_all_ranks_are_told_the_same_at_every_check_whoever_hears_what_and_when(script: Script) -> None:
    answers = answers_of(script)
    assert all(other == answers[0] for other in answers)
    if not any(heard is not None and heard < len(script.moves) for heard in script.heard):
        assert not any(answers[0])


@given(scripts(TRAINING))
def test_a_notice_takes_effect_after_the_step_that_sends_it_and_one_more_and_at_every_check_from_then_on(
    script: Script,
) -> None:
    """It is sent with the first step after it was heard, and read with the step after that."""
    answers = answers_of(script)[0]
    heard = min((at for at in script.heard if at is not None), default=None)
    checks = [number for number, move in enumerate(script.moves) if move == "ask"]
    if len(script.heard) == 1:
        assert answers == [int(heard is not None and heard <= check) for check in checks]
        return
    for check, answer in zip(checks, answers, strict=True):
        steps = [
            n for n, move in enumerate(script.moves[:check]) if move == "step" and heard is not None and n >= heard
        ]
        assert answer == int(len(steps) >= 2), (check, steps)


@pytest.mark.parametrize("size", [2, 4])
def test_without_steps_a_notice_takes_effect_on_the_spot(size: int) -> None:
    for rank in range(size):
        heard = tuple(1 if other == rank else None for other in range(size))
        assert answers_of(Script(("ask", "ask", "ask"), heard)) == [[0, 1, 1]] * size


def test_after_training_the_first_question_of_an_evaluation_reads_what_is_under_way_and_the_next_asks_anew() -> None:
    script = Script(("step", "ask", "ask", "ask"), (None, 2))
    assert answers_of(script) == [[0, 0, 1]] * 2
    script = Script(("step", "ask", "ask", "ask"), (0, None))
    assert answers_of(script) == [[0, 1, 1]] * 2


def test_one_reduction_a_step_and_none_for_a_check_after_one() -> None:
    def rank_main(comms: LockstepComms) -> None:
        agreement = Agreement(comms)
        for _ in range(10):
            agreement.stepped(0)
            agreement.ask(0)

    _, fabric = in_lockstep(3, rank_main)
    assert fabric.log == ["max agreement"] * 10


class OfItsOwnComms(LockstepComms):
    """A library in which each operation has its own cost."""

    rides_along = False


def reductions(lengths_s: list[float], *, steps: int = 200, notice: int | None = None) -> tuple[list[Any], list[str]]:
    """Step on ranks whose steps take so long; rank 0 hears a notice before a step. At which steps each rank was told,
    and what was sent.
    """

    def rank_main(comms: LockstepComms) -> list[int]:
        comms.__class__ = OfItsOwnComms
        times = itertools.count()
        agreement = Agreement(comms, now=lambda: lengths_s[comms.rank()] * next(times))
        told = []
        for step in range(steps):
            agreement.stepped(int(comms.rank() == 0 and notice is not None and step >= notice))
            if agreement.ask(0):
                told.append(step)
        agreement.drop()
        return told

    told, fabric = in_lockstep(len(lengths_s), rank_main)
    return list(told), fabric.log


@pytest.mark.parametrize(
    ("lengths_s", "every"),
    [([0.001, 0.001], 16), ([0.006, 0.001], 8), ([0.001, 0.02, 0.001], 2), ([0.03, 0.001], 1), ([5.0, 5.0], 1)],
)
def test_short_steps_share_a_reduction_where_it_costs_something_as_the_slowest_rank_has_it(
    lengths_s: list[float], every: int
) -> None:
    _, sent = reductions(lengths_s)
    assert 200 / every - 1 <= len(sent) <= (200 - MEASURED) / every + MEASURED + 3


@given(st.lists(st.sampled_from([0.0001, 0.003, 0.02, 1.0]), min_size=2, max_size=4), st.integers(0, 90))
@settings(max_examples=30, deadline=None)
def test_then_all_are_told_at_the_same_steps_too_and_no_later_than_a_distance_and_a_step_more(
    lengths_s: list[float], notice: int
) -> None:
    told, _ = reductions(lengths_s, steps=120, notice=notice)
    assert all(other == told[0] for other in told)
    assert notice < told[0][0] <= notice + 2**LONGEST
    assert (told[0][0] - notice - 1) * max(lengths_s) <= SPAN_S or told[0][0] == notice + 1


def test_what_is_dropped_is_never_waited_for_and_says_nothing_in_the_next_world() -> None:
    class Silent:
        """A world whose reductions never end."""

        rides_along = True

        def __init__(self) -> None:
            self.waited = 0

        def size(self) -> int:
            return 2

        def start_max(self, number: int, *, name: str) -> Silent:
            return self

        def max(self, number: int, *, name: str) -> int:
            return number

        def wait(self) -> int:
            self.waited += 1
            return 1 << 6 | 63

    comms = Silent()
    agreement = Agreement(comms)
    agreement.stepped(1)
    agreement.drop()
    assert agreement.ask(0) == 0
    agreement.stepped(1)
    agreement.stepped(1)
    assert comms.waited == 1
    agreement.drop()
    agreement.stepped(0)
    assert agreement.ask(0) == 0
    assert comms.waited == 1


def test_a_world_of_one_asks_nobody() -> None:
    results, fabric = in_lockstep(1, lambda comms: [Agreement(comms).ask(wanted) for wanted in (0, 1, 0)])
    assert results[0] == [0, 1, 0]
    assert fabric.log == []


@pytest.mark.parametrize(
    ("now", "deadline", "next_check", "missed", "reason"),
    [
        (10.0, None, None, False, "no host is about to go"),
        (10.0, None, 99.0, False, "no host is about to go"),
        (10.0, 12.0, 11.0, False, "the next check comes in time"),
        (10.0, 12.0, 12.0, False, "the next check comes in time"),
        (10.0, 12.0, None, False, "the next check comes in time"),
        (10.0, 12.0, 13.0, True, "the deadline is in 2.0 s, the next check in 3.0 s"),
        (12.0, 12.0, None, True, "the deadline passed 0.0 s ago"),
        (15.0, 12.0, 16.0, True, "the deadline passed 3.0 s ago"),
    ],
)
def test_a_deadline_is_missed_when_it_comes_before_the_next_check(
    now: float, deadline: float | None, next_check: float | None, missed: bool, reason: str
) -> None:
    assert missed_deadline(now, deadline, next_check=next_check) == (missed, reason)


class GoneComms(LockstepComms):
    """The other rank has left; nothing begins any more."""

    def start_max(self, number: int, *, name: str) -> Pending:
        raise HorovodInternalError("Horovod has been shut down")


def test_a_world_that_is_gone_after_the_last_step_costs_nothing_and_after_another_one_it_shows() -> None:
    def rank_main(comms: LockstepComms) -> None:
        comms.__class__ = GoneComms
        agreement = Agreement(comms)
        agreement.stepped(0)
        assert agreement.ask(0) == 0  # training may end here
        with pytest.raises(HorovodInternalError):
            agreement.stepped(0)
        agreement.stepped(0)
        with pytest.raises(HorovodInternalError):
            agreement.ask(0) or agreement.ask(0)

    in_lockstep(2, rank_main)
