"""How worlds without an elastic loop end, and what remains when all processes are lost, case by case."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.health.endings import (
    Departure,
    Ended,
    Left,
    Staying,
    WorldOutcome,
    WorldPhase,
    first_cause,
    outcome_of_departure,
    outcome_of_world,
    restart_reason,
    why_unjoined_failed,
)

WELL = Ended("rank 1 on b[0]", "left with exit code 0 before training was done", well=True)
BAD = Ended("rank 0 on a[0]", "crashed: exit code 7", well=False)


@pytest.mark.parametrize(
    ("alive", "ended", "expected"),
    [
        (2, [], WorldPhase.RUNNING),
        (1, [BAD], WorldPhase.RUNNING),
        (1, [WELL], WorldPhase.ENDING),
        (0, [WELL, WELL], WorldPhase.DONE),
        (0, [BAD, BAD], WorldPhase.LOST),
        (0, [BAD, WELL], WorldPhase.FAILED),
        (0, [WELL, BAD], WorldPhase.FAILED),
        (0, [WELL], WorldPhase.FAILED),
    ],
)
def test_a_world_is_done_only_if_all_of_it_ended_well(alive: int, ended: list[Ended], expected: WorldPhase) -> None:
    assert outcome_of_world(2, alive, ended).phase is expected


def test_a_failure_names_rank_host_and_code_in_one_line() -> None:
    assert outcome_of_world(2, 0, [WELL, BAD]) == WorldOutcome(
        WorldPhase.FAILED, "rank 0 on a[0] crashed: exit code 7; 1 of 2 processes ended well"
    )
    assert outcome_of_world(4, 0, [BAD, WELL, BAD, BAD]).reason.startswith(
        "rank 0 on a[0] crashed: exit code 7, and 2 more; 1 of 4"
    )
    assert outcome_of_world(2, 0, [WELL]).reason == "the host of a process was lost; 1 of 2 processes ended well"


def test_a_rank_with_an_error_of_its_own_is_named_and_not_one_that_it_took_with_it() -> None:
    took = Ended("rank 1 on b[0]", "crashed: exit code 1: ValueError: bad sample 17", well=False, own=True)
    assert first_cause([BAD, took]) == took
    assert first_cause([WELL, BAD]) == BAD
    assert first_cause([WELL]) is None
    assert outcome_of_world(3, 0, [BAD, took, WELL]).reason.startswith(
        "rank 1 on b[0] crashed: exit code 1: ValueError: bad sample"
    )


def test_programs_that_need_no_world_have_failed_unless_as_many_as_are_wanted_ended_well() -> None:
    assert why_unjoined_failed([WELL, WELL], wanted=2) is None
    assert (
        why_unjoined_failed([WELL, BAD], wanted=2) == "rank 0 on a[0] crashed: exit code 7; 1 of 2 processes ended well"
    )
    assert why_unjoined_failed([WELL, BAD, WELL], wanted=2) is None  # another process has replaced it
    assert why_unjoined_failed([WELL], wanted=2) is None  # the other host never ran it


def test_it_is_said_what_would_have_kept_what_was_trained() -> None:
    assert restart_reason(40, "a[0] crashed: killed by SIGKILL", loops=True) == (
        "no process is left that has trained (a[0] crashed: killed by SIGKILL), and 40 steps were kept nowhere: "
        "a State of hvd_elastic_ext, or --adopt, keeps commits when processes die, and --checkpoint-dir with it when "
        "hosts do"
    )
    assert "what was trained was kept nowhere: the script has no elastic loop" in restart_reason(0, "x", loops=False)


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
