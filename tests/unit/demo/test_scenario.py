"""The scenario with a simulated launcher: its actions, and the failures that it notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hvd_elastic_ext.demo.observed import Observed, Worker, World
from hvd_elastic_ext.demo.runner import TO_THE_END_S, Frame, Outcome, ScenarioRunner
from hvd_elastic_ext.demo.scenario import (
    PATIENCE_S,
    Decision,
    Event,
    Kill,
    Position,
    SetHosts,
    Watch,
    decide,
    full_scenario,
    quick_scenario,
    worker_to_kill,
)
from hvd_elastic_ext.demo.view import changes, panel

from .conftest import Launcher, SelfMovingClock

Play = Callable[[Sequence[Event]], Outcome]
FULL = full_scenario(commit_every=5)
QUICK = quick_scenario(commit_every=5)


@pytest.mark.parametrize("scenario", [FULL, QUICK], ids=["full", "quick"])
def test_every_event_shows_its_effect_with_a_launcher_that_works(run_demo: Play, scenario: tuple[Event, ...]) -> None:
    outcome = run_demo(scenario)
    assert outcome.failures == ()
    assert outcome.code == 0
    assert len(outcome.frame.done) == len(scenario)


def test_the_full_demo_kills_rank_0_and_another(run_demo: Play, launcher: Launcher) -> None:
    run_demo(FULL)
    assert [worker.host for worker in launcher.killed] == ["127.0.0.2", "localhost"]


def test_an_event_waits_for_its_steps(run_demo: Play, frames: list[Frame]) -> None:
    run_demo(QUICK)
    acted = next(frame for frame in frames if frame.did.startswith("kill"))
    assert acted.seen.world.steps >= QUICK[2].after_steps


def test_a_new_host_that_is_never_used_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.deaf_to_hosts = True
    (failure,) = run_demo(QUICK).failures
    assert failure == "a third host comes: waited 60 s without success for a world of 3 (hosts added); it is 2 (start)"


def test_a_worker_that_survives_its_kill_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.deaf_to_kills = True
    (failure,) = run_demo(QUICK).failures
    assert failure.startswith("kill -9 of a worker: waited 60 s without success for a world of 2 (worker failed)")


def test_a_host_that_never_comes_back_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.cooldown_s = 1e9
    (failure,) = run_demo(QUICK).failures
    assert failure.startswith("its host is back after the cooldown: waited")


def test_garbage_that_changes_the_world_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.resizes_on_garbage = True
    (failure,) = run_demo(QUICK).failures
    assert failure.startswith("garbage in the hosts file: waited")
    assert "an unchanged world" in failure


@pytest.mark.parametrize("scenario", [FULL, QUICK], ids=["full", "quick"])
def test_the_launcher_that_is_killed_is_the_one_that_runs(
    run_demo: Play, launcher: Launcher, scenario: tuple[Event, ...]
) -> None:
    assert run_demo(scenario).failures == ()
    assert launcher.launchers_killed == [77]


def test_a_launcher_that_does_not_come_again_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.stays_dead = True
    (failure,) = run_demo(QUICK).failures
    assert failure == "kill -9 of the launcher: waited 60 s without success for the launcher to be there again"


def test_a_world_that_changes_because_the_launcher_was_killed_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.resizes_when_relaunched = True
    (failure,) = run_demo(QUICK).failures
    assert failure.startswith("kill -9 of the launcher: waited")
    assert "an unchanged world" in failure


def test_a_spot_notice_goes_to_a_host_that_is_not_rank_0s_and_then_to_all(run_demo: Play, launcher: Launcher) -> None:
    assert run_demo(QUICK).failures == ()
    assert launcher.notified == [("127.0.0.2",), ("localhost", "127.0.0.1")]


def test_a_host_that_does_not_leave_in_the_time_of_its_notice_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.deaf_to_notices = True
    (failure,) = run_demo(QUICK).failures
    assert failure.startswith("a spot notice to one host: waited 30 s without success for a world of 2 (hosts removed)")


def test_an_agent_that_is_not_there_just_now_gets_its_notice_later(run_demo: Play, launcher: Launcher) -> None:
    launcher.absent_agents = 3
    assert run_demo(QUICK).failures == ()


def test_a_notice_to_all_without_a_checkpoint_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.never_seals = True
    (failure,) = run_demo(QUICK).failures
    assert failure == "a spot notice to every host: waited 18 s without success for a checkpoint"


def test_training_on_beyond_the_last_checkpoint_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.trains_beyond = True
    (failure,) = run_demo(QUICK).failures
    assert "waited 18 s without success for a last checkpoint: after that of step" in failure


def test_a_job_that_does_not_sleep_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.sleepless = True
    (failure,) = run_demo(QUICK).failures
    assert failure == "they are gone, one other is left: waited 60 s without success for the job to sleep"


def test_a_job_that_wakes_some_steps_earlier_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.forgets = 3
    assert run_demo(QUICK).failures == ("hosts are back: 3 steps were lost; at most 0 may be",)


def test_losing_more_steps_than_a_commit_protects_is_a_failure_and_the_scenario_goes_on(
    run_demo: Play, launcher: Launcher
) -> None:
    launcher.losing = 9
    outcome = run_demo(FULL)
    assert outcome.failures == (
        "kill -9 of a worker: 9 steps were lost; at most 5 may be",
        "kill -9 of rank 0 itself: 9 steps were lost; at most 5 may be",
    )
    assert len(outcome.frame.done) == len(FULL)


def test_a_job_that_ends_before_its_scenario_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.ends_after_steps = 20
    (failure,) = run_demo(QUICK).failures
    assert "the job ended (exit code 0)" in failure


def test_a_job_that_fails_at_the_end_keeps_its_exit_code(run_demo: Play, launcher: Launcher) -> None:
    launcher.code = 1
    assert run_demo(QUICK).code == 1


def test_a_job_that_never_ends_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.ends_after_steps = 10**9  # in virtual time
    outcome = run_demo(QUICK)
    assert outcome.failures == (f"the job did not end by itself within {TO_THE_END_S:.0f} s of the last event",)
    assert outcome.code is None


def test_a_job_that_never_trains_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.boot_s = 1e9
    (failure,) = run_demo(QUICK).failures
    assert failure == "two hosts start: waited 90 s without success for 5 more steps in the new world of 2"


def test_a_worker_that_is_not_there_just_now_is_tried_again(run_demo: Play, launcher: Launcher) -> None:
    launcher.absent_kills = 3
    assert run_demo(QUICK).failures == ()


def test_a_worker_that_is_never_there_is_a_failure(run_demo: Play, launcher: Launcher) -> None:
    launcher.absent_kills = 10**9
    (failure,) = run_demo(QUICK).failures
    assert failure.startswith(f"kill -9 of a worker: waited {PATIENCE_S:.0f} s without success")


def test_a_host_that_is_back_before_anybody_looked_counts_as_back(run_demo: Play, launcher: Launcher) -> None:
    # So short a cooldown is over while the event before still waits for steps of the smaller world.
    launcher.cooldown_s = 0.5
    assert run_demo(QUICK).failures == ()


def test_a_stop_ends_the_scenario(launcher: Launcher, clock: SelfMovingClock) -> None:
    drive = ScenarioRunner(FULL, launcher.tail, control=launcher, clock=clock, watch=lambda _: None)
    outcome = drive.run(lambda: clock.mono() > 110.0)
    assert outcome.code is None
    assert outcome.failures == ()
    assert outcome.frame.at == pytest.approx(10.0, abs=0.2)


def test_nothing_is_done_to_a_job_that_has_finished() -> None:
    event = Event("grow", SetHosts(("a",)), size=3, causes=("hosts added",), after_steps=5)
    seen = Observed(worlds=(World(2, "start", ("a", "b"), steps=50),), finished=0)
    decision, reason = decide(10.0, seen, Position(), [event])
    assert decision is Decision.FAIL
    assert "the job ended (exit code 0)" in reason


def test_an_effect_seen_in_the_last_moment_counts_even_if_the_job_ended_with_it() -> None:
    event = Event("come back", Watch(), size=3, causes=("cooldown over",), then_steps=5)
    seen = Observed(worlds=(World(3, "cooldown over", (), steps=5),), finished=0)
    decision, _ = decide(1e6, seen, Position(acted=True), [event])
    assert decision is Decision.NEXT


def test_worlds_from_before_the_action_are_no_effect_of_it() -> None:
    event = Event("grow", SetHosts(("a",)), size=3, causes=("hosts added",))
    seen = Observed(worlds=(World(3, "hosts added", (), steps=50),))
    decision, _ = decide(0.0, seen, Position(acted=True, worlds=1), [event])
    assert decision is Decision.WAIT


def test_rank_0_is_killed_only_on_request() -> None:
    workers = (Worker("b", 0, 0, 11), Worker("a", 0, 1, 12), Worker("c", 0, 2, 13))
    seen = Observed(workers=workers, rank_0_host="a")  # the rank at the start says nothing of the rank now
    assert worker_to_kill(seen, Kill(rank_0=True)) == workers[1]
    assert worker_to_kill(seen, Kill()) == workers[2]


def test_nobody_is_killed_while_rank_0_is_unknown() -> None:
    assert worker_to_kill(Observed(workers=(Worker("b", 0, 0, 11),)), Kill()) is None


def test_plain_lines_show_every_action_world_and_effect(run_demo: Play, frames: list[Frame]) -> None:
    run_demo(QUICK)
    told = [line for before, after in zip([None, *frames], frames, strict=False) for line in changes(before, after)]
    assert len([line for line in told if line.startswith("shown: ")]) == len(QUICK)
    assert len([line for line in told if line.startswith("--> ")]) == 10
    assert len([line for line in told if line.startswith("world of ")]) == 7
    assert "next: training goes on to its end" in told


def test_a_frame_without_change_shows_no_line(run_demo: Play, frames: list[Frame]) -> None:
    run_demo(QUICK)
    assert changes(frames[-1], replace(frames[-1], at=1e9)) == []


def test_every_frame_can_be_shown(run_demo: Play, frames: list[Frame]) -> None:
    run_demo(FULL)
    assert all(panel(frame).renderable is not None for frame in frames[:: len(frames) // 20])
