"""A job that does not train is never silent for long: a line names what it waits for, and the limit."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

from hvd_elastic_ext.launcher import checkpoints, custody, departures, driver, health, membership, scaling
from hvd_elastic_ext.launcher.checkpoints.attempt import Attempt
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import CANCELLED_AFTER_S
from hvd_elastic_ext.launcher.driver.words import SOON_S, Wait, line
from hvd_elastic_ext.launcher.health import silence
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Subject
from hvd_elastic_ext.launcher.membership.forming import AGREED, CONNECTED, FIREWALL
from hvd_elastic_ext.launcher.membership.host_list import NewerLife
from hvd_elastic_ext.launcher.membership.processes import starting
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import STILL_FORMING, WorldLimits
from hvd_elastic_ext.launcher.reporting.all_waits import WAITS, While, status, waits_for
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions
from tests.unit.launcher.simulated_processes import Process, Training
from tests.unit.launcher.state_changes import small_job


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("waiting: ")]


def test_a_job_that_trains_waits_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b")
    cluster.run(60.0)
    assert waits_for(cluster.driver.job) is None
    assert waits(caplog) == []


def test_too_few_slots_are_told_at_the_pace_until_the_job_fails(caplog: pytest.LogCaptureFixture) -> None:
    play("begin start=2 elastic_timeout_s=60.0; hosts a; run 59")
    told = waits(caplog)
    assert [int(line.split("at most ")[1].split()[0]) for line in told] == pytest.approx([56, 50, 30], abs=1)
    assert told[-1] == (
        "waiting: processes ready: 1, needed: 2; -np 2 is more than all hosts have (slots: 1); "
        "at most 30 s more, then the job fails (--elastic-timeout)"
    )


NEEDED = "processes left: 1, needed: 2; "
FEWER = "--min-np 2 is more than all hosts have (slots: 1)"


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (
            "train a b least=2 elastic_timeout_s=40.0; run 10; kill b; hosts a; run 50",
            f"{NEEDED}{FEWER}; add a host, or give --min-np N to go on with N processes, or --elastic-timeout S to",
        ),
        (
            "start a start=2 elastic_timeout_s=40.0; run 50",
            "needed: 2; -np 2 is more than all hosts have (slots: 1); add a host, or give -np N to start with N",
        ),
    ],
    ids=["after a loss", "at the start"],
)
def test_a_job_that_fails_for_lack_of_slots_names_the_reason_and_what_to_do(scenario: str, words: str) -> None:
    failure = play(scenario).driver.outcome
    assert "after 40 s, --elastic-timeout: " in str(failure)
    assert words in str(failure)


def test_a_world_whose_members_wait_for_their_ranks_tells_for_whose_commit(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b heartbeat_timeout_s=5.0 commit_wait_s=30.0; run 12")
    commits, seat = cluster.driver.job.roster.commits, Seat("a", 0)
    (incarnation, _, number), step = commits.held[seat].commit, commits.held[seat].step
    commits.reported(seat, (incarnation, 1, number + 5), step + 5, agent=cluster.driver.job.roster.agents["a"].identity)
    cluster.kill("a")
    cluster.run(0.01)
    cluster.disconnect("a")
    cluster.run(10.0)
    assert cluster.driver.job.rendezvous.ready
    told = waits(caplog)
    assert len(told) == 2
    assert all("for the newest commit: not connected: a, which held the newest commit" in line for line in told)
    assert all("; at most 2" in line for line in told)


@pytest.mark.parametrize("by", ["30", "?"])
def test_training_that_stands_after_its_last_checkpoint_is_told(by: str, caplog: pytest.LogCaptureFixture) -> None:
    text = f"train a b least=2; run 10; notice b {by} spot reclaim; sees sealed 2"
    cluster = play(text, every="notice")
    caplog.clear()
    cluster.run(10.0)
    told = waits(caplog)
    assert len(told) == 2
    assert all("for other hosts: the last checkpoint is made" in line for line in told)
    left = [float(line.partition("at most ")[2].split()[0]) for line in told]
    assert left[0] - left[1] == 6.0
    assert CANCELLED_AFTER_S < left[0] < CANCELLED_AFTER_S + 30.0
    assert told[0].endswith("more, then training goes on")


@pytest.mark.parametrize("slow", [0.3, 30.0], ids=["at once", "while b is tried for the third time"])
def test_with_min_np_a_start_waits_for_no_host_that_cannot_be_reached(slow: float) -> None:
    cluster = play(
        f"begin start=3 settle_s=3 all_slots_of=hosts; boot a {slow}; dead b; hosts a:2 b; size 2 <{slow + 6.0}"
    )
    (start,) = cluster.events("resized")
    assert len(start["without"]) == 1
    assert start["without"][0].startswith("b (")
    assert "unreachable" in start["without"][0]
    cluster.dead.clear()
    cluster.until(lambda: len(cluster.world) == 3, within=120.0)
    assert "without" not in cluster.events("resized")[-1]


@pytest.mark.parametrize(("listed", "needed"), [(3, 3), (2, 2), (7, 5)])
def test_without_np_a_start_waits_for_no_slot_that_was_taken_out_of_the_list(
    listed: int, needed: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = play(
        "begin start=5 least=5 all_slots_of=hosts; comes b 30; comes c 30; comes d 30; hosts a:2 b c d; run 10"
    )
    assert f"needed: 5; {ALL_SLOTS.replace('4', '5')}; {NP}" in waits(caplog)[-1]
    cluster.hosts(a=1, b=listed - 1)
    cluster.run(10.0)
    assert f"needed: {needed}" in waits(caplog)[-1]
    cluster.hosts(a=listed)
    cluster.run(40.0)
    assert len(cluster.world) == listed


@pytest.mark.parametrize(
    ("until", "end"), [(None, "no limit: Ctrl-C ends the job"), (15.0, "at most 5 s more, then it fails")]
)
def test_a_wait_says_how_long_it_lasts_at_most_or_that_it_has_no_limit(until: float | None, end: str) -> None:
    assert line(Wait("for b", until, ", then it fails"), 10.0) == f"waiting: for b; {end}"


def test_a_host_that_is_left_out_by_hand_is_named_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(JobOptions(WorldLimits(start=2)))
    cluster.driver.job.faults.ledger = HealthLedger().block(Subject("host", "b"), None, "bad fan")
    cluster.hosts(a=1, b=1)
    cluster.run(SOON_S + 1.5)
    assert "blocked: b (until it is cleared: host b is blocked by hand: bad fan)" in waits(caplog)[0]


def test_processes_that_train_outside_the_loop_are_named_as_that() -> None:
    """Each of them is in a world of its own, whatever ``hvd.size()`` has returned."""
    cluster = play("begin start=2; boot b 30; hosts a b; run 10")
    job = cluster.driver.job
    job.roster.workers[Seat("b", 0)].step_s = 0.1  # as in a heartbeat
    wait = waits_for(job)
    assert wait is not None
    assert wait.what == (
        "processes that do steps, each alone, before hvd.init() or outside a function with @elastic.run: b[0]"
    )
    found = starting(job, job.now)["b"]
    assert found.lacks == "does steps, alone: before hvd.init(), or outside a function with @elastic.run"


def test_a_silent_host_is_told_within_5_s_and_when_it_counts_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b")
    cluster.options.heartbeat_timeout_s = 10.0
    cluster.run(20.0)
    caplog.clear()
    cluster.disconnect("b")
    cluster.run(5.0)
    assert waits(caplog) == [
        "waiting: no heartbeat from b; at most 6 s more, then it counts as failed (--heartbeat-timeout)"
    ]
    cluster.run(10.0)
    assert cluster.events("fenced")
    assert len([line for line in waits(caplog) if "no heartbeat" in line]) == 2


def test_the_wait_for_a_silent_host_with_a_new_container_ends_when_that_is_cut_off() -> None:
    cluster = play("train a b")
    cluster.options.heartbeat_timeout_s = 30.0
    cluster.run(20.0)
    job = cluster.driver.job
    job.now = job.roster.agents["b"].last_message_at + 13.0
    job.roster.agents["a"].last_message_at = job.now
    wait = silence.waits(job)
    assert wait is not None
    assert wait.until == job.now + 17.0
    job.fleet.newer_lives["b"] = NewerLife(job.roster.agents["b"].host, job.now)
    wait = silence.waits(job)
    assert wait is not None
    assert wait.until == job.now + 2.0


ENDS = "it ends with the process there; Ctrl-C ends the job"
LONG = "it ends with the process there, which `py-spy dump --pid` shows; Ctrl-C ends the job"


@pytest.mark.parametrize(
    ("hosts", "who"), [(("a", "b"), "rank 1 (b[0])"), (("b",), "rank 0 (b[0])")], ids=["others wait", "the only rank"]
)
def test_a_process_that_has_raised_an_error_and_is_not_gone_is_told_and_nothing_else(
    hosts: tuple[str, ...], who: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = play(f"train {' '.join(hosts)}")
    cluster.run(20.0)
    caplog.clear()
    process = cluster.agents["b"].processes[0]
    process.stuck = process.wedged = True
    cluster.say(process, "failed", digest="1", error="ValueError: bad batch", traceback="")
    cluster.run(5.0)
    lines = [each.getMessage() for each in caplog.records]
    assert lines == [f"waiting: for the end of {who}: it raised ValueError: bad batch; no limit: {ENDS}"]
    if len(hosts) == 2:
        cluster.lose_world("a")  # its peer asks for another world, and waits for the process that ends
        cluster.run(8.0)
        alone = lines[0].replace(who, "b[0]")
        assert waits(caplog) == [lines[0], alone, alone.replace(ENDS, LONG)]  # a script may take seconds to exit
    caplog.clear()
    cluster.kill("b", code=1)
    cluster.run(1.0)
    assert waits(caplog) == []


def test_a_process_that_fails_before_its_first_world_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("begin; boot a 60; hosts a; run 3")
    cluster.say(cluster.agents["a"].processes[0], "failed", digest="1", error="ValueError: bad batch", traceback="")
    cluster.run(5.0)
    assert (
        waits(caplog)[-1] == f"waiting: for the end of rank 0 (a[0]): it raised ValueError: bad batch; no limit: {ENDS}"
    )


@pytest.mark.parametrize(
    ("hosts", "what", "ends"),
    [
        (("a", "b"), "not connected to the others yet: a[0], b[0]", CONNECTED),
        (("a",), "not initialized yet: a[0]", "it ends when that process has called hvd.init(), or has failed"),
    ],
)
def test_the_only_rank_is_not_said_to_wait_for_others(hosts: tuple[str, ...], what: str, ends: str) -> None:
    job = play(f"train {' '.join(hosts)}").driver.job
    job.decision = STILL_FORMING
    for worker in job.roster.present(job.world.members):
        worker.generation = 0
    assert waits_for(job) == Wait(f"for the first step of world 1: {what}", ends=ends)


def test_a_firewall_is_named_after_10_s_of_a_world_on_several_hosts() -> None:
    """Defect: it was named at once, and also for a world on one machine."""
    for hosts, after_s, names_it in ((("a", "b"), 9.0, False), (("a", "b"), 10.0, True), (("a",), 60.0, False)):
        job = play(f"train {' '.join(f'{host}:{2 // len(hosts)}' for host in hosts)}").driver.job
        job.decision = STILL_FORMING
        for worker in job.roster.present(job.world.members):
            worker.generation, worker.called_at = 0, job.now - after_s
        wait = waits_for(job)
        assert wait is not None
        assert wait.ends == CONNECTED + (FIREWALL if names_it else "")


@pytest.mark.parametrize(("slots", "told"), [(1, 0), (2, 1)])
def test_programs_that_never_ask_for_a_world_are_told_to_have_run_each_by_itself(
    slots: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    ends = "; ".join(f"kill a:{slot} 0" for slot in range(slots))
    cluster = play(f"begin start={slots}; boot a 1000; hosts a:{slots}; run 5; {ends}; ended-well")
    assert sum("no process asked for a world: 2 programs" in each.getMessage() for each in caplog.records) == told
    assert {each["reason"] for each in cluster.events("exited")} == {
        "ended with exit code 0 without having asked for a world"
    }


SHORT = (
    "train a b least=2 below_min=sleep every=notice; run 10; takes held 10; takes write 20; takes verify 10; "
    "hosts a; kill b; "
)
NEWCOMER = "train a; step 500; hosts a b; state b asking; "


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        (
            "start a b; comes b 30; run 10",
            "processes ready: 1, needed: 2; the agent has not connected yet: b (at most 51 s more); at most 590 s "
            "more, then the job fails (--elastic-timeout)",
        ),
        (
            "train a b; run 20; cut a b; sees isolated <20; run 10",
            "nothing is heard from any host: is this machine's own link down?; at most 40 s more, then hosts that stay "
            "silent count as failed",
        ),
        (
            "train a b every=notice; run 5; takes held 10; finish; run 5.5",
            "for the last checkpoint: no answer yet from a, b on what memory and storage hold; at most 295 s more, "
            "then the job ends without it",
        ),
        (
            "train a b every=notice; run 5; takes write 60; finish; run 45",
            "for the last checkpoint: step 5 is written by a, b; at most 255 s more, then the job ends without it",
        ),
        (
            "train a b every=notice; run 5; takes seal 60; finish; run 5.5",
            "for the last checkpoint: step 5 is completed by a; at most 295 s more, then the job ends without it",
        ),
        (
            "train a b every=notice; run 5; busy 1000; ctrl-c; run 4.2",
            "for the last checkpoint: the commit is not kept yet by a[0], b[0]; at most 6 s more, then the processes "
            "are ended, and the last commit is saved; a second Ctrl-C ends it now",
        ),
        (
            "train a b every=notice; run 5; takes write 60; interrupt; run 17",
            "for the last checkpoint: step 8 is written by a, b; at most 3 s more, then the job ends without it",
        ),
        (
            SHORT + "run 24.5",
            "lost b[0]; processes left: 1, needed: 2; --min-np 2 is more than all hosts have (slots: 1); at most 6 s "
            "more, then it saves what memory holds and sleeps (--sleep-after)",
        ),
        (
            SHORT + "run 39",
            "for the checkpoint before the job sleeps: no answer yet from a, b on what memory and storage hold; "
            "at most 891 s more, then it is tried again",
        ),
        (
            SHORT + "run 59",
            "for the checkpoint before the job sleeps: step 10 is written by a, b; at most 881 s more, then it is "
            "tried again",
        ),
        (
            SHORT + "run 80",
            "for the checkpoint before the job sleeps: step 10 is read back by a; at most 890 s more, then it is "
            "tried again",
        ),
        ("train a every=notice; run 3; deaf a; end; run 5.5", "for the end on a; at most 25 s more"),
        (
            NEWCOMER + "done a; run 9",
            "for the end of a[0]: training is done, the script is not; no newcomer joins; no limit: it ends with the "
            "script; Ctrl-C ends it",
        ),
        (
            NEWCOMER + "run 9",
            "world 2 forms: not there yet: a[0]; no limit: it ends when they next call state.commit() or end; reported "
            "as stalled after 30 s without progress",
        ),
        (
            "train a b least=2; step 500; hosts a b c; state c asking; wedge a; done a; run 0.1; lose-world b; run 9",
            "world 2 forms when those that are done with training have ended: a[0]; no limit: it ends with the script "
            "there; Ctrl-C ends the job",
        ),
    ],
)
def test_a_wait_is_named_with_what_ends_it(scenario: str, told: str) -> None:
    job = play(scenario).driver.job
    wait = waits_for(job)
    assert wait is not None
    assert line(wait, job.now) == f"waiting: {told}"


LOSS = "train a b least=2; run 10; kill b; "
LIST = "begin all_slots_of=hosts "
ALL_SLOTS = "without -np a job waits for all 4 slots of hosts"
NP = "-np N starts with N processes"
"""The remedy for that."""
LATE = "the agent has not connected yet: b (at most "


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        # the newest list has too little after a loss
        (LOSS + "hosts a; run 6", f"{NEEDED}{FEWER}; at most"),
        (LOSS + "hosts; run 6", f"{NEEDED}the newest host list names no host; "),
        (LOSS + "hosts; refuse-list; run 6", f"{NEEDED}the newest host list is refused: hosts: does not exist; "),
        (LOSS + "refuse-list; hosts a; run 6", f"{NEEDED}{FEWER}; at most"),
        # why the start needs so many processes
        (
            LIST + "start=4 least=4; comes b 30; hosts a:2 b:2; run 10",
            f"needed: 4; {ALL_SLOTS}; {NP}, --min-np N without hosts that cannot be reached; {LATE}",
        ),
        (
            LIST + "start=4 least=1; comes b 30; hosts a:2 b:2; run 10",
            f"needed: 4; {ALL_SLOTS} that can be reached; {NP}; {LATE}",
        ),
        (
            "begin start=8; comes b 30; hosts a:2 b; run 10",
            f"needed: 8; -np 8 is more than all hosts have (slots: 3); {LATE}",
        ),
        ("begin start=2; comes b 30; hosts a b; run 10", f"needed: 2; {LATE}"),
        ("begin start=3 least=3; hosts a:2 b; hosts a:2; run 10", "needed: 3; -np 3 is more than all hosts have (s"),
        (LIST + "start=3 least=3; dead b; hosts a:2 b; run 60; world", "--min-np N without hosts that cannot be reach"),
        (
            LIST + "start=4 least=3; dead b; comes c 20; hosts a:2 b c; run 15; world; until a a c <10",
            "processes ready: 2, needed: 3; the agent has not connected yet: c (",
        ),
        ("begin start=1; run 10", "no host is published"),
        ("start a every=notice; takes load 20; run 10; world", "the newest checkpoint is looked for, and loaded, by a"),
        # which processes are missing
        (
            "train a b least=2 all_slots_of=hosts; kill b; run 5.5",
            "needed: 2; blocked: b (for 9 s more: slot 0 of b: crashed: killed by SIGKILL)",
        ),
        ("begin start=2; boot b 30; hosts a b; run 10", "are not at hvd.init() or elastic.run yet: b[0]; at most "),
        ("train a b; run 20; stop b; run 5.5", "no heartbeat from b[0]; at most "),
        (
            "train a b least=2 standby_timeout_s=20.0; run 5; boot c 500; kill b; hosts a c; run 8",
            "c[0]; at most 16 s more (--standby-timeout)",
        ),
    ],
)
def test_a_wait_says_what_is_lacking(scenario: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    play(scenario)
    assert words in "\n".join(waits(caplog))


@pytest.mark.parametrize(
    ("scenario", "number"),
    [
        ("train a b every=notice; run 5; takes write 60; finish; run 40", 3),
        ("train a b every=notice; run 5; takes write 60; interrupt; run 19", 2),
        (SHORT + "run 85", 11),
    ],
)
def test_each_wait_is_told_at_its_pace(scenario: str, number: int, caplog: pytest.LogCaptureFixture) -> None:
    play(scenario)
    assert len(waits(caplog)) == number


def test_a_checkpoint_of_a_commit_that_is_not_kept_yet_names_those_that_do_not_keep_it() -> None:
    job = play(SHORT + "run 5").driver.job
    lives = {worker.life: rank for rank, worker in enumerate(job.roster.workers.values())}
    job.checkpoints.attempt = Attempt(job.generation, lives, job.now, (1, 1, 99))
    wait = waits_for(job)
    assert wait is not None
    assert line(wait, job.now) == (
        "waiting: for the checkpoint before the job sleeps: the commit is not kept yet by a[0]; no limit: "
        "it ends when the checkpoint is complete, or has failed"
    )


def test_processes_that_have_not_ended_after_training_are_told_within_5_s_of_the_last_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b every=notice; run 5; done a b")
    assert waits(caplog) == []
    cluster.run(20.0)
    told = waits(caplog)
    assert len(told) == 2
    assert set(told) == {
        "waiting: for the end of a[0], b[0]: training is done, the script is not, and then the last checkpoint is "
        "made; no limit: it ends with the script; Ctrl-C ends it"
    }
    cluster.kill("a", code=0)
    caplog.clear()
    cluster.run(12.0)
    assert "for the end of b[0]: training is done, the script is not" in waits(caplog)[0]


class Slow(Training):
    """The test decides how far its processes come after they have their ranks."""

    def enters(self, process: Process) -> None:
        return


def slow() -> Cluster:
    cluster = Cluster(JobOptions(WorldLimits(start=2, settle_s=0.1)), training=Slow)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.job.formed and len(cluster.world) == 2)
    return cluster


def test_processes_that_are_not_connected_to_the_others_are_named(caplog: pytest.LogCaptureFixture) -> None:
    cluster = slow()
    caplog.clear()
    cluster.run(SOON_S + 1.5)
    assert set(waits(caplog)) == {
        "waiting: for the first step of world 1: not connected to the others yet: a[0], b[0]; no limit: " + CONNECTED
    }


def test_processes_that_have_not_agreed_on_the_state_are_named_at_the_pace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = slow()
    for process in cluster.members:
        cluster.say(process, "entered", generation=1)
        cluster.say(process, "looping")
    cluster.training.says("a", "synced")
    cluster.run(1.0)
    caplog.clear()
    cluster.run(60.0)
    assert set(waits(caplog)) == {
        "waiting: for the first step of world 1: no agreement on the state yet: b[0]; no limit: " + AGREED
    }
    assert len(waits(caplog)) in (3, 4)
    cluster.training.says("b", "synced")
    cluster.run(1.0)
    assert waits_for(cluster.driver.job) is None


def test_a_script_without_an_elastic_loop_is_not_said_to_wait_for_agreement(caplog: pytest.LogCaptureFixture) -> None:
    cluster = slow()
    for process in cluster.members:
        cluster.say(process, "entered", generation=1)
    cluster.run(1.0)
    caplog.clear()
    cluster.run(8.0)
    assert waits(caplog) == []


def test_the_first_step_of_a_changed_world_is_waited_for_with_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b c")
    cluster.run(1.0)
    for process in cluster.members:
        cluster.say(process, "first_step", pause_s=None)
    cluster.run(1.0)
    cluster.kill("c")
    cluster.until(lambda: cluster.world == ["a", "b"])
    caplog.clear()
    cluster.run(5.5)
    assert waits(caplog) == [
        "waiting: for the first step of world 2 by rank 0 (a[0]); at most 6 s more, then the world is reported "
        "without its downtime"
    ]
    cluster.run(6.0)
    assert waits_for(cluster.driver.job) is None


def test_a_newcomer_that_does_not_come_to_its_world_is_named_with_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("start a b; lose go 1; begun 1; stop b")
    caplog.clear()
    cluster.run(5.5)
    assert waits(caplog)[-1] == (
        "waiting: world 1 forms: not there yet: a[0], b[0]; at most 59 s more, then a newcomer that is not there is "
        "ended"
    )


def test_a_job_whose_only_host_cannot_be_reached_tries_again_until_elastic_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("begin start=1 elastic_timeout_s=60; dead b; hosts b; run 59")
    assert [event.get("again") for event in cluster.events("struck")] == [None, 2, 3]
    told = waits(caplog)
    assert len(told) == 3
    assert sum("no route to host" in line for line in told) == 0, "ssh's words are in the line of the strike"
    assert "blocked: b (for 7 s more: unreachable); at most 56 s more" in told[0]
    assert "unreachable: no route to host" in status(cluster.driver.job)
    cluster.run(2.0)
    assert "after 60 s, --elastic-timeout: processes ready: 0, needed: 1; blocked: b (26 s ago, for " in str(
        cluster.driver.outcome
    )
    assert "unreachable: no route to host (3 strikes))" in str(cluster.driver.outcome)


def test_fixed_hosts_that_no_name_server_knows_end_the_job_at_once_with_what_to_correct() -> None:
    cluster = Cluster(JobOptions(WorldLimits(start=1), fixed_hosts=True))
    cluster.dead.add("b")
    cluster.ssh_says = "ssh: Could not resolve hostname b: Name or service not known"
    cluster.hosts(b=1)
    cluster.until(lambda: cluster.driver.over, within=3.0)
    assert str(cluster.driver.outcome) == (
        f"no process started training: no agent could be started on b: {cluster.ssh_says}; "
        "no name server knows b, and no other host can come: correct the name in -H or in the hostfile"
    )


def test_a_wait_for_a_newcomer_names_the_limit_that_comes_first_and_so_does_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b least=2 elastic_timeout_s=40.0; run 5; boot c 500; kill b; hosts a c; run 38")
    told = waits(caplog)
    assert len(told) == 3
    assert all(line.endswith("s more, then the job fails (--elastic-timeout)") for line in told)
    assert "c[0]; at most 10 s more, then the job fails" in told[-1]
    cluster.run(5.0)
    assert re.search(
        r"c\[0\], started (39|40) s ago, is not at hvd.init\(\) or elastic.run yet; --elastic-timeout S waits longer",
        str(cluster.driver.outcome),
    )


def test_new_processes_of_an_engine_that_restarts_them_are_waited_for_to_their_first_step() -> None:
    """Defect: their world is reported at its start, before any import, and no line came until the first step."""
    job = small_job(engine="torchrun")
    members = job.roster.present(job.world.members)
    for worker in members:
        worker.loops, worker.generation, worker.since = False, 3, job.now
    wait = waits_for(job)
    assert wait is not None
    assert wait.what == "for the first step of world 3: imports and preparations by a[0], b[0]"
    assert wait.until == job.now + 120.0
    for worker in members:
        worker.loops = True
    wait = waits_for(job)
    assert wait is not None
    assert wait.what == "for the first step of world 3"
    members[0].step = 1
    assert waits_for(job) is None


def test_a_script_that_does_not_tell_its_steps_is_not_waited_for_for_ever() -> None:
    job = small_job(engine="torchrun")
    for worker in job.roster.present(job.world.members):
        worker.loops, worker.generation, worker.since = False, 3, job.now
    job.now += 121.0
    for agent in job.roster.agents.values():
        agent.last_message_at = job.now
    assert waits_for(job) is None


ROOMS = (checkpoints, custody, departures, driver, health, membership, scaling)


def test_all_that_a_capability_waits_for_has_a_row_in_the_table() -> None:
    found = set()
    for room in ROOMS:
        for each in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            functions = inspect.getmembers(importlib.import_module(each.name), inspect.isfunction)
            own = [one for name, one in functions if one.__module__ == each.name and name.startswith("waits")]
            found.update(one for one in own if "Wait" in one.__annotations__["return"])
    assert found == {one for row in WAITS for one in (row.waits if isinstance(row, While) else (row,))}
