"""Faults in jobs that train with TensorFlow: the numbers are those of a run in which nothing happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.launcher.stepping_jobs import Training
from tests.faults.launcher.test_network_faults import MakeHosts, a_silent_host_is_cut_off_and_returns
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


def test_a_host_that_falls_silent_within_an_operation_is_cut_off_and_returns(
    tmp_path: Path, nethosts: MakeHosts
) -> None:
    """Its cable is pulled while ranks train without a pause: no connection breaks, and all wait in their graphs."""
    a_silent_host_is_cut_off_and_returns(Training(tmp_path, trains="tensorflow"), nethosts)


def test_rank_0_two_ranks_at_once_and_one_within_its_commit_may_be_killed(launched: Launched) -> None:
    launched.set_hosts("localhost:3")
    script = command(launched, "loop.py", SIZE="3", KILLS="7:0 16:1,2", DIES_COMMITTING="31")
    with launched.run(*QUICK, "--min-np", "3", "-np", "3", *script) as process:
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    marks = {path.name for path in (launched.directory / "marks").iterdir()}
    assert {"killed-7-0", "killed-16-1", "killed-16-2", "died-committing"} <= marks
    # Not by strikes: where two slots fail within 30 s, the host has one for all of them.
    assert [each.get("cause") for each in launched.events("exited") if each.get("code")] == ["crashed"] * 4
    assert {each.get("steps_lost") for each in launched.events("rolled_back")} <= {0, 1, 2}


def test_an_error_of_python_within_a_graph_is_one_ranks_own_and_ends_the_job_if_it_is_everyones(
    launched: Launched,
) -> None:
    """TensorFlow raises it as it does the loss of a peer, with its own words before those of the script."""
    launched.set_hosts("localhost:2")
    script = command(launched, "loop.py", SIZE="2", RAISES_AT="7", ALL_RAISE_AT="31")
    with launched.run(*QUICK, "--min-np", "2", "-np", "2", *script) as process:
        assert process.wait(200) == 1, process.output
    first, *_ = launched.events("struck")
    assert "there are no labels for batch 7" in str(first.get("reason"))
    reason = launched.events("finished")[-1].get("reason")
    assert "there are no labels for batch 31" in reason
    assert reason.splitlines()[0] in process.stderr.splitlines()[-1]
    assert process.stderr.count("the training script fails") == 1
