"""How worlds without an elastic loop end, and what remains when all processes are lost, case by case."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.health.loopless import (
    Ended,
    WorldOutcome,
    WorldPhase,
    first_cause,
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
