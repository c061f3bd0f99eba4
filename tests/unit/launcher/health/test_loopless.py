"""Scripts without an elastic loop, and jobs that have lost all processes, in a cluster in memory."""

from __future__ import annotations

import logging
import re

import pytest

from hvd_elastic_ext.launcher.driver.job import SYNC_S
from hvd_elastic_ext.launcher.reporting.all_waits import status
from tests.unit.launcher.scenarios import Scenario, play
from tests.unit.launcher.simulated_cluster import Cluster
from tests.unit.launcher.simulated_processes import Process, Training


class Plain(Training):
    """Processes that enter a world once, get no messages, keep nothing, and fail when they lose it unless ``alone``."""

    alone = False
    commits = loops = False

    def enters(self, process: Process) -> None:
        process.agent.report(process, "entered", generation=process.generation)

    def leaves_world(self, process: Process) -> None:
        return

    def loses(self, process: Process, generation: int | None = None) -> None:
        if process.state == "training" and generation in (None, process.generation) and not self.alone:
            process.interrupted = True  # all of them lose the world at once
            self.later(0.1, lambda: self.ends(process, 1))

    def commit(self, process: Process) -> None:
        return


class Alone(Plain):
    """Processes that do not need the others."""

    alone = True


class Silent(Plain):
    """Processes whose steps are not reported."""

    def trains(self, process: Process) -> None:
        return


class Stock(Plain):
    """Processes with Horovod's own loop and State."""

    loops = True

    def enters(self, process: Process) -> None:
        super().enters(process)
        process.agent.report(process, "looping")
        process.agent.report(process, "synced")

    def leaves_world(self, process: Process) -> None:
        Training.leaves_world(self, process)

    def loses(self, process: Process, generation: int | None = None) -> None:
        Training.loses(self, process, generation)


def test_a_process_that_ends_well_without_a_loop_is_not_said_to_have_left_before_the_end() -> None:
    cluster = play("train a b; run 3; well b; run 3; well a; run 3", Plain)
    assert {each["reason"] for each in cluster.events("exited")} == {"ended with exit code 0; it began no elastic loop"}


def test_a_host_is_not_said_to_be_used_again_when_the_loss_of_its_process_ends_the_job() -> None:
    """Defect: "a has failed, and is used again at once: no other host may work…", and then the job failed."""
    cluster = play("train a; run 3; kill a; fails the script has no elastic loop; over", Plain)
    (struck,) = cluster.events("struck")
    assert "waived" not in struck
    assert cluster.events("cleared") == []


