"""The next step while memory is saved."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.checkpoints.attempt import Kept
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import Found, Known, Step, next_step
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

HELD = {Seat("a", 0): Kept((7, 1, 2, 30), 30, 1)}


def stored(number: int) -> Found:
    return Found(f"n{number}", f"/store/n{number}", (7, 1, 2, number), number)


@pytest.mark.parametrize(
    ("known", "step"),
    [
        (Known(), Step.LOOK),
        (Known(True), Step.SLEEP),
        (Known(True, stateless=True), Step.WAIT),
        (Known(True, HELD), Step.WRITE),
        (Known(True, HELD, stored(29), whole=True), Step.WRITE),
        (Known(True, HELD, stored(30)), Step.VERIFY),
        (Known(True, HELD, stored(30), whole=True), Step.SLEEP),
        (Known(True, {}, stored(30)), Step.VERIFY),
        (Known(True, {}, stored(30), whole=True), Step.SLEEP),
        (Known(True, {}, stored(30), stateless=True), Step.VERIFY),
    ],
)
def test_what_is_newer_in_memory_is_sealed_and_what_is_sealed_is_read_back(known: Known, step: Step) -> None:
    assert next_step(known) is step


def test_a_commit_from_whose_checkpoint_no_job_can_resume_is_not_written_again() -> None:
    assert next_step(Known(True, HELD, stored(29)), useless=(1, 2, 30)) is Step.WAIT
    assert next_step(Known(True, HELD, stored(29)), useless=(1, 2, 29)) is Step.WRITE


def test_a_checkpoint_of_the_last_commit_that_does_not_say_that_it_is_the_end_is_written_again() -> None:
    """It was made while the last step was under way, and the same command would train again."""
    of_this, of_another = stored(30)._replace(finished="this"), stored(30)._replace(finished="another command")
    assert next_step(Known(True, HELD, stored(30)), read_back=False, ends="this") is Step.WRITE
    assert next_step(Known(True, HELD, of_another), read_back=False, ends="this") is Step.WRITE
    assert next_step(Known(True, HELD, of_this), read_back=False, ends="this") is Step.SLEEP
    assert next_step(Known(True, {}, stored(30)), read_back=False, ends="this") is Step.SLEEP, "no memory holds it"
