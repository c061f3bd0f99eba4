"""What ``hvd-elastic status --json`` says of a job: its state, and its numbers."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.driver.words import Wait
from hvd_elastic_ext.launcher.reporting.status import STATES, numbers, state_of, wait_json, wait_of
from tests.unit.launcher.scenarios import play

PLAYED = {
    "begin; hosts a b; run 0.01": "starts",
    "train a b; run 5": "trains",
    "train a b least=2; run 5; kill b; run 1": "waits",
    "train a b; run 5; takes write 60; interrupt; run 1": "ends",
}


@pytest.mark.parametrize(("text", "state"), PLAYED.items(), ids=PLAYED.values())
def test_the_state_of_a_job_is_one_word(text: str, state: str) -> None:
    job = play(text, every="notice").driver.job
    assert state_of(job) == state
    assert state in STATES
    assert (wait_of(job) is None) == (state == "trains")


def test_the_numbers_are_those_of_the_world_that_trains() -> None:
    job = play("train a:2 b; run 5").driver.job
    seen = numbers(job)
    assert (seen["generation"], seen["size"], seen["checkpoint"]) == (1, 3, None)
    assert seen["step"] == max(worker.step for worker in job.roster.workers.values())
    lost = numbers(play("train a b least=2; run 5; kill b; run 1").driver.job)
    assert lost["size"] == 0


def test_a_wait_says_what_follows_its_limit_or_what_ends_it() -> None:
    limited = wait_json(Wait("for hosts", 12.5, ", then the job fails"), 10.0)
    assert limited == {"what": "for hosts", "left_s": 2.5, "then": "then the job fails"}
    assert wait_json(Wait("for b", ends="it ends with b"), 10.0) == {
        "what": "for b",
        "left_s": None,
        "then": "it ends with b",
    }
    assert wait_json(None, 10.0) is None
