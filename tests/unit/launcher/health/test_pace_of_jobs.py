"""A world that makes no step is logged within 5 s, with the reason and the consequence; slow steps are not."""

from __future__ import annotations

import logging
import re
from itertools import pairwise
from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.membership.reports import take_heartbeat
from hvd_elastic_ext.launcher.membership.world_change import Stage
from hvd_elastic_ext.launcher.reporting.all_waits import status
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions
from tests.unit.launcher.simulated_processes import Process, Training

TRAIN = "train a b c; pace * 0.2; run 30; "


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines about a pause."""
    lines = [each.getMessage() for each in caplog.records]
    return [line for line in lines if line.startswith(("no step for", "training "))]


class Phases(Training):
    """Processes that make progress only every ``every_s`` seconds, and not before ``until``. No rank waits."""

    every_s, until_s = 1.0, 0.0

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._moved: dict[ProcessId, float] = {}

    def trains(self, process: Process) -> None:
        now = self.clock.mono()
        if now >= self.until_s and now - self._moved.get(process.id, 0.0) >= self.every_s - 0.01:
            self._moved[process.id] = now
            super().trains(process)


def phases(every_s: float, then: str, *, wait_lines_s: float = 60.0) -> Cluster:
    class Paced(Phases):
        pass

    Paced.every_s = every_s
    cluster: Cluster = play(f"train a b wait_lines_s={wait_lines_s}; {then}", Paced)
    return cluster


HANGS = {
    "of one rank, by default": (TRAIN + "stick b", "rank 1 (b[0]) is waited for; reported as stalled after 60 s"),
    "of two ranks": (TRAIN + "stick b; stick c", "ranks 1 and 2 are waited for; reported as stalled after 60 s"),
    "in collectives that do not match": (
        TRAIN + "wedge a; wedge b; wedge c; hold 1",
        "all 3 ranks wait for one another; reported as stalled after 60 s",
    ),
    "with a timeout": (
        TRAIN.replace(";", " progress_timeout_s=20.0;", 1) + "stick b",
        "rank 1 (b[0]) is waited for; reported as stalled after 20 s (--progress-timeout)",
    ),
    "that is to be ended": (
        TRAIN.replace(";", " progress_timeout_s=20.0 restart_stalled=True;", 1) + "stick b",
        "rank 1 (b[0]) is waited for; ended and started again after 20 s (--progress-timeout)",
    ),
    "of the only rank": (
        "train a; pace * 0.2; run 30; stick a",
        "rank 0 (a[0]) is busy, or hangs; reported as stalled only if --progress-timeout S is given",
    ),
}


@pytest.mark.parametrize(("scenario", "who"), HANGS.values(), ids=HANGS)
def test_a_hang_is_said_within_5_s(scenario: str, who: str, caplog: pytest.LogCaptureFixture) -> None:
    held = scenario.endswith("hold 1")
    cluster = play(scenario.removesuffix("; hold 1"))
    if held:
        cluster.training.held_up = lambda process: True
    assert told(caplog) == []
    cluster.run(5.0)
    (line,) = told(caplog)
    assert re.fullmatch(rf"no step for [345] s \(usually 1 s\): {re.escape(who)}", line), line


def test_a_process_that_is_stopped_in_a_collective_is_said_with_when_it_counts_as_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play(TRAIN.replace(";", " heartbeat_timeout_s=30.0;", 1) + "wedge b; run 1.5")
    cluster.first("b").stopped = True
    cluster.training.held_up = lambda process: True
    cluster.run(5.0)
    assert told(caplog)[0].endswith(
        ": rank 1 (b[0]) is waited for; no heartbeat from b[0]: failed after 30 s (--heartbeat-timeout)"
    )
    cluster.until(lambda: cluster.events("fenced"))


def test_between_the_kill_of_a_stopped_process_and_its_end_that_process_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b least=2; pace * 0.2; run 30; wedge b; run 1.5")
    cluster.first("b").stopped = True
    cluster.training.held_up = lambda process: True
    cluster.until(lambda: told(caplog))
    caplog.clear()
    (worker,) = cluster.driver.job.roster.on("b")
    worker.killed = Cause.SILENT
    cluster.run(5.0)
    assert told(caplog)[0].endswith(
        ": rank 1 (b[0]) has been killed and is waited for; no limit: it ends with the process there"
    )


def test_a_rank_that_has_finished_before_the_others_is_said_with_when_that_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play(TRAIN + "done c; run 0.1")
    cluster.training.held_up = lambda process: process.host != "c"
    cluster.run(5.0)
    (line,) = told(caplog)
    assert line.endswith(": rank 2 (c[0]) has finished training and is waited for; reported as stalled after 15 s")
    cluster.run(9.0)
    assert not cluster.events("stalled")
    cluster.run(4.0)
    assert cluster.events("stalled")


def test_while_another_wait_is_said_the_pause_is_not(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play(TRAIN)
    for process in cluster.members:
        cluster.say(process, "first_step", pause_s=None)
    cluster.run(1.0)
    cluster.kill("c")
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.training.held_up = lambda process: True
    cluster.run(9.0)
    assert "waiting: for the first step of world 2 by rank 0 (a[0])" in caplog.text
    assert told(caplog) == []
    cluster.run(8.0)
    assert [line.partition(" (")[0] for line in told(caplog)] == ["no step for 12 s"]


def test_long_changes_of_the_world_are_no_usual_steps(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play(
        "train a b c least=3; run 10; kill c; until a b c; run 4; kill c; until a b c; run 4; stick b; run 5"
    )
    assert [event["size"] for event in cluster.events("resized")] == [3, 3, 3]
    assert len(told(caplog)) == 1


def test_of_many_steps_between_two_heartbeats_the_mean_counts() -> None:
    worker = Worker(ProcessId(Seat("a", 0), 1), Host("a", 1), Stage.LIVE, 0.0)
    for now, step, progress in [(1.0, 0, 1), (2.0, 5, 6), (3.0, 5, 7), (6.0, 5, 7), (7.0, 6, 8)]:
        take_heartbeat(worker, {"step": step, "progress": progress}, now)
    assert list(worker.steps_s) == [0.2, 1.0, 4.0]


AT_S = [3, 10, 30, 60, *range(120, 601, 60)]
"""When lines come about a pause of ten minutes, in seconds since its beginning."""


def test_a_hang_for_which_ranks_wait_is_told_at_the_pace_as_long_as_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play(TRAIN + "stick b")
    cluster.run(600.0)
    seconds = [int(line.split()[3]) for line in told(caplog)]
    assert seconds == pytest.approx(AT_S, abs=1.1)
    assert told(caplog)[-1].endswith(
        "; reported as stalled; no limit: it ends when the stalled ranks go on, or their processes end"
    )


@pytest.mark.parametrize(("lines_s", "number"), [(4.0, 150), (60.0, 12), (300.0, 7)])
def test_a_hang_of_all_is_told_at_the_pace_or_as_asked_as_long_as_it_lasts(
    lines_s: float, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = phases(1.0, "run 30", wait_lines_s=lines_s)
    cluster.training.until_s = 10_000.0
    cluster.run(600.0)
    seconds = [int(line.split()[3]) for line in told(caplog)]
    assert len(seconds) == pytest.approx(number, abs=1)
    assert max(later - one for one, later in pairwise(seconds)) <= lines_s + 1
    for line, (one, later) in zip(told(caplog), pairwise(seconds), strict=False):
        promised = re.search(r"; next line in (\d+) s$", line)
        assert (promised is None) == (later - one <= 61)
        if promised is not None:
            assert abs(one + int(promised[1]) - later) <= 1
    assert "; reported as stalled only if --progress-timeout S is given" in told(caplog)[-1]


def test_a_hang_of_all_that_others_begin_to_wait_for_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = phases(1.0, "run 30", wait_lines_s=300.0)
    cluster.training.until_s = 10_000.0
    cluster.run(400.0)
    caplog.clear()
    cluster.training.held_up = lambda process: process.host == "a"  # type: ignore[method-assign]
    cluster.run(6.0)
    assert told(caplog)[-1].partition(": ")[2].startswith("rank 1 (b[0]) is waited for; reported as stalled")


def test_that_training_goes_on_is_said_with_the_length_of_the_pause(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play(TRAIN + "stick b; run 12; stick b 0; run 60")
    assert len(cluster.events("stalled")) == 0
    assert re.fullmatch(r"training goes on after 1[234] s without a step", told(caplog)[-1])
    assert len(told(caplog)) == 3
    caplog.clear()
    cluster.agents["b"].processes[0].stuck = True
    cluster.run(5.0)
    assert len(told(caplog)) == 1  # the next pause is logged as soon


def test_slow_steps_are_told_at_first_and_then_are_usual(caplog: pytest.LogCaptureFixture) -> None:
    cluster = phases(20.0, "run 70")
    assert re.findall(r"(no step for|begins after|goes on after) (\d+) s", "\n".join(told(caplog))) == [
        *(("no step for", "4"), ("no step for", "11"), ("begins after", "18")),
        *(("no step for", "3"), ("no step for", "10"), ("goes on after", "20")),
    ]
    caplog.clear()
    cluster.run(300.0)
    assert told(caplog) == []
    cluster.training.until_s = cluster.clock.mono() + 60.0
    cluster.run(50.0)
    assert "(usually 20 s): all 2 ranks are busy, or hang; reported as stalled only" in told(caplog)[0]


@pytest.mark.parametrize(("lines_s", "lines"), [(4.0, 16), (60.0, 5)])
def test_a_validation_of_a_minute_is_told_at_the_pace_or_as_asked_each_time(
    lines_s: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = phases(1.0, "run 30", wait_lines_s=lines_s)
    for _ in range(3):
        caplog.clear()
        cluster.training.until_s = cluster.clock.mono() + 60.0
        cluster.run(120.0)
        assert len(told(caplog)) == lines
        assert re.fullmatch("training goes on after 6[012] s without a step", told(caplog)[-1])


def test_a_process_that_calls_heartbeat_is_no_pause(caplog: pytest.LogCaptureFixture) -> None:
    play(TRAIN + "stick b; beats b; run 60")
    assert told(caplog) == []


def test_a_change_of_the_world_is_no_pause(caplog: pytest.LogCaptureFixture) -> None:
    play(TRAIN + "kill b; until a c; run 60; hosts a b c d; run 60")
    assert told(caplog) == []


def test_a_launcher_that_was_paused_says_no_pause_of_training(caplog: pytest.LogCaptureFixture) -> None:
    cluster = phases(10.0, "run 105")
    caplog.clear()
    cluster.training.until_s = cluster.clock.mono() + 34.0  # messages of that time are not read yet
    cluster.standstill(30.0)
    cluster.run(20.0)
    assert told(caplog) == []


def test_what_is_not_heard_is_no_pause(caplog: pytest.LogCaptureFixture) -> None:
    """A connection is lost within a step, and returns when the step would be longer than usual."""
    cluster = phases(5.0, "run 30")
    caplog.clear()
    cluster.options.heartbeat_timeout_s = 60.0
    moved = {worker.seat.host: worker for worker in cluster.driver.job.roster.workers.values()}
    cluster.until(lambda: cluster.clock.mono() - moved["a"].moved_at > 3.5)
    cluster.disconnect("a")
    cluster.disconnect("b")
    cluster.run(9.0)
    cluster.reconnect("a")
    cluster.reconnect("b")
    cluster.run(9.0)
    assert told(caplog) == []


def test_the_time_at_which_a_process_sent_its_heartbeat_counts() -> None:
    cluster = play(TRAIN)
    worker = cluster.driver.job.roster.workers[Seat("a", 0)]
    entry = {"life": worker.life.number, "age": 0.75, "beat": {"progress": worker.progress + 1}}
    cluster.driver.tell(News("a", {"event": "beats", "slots": {"0": entry}}))
    assert worker.moved_at == cluster.clock.mono() - 0.75


def test_a_lost_connection_says_nothing_of_steps(caplog: pytest.LogCaptureFixture) -> None:
    play(TRAIN + "disconnect a b c; run 4; reconnect a; reconnect b; reconnect c; run 10")
    assert told(caplog) == []


def test_the_status_tells_the_pause_in_place_of_the_speed() -> None:
    cluster = play(TRAIN)
    assert status(cluster.driver.job).endswith(", 5 steps/s")
    cluster.agents["b"].processes[0].stuck = True
    cluster.run(5.0)
    assert re.search(
        r", no step for [345] s \(usually 1 s\): rank 1 \(b\[0\]\) is waited for; reported as stalled after 60 s$",
        status(cluster.driver.job),
    )
    cluster.run(20.0)
    assert re.search(r", no step for 2[345] s ", status(cluster.driver.job))
    cluster.agents["b"].processes[0].stuck = False
    cluster.run(3.0)
    assert status(cluster.driver.job).endswith(" steps/s")


def test_a_pause_changes_no_time_of_a_look() -> None:
    """A recording contains the times of looks. One of an older launcher must lead to the same decisions."""
    quiet, hangs = play(TRAIN), play(TRAIN + "stick b")
    for _ in range(8):
        times = []
        for cluster in (quiet, hangs):
            cluster.run(0.5)
            times.append(cluster.driver.look() - cluster.clock.mono())
        assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("options", [JobOptions(), JobOptions(progress_timeout_s=30.0)])
def test_a_job_without_a_world_has_no_pause(options: JobOptions, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(options)
    cluster.hosts(a=1)
    cluster.boot_s["a"] = 300.0
    cluster.run(100.0)
    assert told(caplog) == []
