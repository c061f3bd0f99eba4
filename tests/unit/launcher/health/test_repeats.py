"""The same failure start after start, case by case."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.strikes import Failure, Verdict, decide, is_counted
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

A0, A1, B0 = Seat("a", 0), Seat("a", 1), Seat("b", 0)


def failures(*seats: Seat, **more: bool) -> list[Failure]:
    """One failure in each start: the processes of the next one are created when the last one has failed."""
    return [Failure(seat, number * 10.0, number * 10.0 + 5.0, **more) for number, seat in enumerate(seats)]


NEVER = float("-inf")


@pytest.mark.parametrize(
    ("found", "left", "expected"),
    [
        (failures(A1, A1), 1, Verdict.NOTHING),
        (failures(A1, A1, A1), 1, Verdict.END),
        (failures(A1, A1, A1), 2, Verdict.BLOCK),
        (failures(A1, A0, A1), 2, Verdict.BLOCK),
        (failures(A1, A1, B0), 9, Verdict.END),
        (failures(A1, A1, A1, A1), 1, Verdict.END),
        (failures(A1, A1, A1, alone=True), 1, Verdict.NOTHING),
        (failures(A1, A1, A1, stepped=True), 2, Verdict.BLOCK),
    ],
)
def test_the_third_start_in_a_row_decides(found: list[Failure], left: int, expected: Verdict) -> None:
    decision = decide(found, stepped_at=NEVER, left=left, needed=2)
    assert decision.verdict is expected
    assert bool(decision.reason) is (expected is not Verdict.NOTHING)


def test_a_step_between_makes_a_failure_the_first_one_again() -> None:
    assert decide(failures(A1, A0, A1), stepped_at=16.0, left=1, needed=2).verdict is Verdict.NOTHING
    assert decide(failures(A1, A1, A1, A1, A1), stepped_at=16.0, left=1, needed=2) == (
        Verdict.END,
        3,
        "slots left without a[1]: 1, needed: 2",
    )


def test_a_slot_that_fails_at_each_start_is_blocked_though_the_others_do_steps_between() -> None:
    assert decide(failures(A1, A1, A1), stepped_at=24.0, left=2, needed=2).verdict is Verdict.BLOCK
    stepped = [each._replace(stepped=True) for each in failures(A1, A1, A1)]
    assert decide(stepped, stepped_at=24.0, left=1, needed=2).verdict is Verdict.NOTHING


def test_processes_that_fail_together_fail_in_one_start() -> None:
    together = [Failure(seat, 0.0, 5.0 + slot) for slot, seat in enumerate((A0, A1, B0))]
    assert decide(together, stepped_at=NEVER, left=0, needed=2) == (Verdict.NOTHING, 1, "")


@pytest.mark.parametrize(
    ("cause", "code", "counted"),
    [
        (Cause.CRASHED, 3, True),
        (Cause.CRASHED, 139, True),
        (Cause.MEMORY, 137, True),
        (Cause.CRASHED, 137, False),
        (Cause.SILENT, 137, False),
        (Cause.NEVER_READY, 137, False),
    ],
)
def test_what_comes_from_outside_is_not_said_to_come_again(cause: Cause, code: int, counted: bool) -> None:
    assert is_counted(cause, code) is counted
