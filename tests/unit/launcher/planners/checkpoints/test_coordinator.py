"""Durable checkpoints, as the driver has them made: which commit, when, by whom, and what becomes of an attempt."""

from __future__ import annotations

import itertools
import math

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.driver.events import End, Expected
from hvd_elastic_ext.launcher.planners.checkpoints import coordinator, cost
from hvd_elastic_ext.launcher.planners.checkpoints.before_exit import LAST_CHECKPOINT_S
from hvd_elastic_ext.launcher.planners.checkpoints.coordinator import WRITE_S
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Last, ahead, due
from hvd_elastic_ext.launcher.rules.checkpoints.failure_rate import Failures
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import AUTO, ON_NOTICE, Cadence
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.storing import Stored, Storing, storing


def trained(every: Cadence, seconds: float = 30.0, **slots: int) -> Storing:
    cluster = Storing(every)
    cluster.hosts(**(slots or {"a": 2, "b": 1}))
    cluster.until(lambda: len(cluster.training) == sum((slots or {"a": 2, "b": 1}).values()))
    cluster.run(seconds)
    return cluster


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
    cluster = trained(Cadence(steps=20), 25.0)
    writes = dict(cluster.of("write"))
    assert writes["a"]["shares"] == {"0": [0, 0, 1], "1": [1, 1, 1]}
    assert writes["b"]["shares"] == {"0": [2, 2, 1]}
    assert {tuple(request["commit"]) for request in writes.values()} == {tuple(writes["a"]["commit"])}
    assert {request["parts"] for request in writes.values()} == {3}
    [(root, seal)] = cluster.of("seal")
    assert root == "a"
    assert len(seal["written"]) == 2
    assert (seal["world"], seal["parts"]) == (3, 3)
    [sealed] = cluster.events("sealed")
    assert sealed["step"] >= 20
    assert sealed["path"] == "/store/x"
    assert sorted(cluster.dropped) == ["a", "b"]


def test_nothing_is_made_exist_before_every_share_is_there() -> None:
    cluster = Storing(Cadence(steps=5))
    cluster.silent = set()
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.of("load"))
    cluster.run(1.0)
    cluster.silent = {"b"}
    cluster.run(30.0)
    assert [host for host, _ in cluster.of("write")] == ["a", "b"]
    assert cluster.of("seal") == []
    cluster.run(WRITE_S)
    assert "no answer from b" in cluster.events("not_sealed")[0]["reason"]
    assert sorted(cluster.dropped)[:2] == ["a", "b"]


def test_older_checkpoints_that_cannot_be_removed_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Storing(Cadence(steps=10))
    cluster.answers = {("a", "load"): {}, ("a", "seal"): {"path": "/store/x", "not_removed": "read-only"}}
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.events("sealed"))
    assert "take up room: read-only" in caplog.text


def test_hosts_that_share_no_storage_each_make_a_whole_one() -> None:
    cluster = Storing(Cadence(steps=10))
    cluster.answers |= {("a", "write"): {"store": "one"}, ("b", "write"): {"store": "another"}}
    cluster.hosts(a=2, b=1)
    cluster.until(lambda: len(cluster.events("sealed")) == 2)
    shares = [(host, request["parts"], request["shares"]) for host, request in cluster.of("write")]
    assert shares[2:] == 2 * [("a", 2, {"0": [0, 0, 1], "1": [1, 1, 1]}), ("b", 1, {"0": [0, 2, 1]})]
    assert [(host, request["parts"], request["world"]) for host, request in cluster.of("seal")] == 2 * [
        ("a", 2, 3),
        ("b", 1, 3),
    ]


def test_files_of_the_users_own_are_written_where_rank_0_is_and_of_the_others_their_own_state() -> None:
    cluster = Storing(Cadence(steps=10))
    cluster.saves = ""
    cluster.hosts(a=2, b=1)
    cluster.until(lambda: cluster.events("sealed"))
    shares = [(host, request["parts"], request["shares"]) for host, request in cluster.of("write")]
    assert shares == [("a", 1, {"0": [0, 0, 2], "1": [None, 1, 1]}), ("b", 1, {"0": [None, 2, 1]})]
    [(root, seal)] = cluster.of("seal")
    assert (root, seal["world"], seal["parts"], len(seal["written"])) == ("a", 3, 1, 2)
    assert cost.durable_s(cluster.driver.job) == pytest.approx(9.6, abs=0.1)


