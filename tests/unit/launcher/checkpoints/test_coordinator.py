"""Durable checkpoints by the driver: which commit, when, by which hosts, and the result of an attempt."""

from __future__ import annotations

import itertools
import math

import pytest

from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.checkpoints.attempt import GIVES_WAY_S, WRITE_S, Last, ahead, due
from hvd_elastic_ext.launcher.checkpoints.interval import Failures
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import STOP_LIMIT_S
from hvd_elastic_ext.launcher.checkpoints.schedule import AUTO, ON_NOTICE, Cadence
from hvd_elastic_ext.launcher.membership.calls import PastTransfer
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from tests.unit.launcher.scenarios import Scenario, play
from tests.unit.launcher.simulated_cluster import Cluster, storing


@pytest.mark.parametrize(
    ("every", "now", "step", "expected"),
    [
        (Cadence(steps=10), 0.0, 9, False),
        (Cadence(steps=10), 0.0, 10, True),
        (Cadence(seconds=5.0), 4.9, 3, False),
        (Cadence(seconds=5.0), 5.0, 3, True),
        (Cadence(seconds=5.0), 50.0, 0, False),
        (ON_NOTICE, 1e9, 10**9, False),
        (AUTO, 29.9, 5, False),
        (AUTO, 30.0, 5, True),
    ],
)
def test_a_checkpoint_is_due_by_steps_by_seconds_or_by_itself_and_never_without_a_new_step(
    every: Cadence, now: float, step: int, *, expected: bool
) -> None:
    assert due(now, step, Last(0.0, 0), every, 30.0) is expected


def test_the_commit_that_is_named_lies_further_ahead_the_faster_commits_come_and_the_more_were_missed() -> None:
    assert ahead((1, 2, 10), 0.0, 0) == (1, 2, 11)
    assert ahead((1, 2, 10), 50.0, 0) == (1, 2, 36)
    assert ahead((1, 2, 10), 50.0, 2) == (1, 2, 10 + 4 * 26)


def test_and_the_longer_ago_the_newest_one_was_told_of() -> None:
    assert ahead((1, 2, 10), 50.0, 0, age_s=1.5) == (1, 2, 111)


def test_every_rank_writes_its_share_of_one_commit_and_one_host_makes_it_exist() -> None:
    cluster = play("train a:2 b every=20; run 25")
    writes = dict(cluster.helpers.of("write"))
    assert writes["a"]["shares"] == {"0": [0, 0, 1], "1": [1, 1, 1]}
    assert writes["b"]["shares"] == {"0": [2, 2, 1]}
    assert {tuple(request["commit"]) for request in writes.values()} == {tuple(writes["a"]["commit"])}
    assert {request["parts"] for request in writes.values()} == {3}
    [(root, seal)] = cluster.helpers.of("seal")
    assert root == "a"
    assert len(seal["written"]) == 2
    assert (seal["world"], seal["parts"]) == (3, 3)
    [sealed] = cluster.events("sealed")
    assert sealed["step"] >= 20
    assert sealed["path"] == "/store/x"
    assert sorted(cluster.helpers.dropped) == ["a", "b"]


def test_hosts_that_load_or_write_a_checkpoint_are_busy_until_it_is_done() -> None:
    cluster = play("start a b every=5; asked load 2; run 0.1")
    assert cluster.driver.job.busy == {"a", "b"}
    cluster.until(lambda: cluster.members)
    assert not cluster.driver.job.busy
    cluster.until(lambda: len(cluster.helpers.of("write")) == 2)
    assert cluster.driver.job.busy == {"a", "b"}
    cluster.until(lambda: cluster.events("sealed"))
    assert not cluster.driver.job.busy


def test_older_checkpoints_that_cannot_be_removed_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(storing("10"))
    cluster.helpers.answers = {("a", "seal"): {"path": "/store/x", "not_removed": "read-only"}}
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.events("sealed"))
    assert "take up room: read-only" in caplog.text


def test_the_journal_says_the_call_of_a_checkpoint_and_of_what_the_job_goes_on_from() -> None:
    cluster = Cluster(storing("10"))
    answers = {"load": {"path": "/store/x", "step": 30, "call": 2}, "seal": {"path": "/store/y", "call": 3}}
    cluster.helpers.answers = {("a", do): answer for do, answer in answers.items()}
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.events("sealed"))
    assert [record["call"] for record in (*cluster.events("resumed"), *cluster.events("sealed"))] == [2, 3]


