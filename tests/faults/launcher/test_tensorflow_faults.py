"""Faults in jobs that train with TensorFlow: the numbers are those of a run in which nothing happens."""

from __future__ import annotations

import pytest

from tests.integration.launcher.conftest import Launched, launched
from tests.integration.with_tensorflow.test_jobs import QUICK, alone, command, results
from tests.support.tensorflow import needs_tensorflow

__all__ = ["launched"]

pytestmark = [needs_tensorflow, pytest.mark.soak, pytest.mark.timeout(300)]


def test_a_rank_that_stops_is_cut_off_and_another_process_takes_its_place(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    script = command(launched, "loop.py", STOPS_AT="7")
    with launched.run(*QUICK, "--heartbeat-timeout", "6", "--min-np", "2", "-np", "2", *script) as process:
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    assert {each.get("cause") for each in launched.events("exited")} == {"silent", "done"}


def test_after_the_loss_of_all_ranks_training_goes_on_from_the_last_commit(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    script = command(launched, "loop.py", ALL_DIE_AT="7")
    with launched.run(*QUICK, "--min-np", "2", "-np", "2", *script) as process:
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    assert [each.get("step") for each in launched.events("inherited")] == [6, 6]


def test_a_newcomer_that_dies_in_its_rehearsal_costs_the_others_nothing(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    script = command(launched, "loop.py", SIZE="2", DIES_TRACING="1")
    with launched.run(*QUICK, "-np", "1", *script) as process:
        launched.wait_for("some steps", lambda: "five batches are done" in process.stdout)
        launched.set_hosts("localhost:1", "127.0.0.1:1")
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    [struck] = launched.events("struck")
    assert (struck.get("host"), struck.get("cause")) == ("127.0.0.1", "crashed")
    assert not launched.events("rolled_back")
    assert [each.get("size") for each in launched.events("resized")] == [1, 2]