def test_how_long_training_stands_still_for_the_users_function_decides_how_often_it_is_called() -> None:
    intervals = []
    for saves in (None, ""):
        cluster = Storing(AUTO)
        cluster.saves = saves
        cluster.hosts(a=1, b=1)
        cluster.until(lambda: cluster.events("sealed"), within=120.0)  # noqa: B023
        intervals.append(cluster.events("interval")[-1]["seconds"])
    assert intervals[1] > 5 * intervals[0]


def test_without_storage_that_hosts_share_only_the_host_of_rank_0_has_such_files() -> None:
    cluster = Storing(Cadence(steps=10))
    cluster.answers |= {("a", "write"): {"store": "one"}, ("b", "write"): {"store": "another"}}
    cluster.saves = ""
    cluster.hosts(a=2, b=1)
    cluster.until(lambda: len(cluster.events("sealed")) == 2)
    shares = [(host, request["parts"], request["shares"]) for host, request in cluster.of("write")]
    assert shares[2:] == 2 * [("a", 1, {"0": [0, 0, 2], "1": [None, 1, 1]})]
    assert [(host, request["parts"], request["world"]) for host, request in cluster.of("seal")] == 2 * [("a", 1, 3)]


def test_a_save_that_fails_is_told_and_tried_again_ever_later() -> None:
    cluster = Storing(Cadence(steps=5))
    cluster.saves = "save of checkpoint= failed: OSError: no"
    cluster.hosts(a=1, b=1)
    cluster.run(60.0)
    assert not cluster.of("write")
    told = cluster.events("not_sealed")
    assert all(line["reason"] == "a[0]: save of checkpoint= failed: OSError: no" for line in told)
    assert [line["again_s"] for line in told] == [5.0, 10.0, 20.0, 40.0]
    cluster.saves = ""
    cluster.until(lambda: cluster.events("sealed"), within=60.0)


def test_checkpoints_come_again_and_again_each_so_many_steps() -> None:
    cluster = trained(Cadence(steps=10), 60.0)
    steps = [line["step"] for line in cluster.events("sealed")]
    assert len(steps) >= 4
    assert all(10 <= later - sooner <= 15 for sooner, later in itertools.pairwise(steps))


def test_a_commit_that_was_missed_is_named_further_ahead() -> None:
    cluster = Storing(Cadence(steps=5))
    cluster.late = 3
    cluster.hosts(a=1, b=1)
    cluster.run(60.0)
    assert cluster.events("sealed")
    assert not cluster.events("not_sealed")


def test_a_world_that_changes_takes_its_checkpoint_with_it_and_the_next_one_makes_another() -> None:
    cluster = Storing(Cadence(steps=5))
    cluster.takes_s["write"] = 20.0
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.of("write")) == 2)
    cluster.kill("b")
    cluster.run(10.0)
    assert sorted(cluster.dropped)[:2] == ["a", "b"]
    assert cluster.events("sealed") == []
    cluster.takes_s["write"] = 0.5
    cluster.run(60.0)
    assert cluster.events("sealed")
    assert not cluster.events("not_sealed")
    assert None in cluster.stays


def test_a_connection_that_is_lost_while_a_commit_is_named_costs_that_attempt_and_not_all_that_follow() -> None:
    cluster = Storing(Cadence(steps=10))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.job.checkpoints.attempt is not None)
    cluster.disconnect("b")  # which commit it is to keep was on its way
    cluster.run(8.0)
    assert cluster.driver.job.checkpoints.attempt is None, "what is said now is lost, too"
    cluster.reconnect("b")
    cluster.until(lambda: cluster.events("sealed"), within=30.0)
    assert not cluster.events("not_sealed")


def test_who_stays_for_another_launcher_or_for_a_word_that_was_lost_goes_on() -> None:
    cluster = Storing(Cadence(steps=1000))
    cluster.driver.tell(Expected(tuple(cluster.inherit("a", "b")), 60.0))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.stays) == 2)
    assert sorted(cluster.dropped) == ["a", "b"]
    cluster.disconnect("b")
    cluster.run(1.0)
    cluster.reconnect("b")
    cluster.run(1.0)
    assert cluster.stays == [None, None, None]


def test_what_goes_wrong_is_said_and_tried_again_after_ever_longer_pauses() -> None:
    cluster = Storing(Cadence(steps=1))
    cluster.answers = {("a", "load"): {}, ("a", "write"): 1}
    cluster.hosts(a=1)
    cluster.run(120.0)
    lines = cluster.events("not_sealed")
    assert [line["again_s"] for line in lines[:4]] == [5.0, 10.0, 20.0, 40.0]
    assert lines[0]["reason"] == "a: OSError: no room"
    del cluster.answers["a", "write"]
    cluster.run(200.0)
    assert cluster.events("sealed")