OVER = "train a b; run 3; "
OVER_SOON = "train a b elastic_timeout_s=60; run 3; "
PLAIN = {
    "done when all processes have ended with 0, however long the last one takes": OVER_SOON
    + "well b; run 200; goes-on; running; well a; ended-well",
    "added hosts wait and do not repeat the training": OVER
    + f"""hosts a b c; run {SYNC_S + 5}; hosts a b c d; run 30; is not_resized.cause hosts added; well a; run 5; well b
        ended-well; generation 1""",
    "added hosts join when a loop starts": OVER + "hosts a b c; run 30; world a b; loop a b; begun 2",
    "a script that loses a rank has failed and is not restarted": OVER
    + "kill b; fails the script has no elastic loop; over; generation 1",
    "and names the rank whose script failed, not the one that it took with it": OVER
    + "fail b ValueError: bad; fails that has trained (rank 1 on b[0] crashed: exit code 1: ValueError: bad), and",
    "processes that fail before any step are started again": "train a b; kill a; begun 2; sees resized 2; goes-on",
    **{
        f"on hosts that will go ({going}) the job ends with 0": OVER
        + f"{going}; run 1; well a; run 1; well b; ended-well"
        for going in ("notice b 3600 spot", "notice a 3600 spot; notice b 3600 spot")
    },
}
ALONE = {
    "a rank that fails before another one ends with 0 fails the job": OVER
    + "kill a 7; run 2; well b; over; "
    + (FAILED := "fails rank 0 on a[0] crashed: exit code 7"),
    "whichever ends first": OVER + f"well b; run 2; kill a 7; over; {FAILED}",
    "the remaining ranks may take any time": OVER_SOON
    + "kill b; run 200; running; well a; fails rank 1 on b[0] crashed",
    "ranks that wait for a silent host are disconnected from it": OVER + "cut b; sees fenced; run 1; messages fence 1",
    "an end is counted once, also after a restored connection": OVER
    + "kill a 7; run 1; disconnect a; reconnect a; run 2; is exited.host a; well b; over; is exited.host a, b",
}
STOCK = {
    "if all ranks are lost the job fails and names what would have kept the training": OVER
    + "kill a; kill b; fails --adopt, keeps commits when processes die; over",
    "with restart_from_scratch it starts from the beginning, and each time is counted": """
        train a b restart_from_scratch=True; run 3; kill a; kill b; sees training_restarted; size 2; run 5; kill a
        kill b; sees training_restarted 2; size 2; is training_restarted.number 1, 2; goes-on""",
    "if one trained process is left, the others get its state": """
        train a b c; run 3; kill a; kill b; until c; until c a b; goes-on""",
    "a rank that fails in its last steps fails the job, even if the others are done": OVER
    + "done a; run 0.1; well a; run 0.004; kill b 1; fails b[0] crashed: exit code 1, before its training was done",
    "a script that was told to save is started again": OVER
    + "warned a; warned b; kill a 255; kill b 255; until a b; goes-on; no training_restarted",
    "a newcomer that has synced with the lost ranks has the training without a step of its own": """
        train a; run 3; hosts a b; until a b; run 0.05; kill a; until b; run 3; goes-on""",
}
WORLDLESS = {
    "fail if one of them has": (NO_WORLD := "start a b; boot a 1e6; boot b 1e6; state a booting; state b booting; ")
    + f"kill a 7; run 0.5; kill b 0; over <5; {FAILED}",
    "whichever ends first": NO_WORLD + f"kill b 0; run 0.5; kill a 7; over <5; {FAILED}",
    "run once": NO_WORLD + "kill a 0; run 400; is spawned.host a, b; kill b 0; ended-well",
}
TAKEN_OVER = {
    "all ranks ended with 0 while there was no launcher": """
        left a b; well a; well b; expect a b; run 20; ended-well <1; no spawned""",
    "failed before the other one ended": f"left a b; kill a 7; well b; expect a b; run 20; {FAILED}; over",
    "failed, and the other one ended later": f"left a b; kill a 7; expect a b; run 20; running; well b; over; {FAILED}",
    "the last rank ends under the next launcher": """
        left a b; well a; expect a b; run 20; running; well b; ended-well; no spawned""",
}


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN)
def test_a_script_without_a_loop_ends_the_job_as_its_processes_end(text: str) -> None:
    play(text, Plain)


@pytest.mark.parametrize("text", ALONE.values(), ids=ALONE)
def test_processes_that_do_without_the_others(text: str) -> None:
    play(text, Alone)


@pytest.mark.parametrize("text", STOCK.values(), ids=STOCK)
def test_with_horovods_own_state_training_lost_is_reported(text: str) -> None:
    play(text, Stock)


