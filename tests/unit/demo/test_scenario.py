"""The scenario with a simulated launcher: its actions, and the failures that it notices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hvd_elastic_ext.demo.observed import Observed, Worker, World
from hvd_elastic_ext.demo.runner import TO_THE_END_S, Frame, Outcome, ScenarioRunner
from hvd_elastic_ext.demo.scenario import (
    ALL,
    STEPS_S,
    Event,
    Kill,
    Position,
    ScenarioStep,
    SetHosts,
    Watch,
    decide,
    full_scenario,
    quick_scenario,
    sizing_scenario,
    worker_to_kill,
)
from hvd_elastic_ext.demo.view import changes, panel

from .conftest import Launcher, SelfMovingClock

Play = Callable[[Sequence[Event]], Outcome]
FULL = full_scenario(commit_every=5)
QUICK = quick_scenario(commit_every=5)


@pytest.mark.parametrize("scenario", [FULL, QUICK], ids=["full", "quick"])
def test_every_event_shows_its_effect_with_a_launcher_that_works(
    run_demo: Play, launcher: Launcher, scenario: tuple[Event, ...]
) -> None:
    outcome = run_demo(scenario)
    assert outcome.failures == ()
    assert outcome.code == 0
    assert len(outcome.frame.done) == len(scenario)
    assert launcher.launchers_killed == [77]
    if scenario is FULL:
        assert [worker.host for worker in launcher.killed] == ["127.0.0.2", "localhost"], "rank 0's host is the second"
    else:
        assert launcher.notified == [("127.0.0.2",), ("localhost", "127.0.0.1")], "first a host that is not rank 0's"


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ({"deaf_to_hosts": True}, r"a third host comes: .* a world of 3 \(hosts added\); it is 2 \(start\)$"),
        ({"deaf_to_kills": True}, r"kill -9 of a worker: waited 60 s .* a world of 2 \(worker failed\)"),
        ({"cooldown_s": 1e9}, "its host is back after the cooldown: waited"),
        ({"resizes_on_garbage": True}, "garbage in the hosts file: waited .* an unchanged world"),
        ({"stays_dead": True}, "kill -9 of the launcher: waited 60 s .* the launcher to be back$"),
        ({"resizes_when_relaunched": True}, "kill -9 of the launcher: waited .* an unchanged world"),
        ({"deaf_to_notices": True}, r"a spot notice to one host: waited 30 s .* a world of 2 \(hosts removed\)"),
        ({"never_seals": True}, "a spot notice to every host: waited 18 s without success for a checkpoint$"),
        ({"trains_beyond": True}, ".*waited 18 s without success for a last checkpoint: after that of step"),
        ({"sleepless": True}, "they are gone, one other is left: waited 60 s .* the job to sleep$"),
        ({"forgets": 3}, "hosts are back: 3 steps were lost; at most 0 may be$"),
        ({"ends_after_steps": 20}, r".*the job ended \(exit code 0\)"),
        ({"ends_after_steps": 10**9}, f"the job did not end by itself within {TO_THE_END_S:.0f} s of the last event$"),
        ({"boot_s": 1e9}, "two hosts start: waited 90 s .* 5 more steps in the new world of 2$"),
        ({"absent_kills": 10**9}, f"kill -9 of a worker: waited {STEPS_S:.0f} s without success"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_launcher_does_not_do_is_a_failure(
    run_demo: Play, launcher: Launcher, fault: dict[str, float], failure: str
) -> None:
    vars(launcher).update(fault)
    (told,) = run_demo(QUICK).failures
    assert re.match(failure, told), told


@pytest.mark.parametrize(
    "harmless",
    [{"absent_agents": 3}, {"absent_kills": 3}, {"cooldown_s": 0.5}],
    ids=["an agent is not there just now", "nor a worker", "a host is back before anybody looked"],
)
def test_what_comes_a_moment_earlier_or_later_is_none(
    run_demo: Play, launcher: Launcher, harmless: dict[str, float]
) -> None:
    vars(launcher).update(harmless, code=1)
    outcome = run_demo(QUICK)
    assert (outcome.failures, outcome.code) == ((), 1)


@pytest.mark.parametrize(
    ("sizes", "failure"),
    [
        ([1, 2, 3, 2], None),
        ([1], r"it tries a second one, which pays: .* a world of 2 \(hosts added\); it is 1 \(start\)$"),
        ([1, 2, 3], r"it does not pay, and goes: .* a world of 2 \(hosts removed\); it is 3 \(hosts added\)$"),
        ([1, 2, 1], r"so a third one comes: .* it is 1 \(hosts removed\)$"),
    ],
    ids=str,
)
def test_a_job_that_chooses_its_size_grows_and_gives_a_host_back(
    run_demo: Play, launcher: Launcher, sizes: list[int], failure: str | None
) -> None:
    launcher.least, launcher.chooses = 1, sizes[1:]
    launcher.publish(f"{ALL[0]}:1\n")
    outcome = run_demo(sizing_scenario())
    if failure is None:
        assert (outcome.failures, outcome.code, len(outcome.frame.done)) == ((), 0, 4)
    else:
        (told,) = outcome.failures
        assert re.match(failure, told), told


def test_an_event_waits_for_its_steps(run_demo: Play, frames: list[Frame]) -> None:
    run_demo(QUICK)
    acted = next(frame for frame in frames if frame.did.startswith("kill"))
    assert acted.seen.world.steps >= QUICK[2].after_steps


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
    assert decision is ScenarioStep.FAIL
    assert "the job ended (exit code 0)" in reason


def test_an_effect_seen_in_the_last_moment_counts_even_if_the_job_ended_with_it() -> None:
    event = Event("come back", Watch(), size=3, causes=("cooldown over",), then_steps=5)
    seen = Observed(worlds=(World(3, "cooldown over", (), steps=5),), finished=0)
    decision, _ = decide(1e6, seen, Position(acted=True), [event])
    assert decision is ScenarioStep.NEXT


def test_worlds_from_before_the_action_are_no_effect_of_it() -> None:
    event = Event("grow", SetHosts(("a",)), size=3, causes=("hosts added",))
    seen = Observed(worlds=(World(3, "hosts added", (), steps=50),))
    decision, _ = decide(0.0, seen, Position(acted=True, worlds=1), [event])
    assert decision is ScenarioStep.WAIT


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