def test_on_notice_only_none_is_made_by_itself_and_one_when_it_is_asked_for() -> None:
    cluster = trained(ON_NOTICE, 60.0)
    assert not cluster.asked or {request["do"] for _, request in cluster.asked} == {"load"}
    cluster.ask(coordinator.request)
    cluster.run(10.0)
    assert len(cluster.events("sealed")) == 1


def test_by_itself_it_begins_soon_and_then_goes_by_what_a_seal_costs() -> None:
    cluster = trained(AUTO, 400.0)
    first = cluster.events("sealed")[0]
    begun = next(line for line in cluster.events("resized"))
    assert first["mono"] - begun["mono"] == pytest.approx(60.0, abs=10.0)
    [chosen] = cluster.events("interval")[:1]
    assert "a seal costs" in chosen["reason"]
    assert math.isfinite(chosen["seconds"])


def test_without_a_state_of_ours_there_is_nothing_to_keep() -> None:
    cluster = Storing(Cadence(steps=1))
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.training)
    for worker in cluster.driver.job.roster.workers.values():
        worker.holds = None
    cluster.ask(coordinator.plan)
    assert cluster.of("write") == []


def test_a_script_without_a_state_of_ours_is_told_once_that_nothing_is_made_durable() -> None:
    cluster = trained(Cadence(steps=1000), 40.0)
    assert not cluster.events("not_sealed")
    for _ in range(3):
        for worker in cluster.driver.job.roster.workers.values():
            worker.holds = None
        cluster.ask(coordinator.plan)
    [line] = cluster.events("not_sealed")
    assert "use one, or --adopt" in line["reason"]


# --- ending with one

TRAINED = "train a:2 b; run 10; "
ENDS = {
    "what was trained is made durable first": TRAINED
    + """interrupt; goes-on; sees sealed; no exited; held-back; over <40; fails stopped by SIGTERM""",
    "told again it ends without": TRAINED + "interrupt; interrupt; over <10; no sealed; fails stopped",
    "a last checkpoint that does not come holds it up for no longer than it may": TRAINED
    + f"silent a b; interrupt; fails stopped; took {LAST_CHECKPOINT_S - 1} {LAST_CHECKPOINT_S + 1}",
    "before training there is nothing to wait for": "start a; run 0.1; interrupt; fails stopped; took -1 0.01",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_job_that_is_told_to_end(text: str) -> None:
    play(text, storing(Cadence(steps=1000)), steps=Stored)


def test_who_stays_beside_what_is_durable_does_not_train_on_to_end() -> None:
    cluster = trained(Cadence(steps=1000), 10.0)
    cluster.ask(coordinator.request)
    cluster.until(lambda: cluster.events("sealed"))
    cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
    assert cluster.driver.outcome is not None


# --- beginning with a checkpoint


def test_no_process_is_started_before_its_host_has_loaded_the_newest_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Storing(Cadence(steps=1000))
    cluster.takes_s["load"] = 7.0
    cluster.answers = {(host, "load"): {"path": "/store/y", "step": 40, "generation": 12} for host in "ab"}
    cluster.hosts(a=2, b=1)
    cluster.run(6.0)
    assert dict(cluster.of("load"))["a"]["ranks"] == {"0": 0, "1": 1}
    assert dict(cluster.of("load"))["b"]["ranks"] == {"0": 2}
    assert cluster.events("spawned") == []
    cluster.until(lambda: len(cluster.training) == 3)
    [line] = cluster.events("resumed")
    assert (line["path"], line["step"]) == ("/store/y", 40)
    assert caplog.text.count("training goes on after step 40, with the checkpoint /store/y") == 1
    assert cluster.driver.job.generation > 12


@pytest.mark.parametrize("ended", [True, False])
def test_what_is_known_of_failures_goes_on_with_the_job_and_one_that_lost_all_counts(*, ended: bool) -> None:
    before = Failures(3.0, 9000.0, 5)
    cluster = Storing(Cadence(steps=5))
    facts = {"failures": before.told(), "ended": ended}
    cluster.answers = {("a", "load"): {"path": "/store/y", "step": 0, "generation": 1, "facts": facts}}
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.events("sealed"))
    [(_, seal)] = cluster.of("seal")[:1]
    assert Failures.of(seal["facts"]["failures"]).seen == (5 if ended else 6)
    assert seal["facts"]["ended"] is False
