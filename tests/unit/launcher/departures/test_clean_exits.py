"""What it means that members leave their training function with exit code 0, case by case."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.departures.clean_exits import Departure, Left, Staying, outcome_of_departure

A, B = Left("rank 0 on a[0]", at=100.0, step=12, call=1), Left("rank 1 on b[0]", at=103.0, step=12, call=1)
TRAINS = Staying("rank 1 on b[0]")
DEPARTURES = {
    "all at the same step": ([A, B], [], Departure.DONE),
    "all at the same step, long after one another": ([A, B._replace(at=500.0)], [], Departure.DONE),
    "all within 10 s, at other steps": ([A, B._replace(step=13, at=110.0)], [], Departure.DONE),
    "at other steps, more than 10 s apart": ([A, B._replace(step=13, at=110.1)], [], Departure.PART),
    "in other calls of training functions": ([A, B._replace(call=2)], [], Departure.PART),
    "the call of one is unknown": ([A, B._replace(call=0)], [], Departure.DONE),
    "the other one is done": ([A], [TRAINS._replace(done=True)], Departure.DONE),
    "the other one may follow": ([A], [TRAINS], Departure.WAIT),
    "the other one asks for the next world": ([A], [TRAINS._replace(joins=True)], Departure.PART),
    "the other one is lost": ([A], [TRAINS._replace(lost=True)], Departure.LOSS),
    "one of the others is lost, another may follow": ([A], [TRAINS, TRAINS._replace(lost=True)], Departure.LOSS),
    "one was told to": ([A, B._replace(told="it got a SIGTERM")], [], Departure.RESUMABLE),
    "one that stays has notice": ([A], [TRAINS._replace(told="drained")], Departure.RESUMABLE),
    "one was told to, another is lost": (
        [A._replace(told="drained")],
        [TRAINS._replace(lost=True)],
        Departure.RESUMABLE,
    ),
}


@pytest.mark.parametrize("case", DEPARTURES.values(), ids=DEPARTURES)
def test_training_is_done_only_if_all_have_left_together_and_nobody_was_told_to(
    case: tuple[list[Left], list[Staying], Departure],
) -> None:
    left, others, expected = case
    assert outcome_of_departure(104.0, left, others).departure is expected


def test_those_that_stay_are_waited_for_until_10_s_after_the_first_one_left() -> None:
    found = outcome_of_departure(109.9, [B._replace(who="rank 2 on c[0]"), A], [TRAINS])
    assert (found.departure, found.until) == (Departure.WAIT, 110.0)
    late = outcome_of_departure(110.0, [B._replace(who="rank 2 on c[0]"), A], [TRAINS])
    assert (late.departure, late.until) == (Departure.PART, None)
    assert late.reason.endswith("rank 0 on a[0] left the training function with exit code 0, rank 1 on b[0] did not")


def test_an_end_of_training_names_the_step_if_it_is_the_same_on_all_ranks() -> None:
    whole = "all ranks left the training function with exit code 0"
    assert outcome_of_departure(104.0, [A, B], []).reason == f"{whole} at step 12"
    assert outcome_of_departure(104.0, [A, B._replace(step=13)], []).reason == whole