@pytest.mark.parametrize("text", WORLDLESS.values(), ids=WORLDLESS)
def test_programs_that_ask_for_no_world(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", TAKEN_OVER.values(), ids=TAKEN_OVER)
def test_a_script_that_is_taken_over(text: str) -> None:
    play("begin; " + text, Alone)


def test_that_hosts_wait_for_a_loop_is_said_once() -> None:
    cluster = play(OVER + f"hosts a b c; run {SYNC_S + 5}; hosts a b c d; run 30", Plain)
    (said,) = cluster.events("not_resized")
    assert "no process has begun an elastic loop" in said["reason"]


def test_a_script_that_tells_of_no_step_is_started_again_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    play(OVER + "kill a 7; run 60; generation 2; running", Silent)
    assert caplog.text.count("none has reported a step or a commit: the script is started again") == 1


def taken_over(kind: type[Plain]) -> Scenario:
    """A world that the launcher before has formed, and that this one takes over."""
    played = Scenario(kind, {})
    played.begin_()
    played.left_("a", "b")
    return played


def test_training_that_was_done_while_there_was_no_launcher_is_not_done_again() -> None:
    play("begin; left a b; finish; expect a b; run 20; ended-well <1; no spawned", Stock)


def test_an_end_in_an_earlier_world_than_the_one_that_is_taken_over_counts_for_nothing() -> None:
    played = taken_over(Alone)
    played.kill_("b", "7")
    for process in played.cluster.members:
        process.generation = process.agreed = 8
    played.expect_("a", "b")
    played.cluster.run(20.0)
    played.well_("a")
    played.ended_well_()


def test_what_was_lost_with_all_processes_while_there_was_no_launcher_is_told_by_the_next_one() -> None:
    played = taken_over(Stock)
    for process in played.cluster.members:
        process.batch = 300
        played.kill_(process.host)
    played.expect_("a", "b")
    played.fails_("300 steps were kept nowhere")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [each.getMessage() for each in caplog.records]
    return [line for line in told if line.startswith(("no step for", "training begins", "the world is stalled"))]


def without_steps(options: str = "") -> Cluster:
    cluster = play(f"start a b{options}", Silent)
    cluster.until(lambda: cluster.world == ["a", "b"])
    return cluster


def test_a_script_that_gives_no_sign_of_training_is_told_within_5_s_and_for_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cluster = without_steps()
    cluster.run(5.0)
    (line,) = lines(caplog)
    assert re.fullmatch(
        r"no step for [345] s: ranks 0 and 1 have neither entered an elastic loop nor reported a step; reported as "
        r"stalled only if --progress-timeout S is given",
        line,
    )
    assert "size 2, no step for 5 s: ranks 0 and 1 have neither" in status(cluster.driver.job)
    cluster.run(600.0)
    seconds = [int(line.split()[3]) for line in lines(caplog)]
    assert seconds == pytest.approx([4, 10, 30, 60], abs=1.1)
    assert ": the script hangs, or reports no steps, and no more lines tell of it; " in lines(caplog)[-1]
    assert not cluster.events("stalled")


def test_how_busy_its_host_is_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = play("start a", Silent)
    cluster.until(lambda: cluster.world == ["a"])
    cluster.driver.job.roster.agents["a"].usage = {"cpu": 0.98}
    cluster.run(5.0)
    assert "rank 0 (a[0]) has neither entered an elastic loop nor reported a step (CPU of its host: 98%)" in caplog.text


@pytest.mark.parametrize("restart", [False, True])
def test_with_progress_timeout_a_script_that_gives_no_sign_is_reported_then_and_not_restarted(
    restart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster = without_steps(f" progress_timeout_s=10.0 restart_stalled={restart}")
    cluster.run(9.0)
    assert lines(caplog)[0].endswith("; reported as stalled after 10 s (--progress-timeout)")
    assert not cluster.events("stalled")
    cluster.run(3.0)
    (stalled,) = cluster.events("stalled")
    assert stalled["ranks"] == [0, 1]
    assert re.fullmatch(
        r"no progress for 1[012] s of rank 0 on a\[0\], 1 on b\[0\]: they have neither entered an elastic loop nor "
        r"reported a step",
        stalled["reason"],
    )
    cluster.run(60.0)
    assert len(cluster.events("stalled")) == 1
    assert not cluster.events("exited")


def test_the_first_step_after_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    class Late(Plain):
        def trains(self, process: Process) -> None:
            if begun and self.clock.mono() > begun[0] + 15.0:
                super().trains(process)

    begun: list[float] = []
    cluster = play("start a b", Late)
    cluster.until(lambda: cluster.world == ["a", "b"])
    begun.append(cluster.clock.mono())
    cluster.run(30.0)
    assert re.fullmatch(r"training begins after 1\d s without a step", lines(caplog)[-1])


def test_a_script_that_reports_its_steps_soon_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = play("start a b", Plain)
    cluster.run(60.0)
    assert lines(caplog) == []
