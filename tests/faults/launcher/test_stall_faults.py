"""Ranks that send heartbeats and make no progress, or less progress than the others."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.faults.launcher.stepping_jobs import ANY_ENGINE, Training, training
from tests.support.pages import Answer, read_back, read_in_browser

__all__ = ["training"]

BEATS = ("--heartbeat-interval", "0.2")


@pytest.mark.soak
def test_a_stalled_rank_is_named_restarted_and_continues_from_the_others_commit(
    training: Training, tmp_path: Path
) -> None:
    training.set_hosts("localhost:1", "127.0.0.1:1")
    env = {"LAG_HOST": "127.0.0.1", "LAG_S": "3600", "LAG_ONCE": str(tmp_path / "lagged")}
    options = ("--progress-timeout", "10", "--restart-stalled", "--output-filename", tmp_path / "output")
    hung = Answer("127.0.0.1", "no progress for", "See where that process on 127.0.0.1 hangs", output="step 20 rank")
    killed = Answer("127.0.0.1", "stalled: killed by the launcher", "It hung, and was killed", output="step 20 rank")
    with training.train("-np", "2", *BEATS, *options, env=env):
        training.wait_for("stall", lambda: training.events("stalled"))
        training.wait_for_size(1)
        training.wait_for_size(2)
        training.process.terminate()
        training.process.wait(60)
    read_back(training.journal, hung, killed)
    read_in_browser(training.journal, hung, killed, folder=tmp_path)
    stalled = training.events("stalled")
    assert [record.get("hosts") for record in stalled] == [["127.0.0.1[0]"]]
    ended = training.events("exited")[0]
    assert (ended.get("host"), ended.get("cause")) == ("127.0.0.1", "stalled")
    assert training.causes() == ["start", "worker failed", "cooldown over"]
    assert not training.events("fenced")
    training.check_steps()


@pytest.mark.soak
def test_a_straggler_is_named_and_drained_and_costs_no_rank_a_step(training: Training) -> None:
    training.set_hosts("localhost:2", "127.0.0.1:1")
    env = {"LAG_HOST": "127.0.0.1", "LAG_S": "0.3", "PAUSE_S": "0.1"}
    with training.train("-np", "3", *BEATS, "--drain-stragglers", env=env):
        training.wait_for_size(3)
        training.wait_for("straggler", lambda: training.events("straggler"), timeout=90)
        training.wait_for_size(2)
        why = Answer("127.0.0.1", "s a step", "See what else runs on 127.0.0.1")
        read_back(training.journal, why, folder=training.state_dir)
        training.process.terminate()
        training.process.wait(60)
    (straggler,) = training.events("straggler")
    assert (straggler.get("host"), straggler.get("drained")) == ("127.0.0.1", True)
    assert straggler.get("step_s") > 1.5 * straggler.get("median_s")
    assert training.causes() == ["start", "hosts removed"]
    assert not training.events("struck")
    assert not training.events("rolled_back")
    training.check_steps()


@ANY_ENGINE
@pytest.mark.soak
def test_a_launcher_stopped_for_longer_than_the_heartbeat_timeout_blames_no_host(
    training: Training,
) -> None:
    training.set_hosts("localhost:1", "127.0.0.1:1")
    env = {"PAUSE_S": "0.005"}  # much output, too
    with training.train("-np", "2", *BEATS, "--heartbeat-timeout", "3", env=env) as process:
        training.wait_for_size(2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(8.0)
        process.send_signal(signal.SIGCONT)
        training.wait_for_size(2, more=100)
        training.process.terminate()
        training.process.wait(60)
    assert training.causes() == ["start"]
    assert not training.events("fenced") + training.events("struck") + training.events("isolated")
    training.check_uninterrupted("localhost")
    training.check_steps()