LACKS = "it is of call 3, and the result of call 2 was not kept"


def test_checkpoints_from_which_no_job_can_resume_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Defect: it said that the newest one from which a job can resume stays, where there was none."""
    cluster = Cluster(storing("10"))
    cluster.helpers.answers = {
        ("a", "load"): {},
        ("a", "seal"): {"path": "/store/x", "call": 3, "not_resumable": LACKS},
    }
    cluster.hosts(a=1)
    cluster.until(lambda: len(cluster.events("sealed")) > 2)
    [line] = [record.getMessage() for record in caplog.records if "no job can resume" in record.getMessage()]
    assert line == (
        f"no job can resume from /store/x: {LACKS}; nor from an earlier one, so the same command could not go on"
    )
    assert {record["not_resumable"] for record in cluster.events("sealed")} == {LACKS}
    job = cluster.driver.job
    assert (job.checkpoints.newest, job.checkpoints.stored) == ((None, None), None)


def test_a_checkpoint_from_which_no_job_can_resume_leaves_the_one_before_the_newest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(storing("10"))
    cluster.helpers.answers = {("a", "seal"): {"path": "/store/w", "call": 2}}
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.events("sealed"))
    job, [first] = cluster.driver.job, cluster.events("sealed")
    cluster.helpers.answers["a", "seal"] = {"path": "/store/x", "call": 3, "not_resumable": LACKS}
    cluster.until(lambda: len(cluster.events("sealed")) > 1)
    assert job.checkpoints.newest == ("/store/w", first["step"])
    assert job.checkpoints.stored is not None
    assert job.checkpoints.stored.path == "/store/w"
    goes_on = f"the same command would go on after step {first['step']}, with the checkpoint /store/w"
    assert f"no job can resume from /store/x: {LACKS}; {goes_on}" in caplog.messages


def test_hosts_that_share_no_storage_each_make_a_whole_one() -> None:
    cluster = Cluster(storing("10"))
    cluster.helpers.answers |= {("a", "write"): {"store": "one"}, ("b", "write"): {"store": "another"}}
    cluster.hosts(a=2, b=1)
    cluster.until(lambda: len(cluster.events("sealed")) == 2)
    shares = [(host, request["parts"], request["shares"]) for host, request in cluster.helpers.of("write")]
    assert shares[2:] == 2 * [("a", 2, {"0": [0, 0, 1], "1": [1, 1, 1]}), ("b", 1, {"0": [0, 2, 1]})]
    assert [(host, request["parts"], request["world"]) for host, request in cluster.helpers.of("seal")] == 2 * [
        ("a", 2, 3),
        ("b", 1, 3),
    ]


def test_files_of_the_users_own_are_written_where_rank_0_is_and_of_the_others_their_own_state() -> None:
    cluster = play("begin every=10; saves; hosts a:2 b; sees sealed")
    shares = [(host, request["parts"], request["shares"]) for host, request in cluster.helpers.of("write")]
    assert shares == [("a", 1, {"0": [0, 0, 2], "1": [None, 1, 1]}), ("b", 1, {"0": [None, 2, 1]})]
    [(root, seal)] = cluster.helpers.of("seal")
    assert (root, seal["world"], seal["parts"], len(seal["written"])) == ("a", 3, 1, 2)
    assert cluster.driver.job.cost.durable_s == pytest.approx(9.6, abs=0.1)


def test_how_long_training_stands_still_for_the_users_function_decides_how_often_it_is_called() -> None:
    intervals = []
    for saves in (None, ""):
        cluster = Cluster(storing("auto"))
        cluster.training.saves = saves
        cluster.hosts(a=1, b=1)
        cluster.until(lambda: cluster.events("sealed"), within=120.0)  # noqa: B023
        intervals.append(cluster.events("interval")[-1]["seconds"])
    assert intervals[1] > 5 * intervals[0]


def test_without_storage_that_hosts_share_only_the_host_of_rank_0_has_such_files() -> None:
    cluster = Cluster(storing("10"))
    cluster.helpers.answers |= {("a", "write"): {"store": "one"}, ("b", "write"): {"store": "another"}}
    cluster.training.saves = ""
    cluster.hosts(a=2, b=1)
    cluster.until(lambda: len(cluster.events("sealed")) == 2)
    shares = [(host, request["parts"], request["shares"]) for host, request in cluster.helpers.of("write")]
    assert shares[2:] == 2 * [("a", 1, {"0": [0, 0, 2], "1": [None, 1, 1]})]
    assert [(host, request["parts"], request["world"]) for host, request in cluster.helpers.of("seal")] == 2 * [
        ("a", 1, 3)
    ]


def test_checkpoints_come_again_and_again_each_so_many_steps() -> None:
    cluster = play("train a:2 b every=10; run 60")
    steps = [line["step"] for line in cluster.events("sealed")]
    assert len(steps) >= 4
    assert all(10 <= later - sooner <= 15 for sooner, later in itertools.pairwise(steps))


def test_a_checkpoint_that_is_due_waits_for_results_that_are_being_sent_and_not_for_long() -> None:
    cluster = play("train a b every=10; run 3")
    job = cluster.driver.job
    job.calls.transfer = PastTransfer(Seat("b", 0), Seat("a", 0), 1, "", job.now)
    cluster.run(GIVES_WAY_S)
    assert not cluster.helpers.of("write")
    cluster.until(lambda: cluster.helpers.of("write") != [], within=10.0)


def test_who_stays_for_another_launcher_or_for_a_word_that_was_lost_goes_on() -> None:
    cluster = play("begin every=1000; inherit a b")
    cluster.until(lambda: len(cluster.training.stays) == 2)
    assert sorted(cluster.helpers.dropped) == ["a", "b"]
    cluster.disconnect("b")
    cluster.run(1.0)
    cluster.reconnect("b")
    cluster.run(1.0)
    assert cluster.training.stays == [None, None, None]


def test_by_itself_it_begins_soon_and_then_goes_by_what_a_seal_costs() -> None:
    cluster = play("train a:2 b every=auto; run 400")
    first = cluster.events("sealed")[0]
    begun = next(line for line in cluster.events("resized"))
    assert first["mono"] - begun["mono"] == pytest.approx(60.0, abs=10.0)
    [chosen] = cluster.events("interval")[:1]
    assert "a checkpoint costs" in chosen["reason"]
    assert math.isfinite(chosen["seconds"])


def test_without_a_state_of_ours_there_is_nothing_to_keep() -> None:
    cluster = play("train a every=1")
    for worker in cluster.driver.job.roster.workers.values():
        worker.holds = None
    cluster.ask(attempt.plan)
    assert cluster.helpers.of("write") == []


def test_a_script_without_a_state_of_ours_is_told_once_that_nothing_is_made_durable() -> None:
    cluster = play("train a:2 b every=1000; run 40")
    assert not cluster.events("not_sealed")
    for _ in range(3):
        for worker in cluster.driver.job.roster.workers.values():
            worker.holds = None
        cluster.ask(attempt.plan)
    [line] = cluster.events("not_sealed")
    assert "use one, or --adopt" in line["reason"]


ATTEMPTS = {
    "the checkpoint is completed only when every share is written": f"""
        start a b every=5; asked load; run 1; silent b; run 30; helpers write a b; helpers seal; run {WRITE_S}
        says not_sealed.reason no answer from b; dropped a b""",
    "a failed save is reported and tried again after longer pauses": """
        start a b every=5; saves save of checkpoint= failed: OSError: no; run 60; helpers write
        only not_sealed.reason a[0]: save of checkpoint= failed: OSError: no
        is not_sealed.again_s 5.0, 10.0, 20.0, 40.0; saves; sees sealed <60""",
    "a failed write is reported and tried again after longer pauses": """
        start a every=1; breaks a write; run 120; only not_sealed.reason a: OSError: no room
        is not_sealed.again_s 5.0, 10.0, 20.0, 40.0, 80.0; accepts a write; run 200; sees sealed <0.1""",
    "a commit that was missed is named further ahead": """
        start a b every=5; late 3; run 60; sees sealed <0.1; no not_sealed""",
    "a world that changes gives its checkpoint up, and the next world makes another": """
        start a b every=5; takes write 20; asked write 2; kill b; run 10; dropped a b; no sealed; let-on
        takes write 0.5; run 60; sees sealed <0.1; no not_sealed""",
    "a connection that is lost while a commit is named costs that attempt only": """
        start a b every=10; attempts 1; disconnect b; run 8; attempts 0; reconnect b; sees sealed <30
        no not_sealed""",
    "with 'notice' a checkpoint is made only on request": """
        train a:2 b every=notice; run 60; helpers write; request; run 10; number sealed 1""",
    "a job that waits at its checkpoint ends at once": """
        train a:2 b every=1000; run 10; request; sees sealed; interrupt; fails stopped; took -1 0.01""",
}


@pytest.mark.parametrize("text", ATTEMPTS.values(), ids=ATTEMPTS)
def test_an_attempt_ends_with_a_whole_checkpoint_or_costs_only_itself(text: str) -> None:
    play(text)


# --- ends with a checkpoint

TRAINED = "train a:2 b every=1000; run 10; "
ENDS = {
    "the training is written to a checkpoint first": TRAINED
    + """interrupt; goes-on; sees sealed; no exited; held-back; over <40; fails stopped by SIGTERM""",
    "a second signal ends the job without a checkpoint": TRAINED
    + "interrupt; interrupt; over <10; no sealed; fails stopped",
    "a last checkpoint that does not complete delays the end only up to its limit": TRAINED
    + f"silent a b; interrupt; fails stopped; took {STOP_LIMIT_S - 1} {STOP_LIMIT_S + 1}",
    "before training the job ends at once": """
        start a every=1000; run 0.1; interrupt; fails stopped; took -1 0.01""",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_job_that_is_told_to_end(text: str) -> None:
    play(text)


# --- starts from a checkpoint


def test_no_process_is_started_before_its_host_has_loaded_the_newest_checkpoint() -> None:
    cluster = Cluster(storing("1000"))
    cluster.helpers.takes_s["load"] = 7.0
    cluster.helpers.answers = {(host, "load"): {"path": "/store/y", "step": 40, "generation": 12} for host in "ab"}
    cluster.hosts(a=2, b=1)
    cluster.run(6.0)
    assert dict(cluster.helpers.of("load"))["a"]["ranks"] == {"0": 0, "1": 1}
    assert dict(cluster.helpers.of("load"))["b"]["ranks"] == {"0": 2}
    assert cluster.events("spawned") == []
    cluster.until(lambda: len(cluster.members) == 3)
    [line] = cluster.events("resumed")
    assert (line["path"], line["step"]) == ("/store/y", 40)
    assert cluster.driver.job.generation > 12


@pytest.mark.parametrize("ended", [True, False])
def test_what_is_known_of_failures_goes_on_with_the_job_and_one_that_lost_all_counts(*, ended: bool) -> None:
    before = Failures(3.0, 9000.0, 5)
    cluster = Cluster(storing("5"))
    facts = {"failures": before.to_json(), "ended": ended}
    cluster.helpers.answers = {("a", "load"): {"path": "/store/y", "step": 0, "generation": 1, "facts": facts}}
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.events("sealed"))
    [(_, seal)] = cluster.helpers.of("seal")[:1]
    assert Failures.of(seal["facts"]["failures"]).seen == (5 if ended else 6)
    assert seal["facts"]["ended"] is False


@pytest.mark.parametrize("over", ["request; run 1; withdraw", "request; sees sealed; run 1; hosts a; until a"])
def test_after_a_request_the_next_checkpoint_holds_nobody(over: str) -> None:
    cluster = play(f"train a b every=30; run 5; {over}; run 1", steps=Withdrawing)
    job = cluster.driver.job
    cluster.until(lambda: job.checkpoints.attempt is not None)
    assert not job.checkpoints.holds_training


class Withdrawing(Scenario):
    def withdraw_(self) -> None:
        self.cluster.ask(attempt.withdraw_request)


def test_a_checkpoint_that_fails_is_said_to_leave_one_before_only_where_there_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play("train a b every=5; refuses a write no room; run 20")
    assert "no checkpoint: a: no room; the next attempt" in caplog.text
    caplog.clear()
    play("train a b every=5; sees sealed; refuses a write no room; run 20")
    assert "no checkpoint: a: no room; the one before stays; the next attempt" in caplog.text
