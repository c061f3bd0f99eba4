"""The end of a job that has succeeded: what it was left with is sealed before agents go, however storage behaves."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.driver.events import End
from hvd_elastic_ext.launcher.planners.checkpoints.final_checkpoint import ANSWER_S, FAILING_S, TIMES, Facts, decide
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import ON_NOTICE, Cadence
from tests.unit.launcher.storing import Storing

FACTS = Facts(since=100.0, saved=False, answered=False, durable_s=5.0)


@pytest.mark.parametrize(
    ("after_s", "facts", "waits", "why"),
    [
        (0.0, FACTS._replace(saved=True), False, ""),
        (FAILING_S - 1.0, FACTS._replace(answered=True), True, "the end of training is made durable"),
        (FAILING_S, FACTS._replace(answered=True), False, "it could not be written for 20 s"),
        (FAILING_S, FACTS, True, "the end of training is made durable"),
        (ANSWER_S, FACTS, False, "storage gave no answer for 300 s"),
        (ANSWER_S, FACTS._replace(durable_s=ANSWER_S), True, "the end of training is made durable"),
        (TIMES * ANSWER_S, FACTS._replace(durable_s=ANSWER_S), False, "storage gave no answer for 1200 s"),
    ],
)
def test_agents_stay_as_long_as_storage_may_still_take_it(
    after_s: float, facts: Facts, *, waits: bool, why: str
) -> None:
    assert decide(facts.since + after_s, facts) == (waits, why)


def trained(every: Cadence = ON_NOTICE, **hosts: int) -> Storing:
    cluster = Storing(every)
    hosts = hosts or {"a": 1, "b": 1}
    cluster.hosts(**hosts)
    cluster.until(lambda: len(cluster.training) == sum(hosts.values()))
    cluster.run(10.0)
    return cluster


def facts_sealed(cluster: Storing) -> list[dict[str, Any]]:
    return [request["facts"] for _, request in cluster.of("seal")]


def test_what_training_was_left_with_is_sealed_when_all_processes_have_ended_and_says_that_it_is_the_end() -> None:
    cluster = trained()
    steps = cluster.training[0].steps
    cluster.finish()
    cluster.until(lambda: cluster.driver.over, within=20.0)
    assert cluster.driver.outcome is None
    [sealed] = cluster.events("sealed")
    assert sealed["step"] >= steps
    assert [facts["finished"] for facts in facts_sealed(cluster)] == ["this"]
    assert all(line["mono"] < sealed["mono"] for line in cluster.events("exited"))


def test_a_checkpoint_that_is_being_written_then_is_waited_for_and_one_that_was_only_named_is_not() -> None:
    cluster = trained(Cadence(steps=5))
    cluster.takes_s["write"] = 30.0
    cluster.until(lambda: len(cluster.of("write")) >= 2)
    cluster.finish()
    cluster.takes_s["write"] = 0.5
    cluster.until(lambda: cluster.driver.over, within=90.0)
    assert [facts.get("finished") for facts in facts_sealed(cluster)][-2:] == [None, "this"]
    cluster = trained(Cadence(steps=5))
    cluster.busy_s = 1000.0
    cluster.until(lambda: cluster.driver.job.checkpoints.attempt is not None)
    cluster.finish()
    assert cluster.until(lambda: cluster.driver.over, within=30.0) < 5.0
    assert facts_sealed(cluster)[-1]["finished"] == "this"


def test_storage_that_fails_costs_the_checkpoint_and_not_the_good_end(caplog: pytest.LogCaptureFixture) -> None:
    cluster = trained()
    cluster.answers |= {(host, "write"): {"failed": "No space left on device"} for host in ("a", "b")}
    cluster.finish()
    assert cluster.until(lambda: cluster.driver.over, within=90.0) >= FAILING_S
    assert cluster.driver.outcome is None
    assert caplog.text.count("training is done, but its end is in no checkpoint") == 1
    assert cluster.events("not_sealed")[-1]["reason"].startswith("the end of training: it could not be written")


def test_storage_that_never_answers_ends_the_job_after_a_while_and_well(caplog: pytest.LogCaptureFixture) -> None:
    cluster = trained()
    cluster.silent = {"a", "b"}
    cluster.finish()
    assert ANSWER_S <= cluster.until(lambda: cluster.driver.over, within=400.0) < ANSWER_S + 40.0
    assert cluster.driver.outcome is None
    assert "storage gave no answer" in caplog.text


def test_what_one_host_takes_with_it_the_others_hold_too() -> None:
    cluster = trained()
    cluster.finish()
    cluster.lose_agent("a")
    cluster.until(lambda: cluster.driver.over, within=60.0)
    assert cluster.driver.outcome is None
    assert [host for host, _ in cluster.of("seal")] == ["b"]
    assert facts_sealed(cluster)[0]["finished"] == "this"


def test_who_is_told_to_end_meanwhile_ends_at_once_and_is_not_finished() -> None:
    cluster = trained()
    cluster.takes_s["write"] = 60.0
    cluster.finish()
    cluster.until(lambda: cluster.of("write"))
    cluster.driver.tell(End(Interrupted(2, "stopped by SIGINT")))
    assert cluster.until(lambda: cluster.driver.over, within=90.0) < 10.0
    assert isinstance(cluster.driver.outcome, Interrupted)
    assert not facts_sealed(cluster)


def test_a_job_that_is_told_to_end_is_not_finished() -> None:
    cluster = trained()
    cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
    cluster.until(lambda: cluster.driver.over)
    assert [facts.get("finished") for facts in facts_sealed(cluster)] == [None]


def test_files_that_were_saved_in_the_place_of_the_last_commit_are_what_is_sealed() -> None:
    cluster = trained(a=2)
    process = next(each for each in cluster.training if each.rank == 0)
    commit = [77, 1, process.generation, process.steps]
    cluster.say(process, "last", commit=commit, step=process.steps, side=2, files=True, stall_s=0.5)
    cluster.finish()
    cluster.until(lambda: cluster.driver.over)
    [(_, request)] = cluster.of("write")
    assert request["parts"] == 1
    assert request["shares"][str(process.slot)] == [0, 0, 2]
    assert [share[0] for slot, share in request["shares"].items() if slot != str(process.slot)] == [None]


@pytest.mark.parametrize("wrong", [{"commit": [1, 2]}, {"step": "x"}, {"side": None}, {"commit": ["a", 1, 2, 3]}])
def test_a_word_about_files_that_makes_no_sense_is_passed_over(wrong: dict[str, Any]) -> None:
    cluster = trained(a=1)
    process = cluster.training[0]
    said = {"commit": [77, 1, process.generation, process.steps], "step": process.steps, "side": 2, "files": True}
    cluster.say(process, "last", **{**said, **wrong})
    cluster.finish()
    cluster.until(lambda: cluster.driver.over)
    [(_, request)] = cluster.of("write")
    assert request["shares"] == {"0": [0, 0, 1]}


def test_nothing_is_started_for_a_job_whose_newest_checkpoint_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Storing(ON_NOTICE)
    done = {"done": True, "path": "/store/x", "step": 40, "passed_over": []}
    cluster.answers = {("a", "load"): done, ("b", "load"): {}}
    cluster.held_s = {"b": 1.0}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None
    assert not cluster.events("spawned")
    assert not cluster.of("seal")
    assert caplog.text.count("the job is done: step 40 is in /store/x") == 1
    assert all(request["done"] == "this" for _, request in cluster.of("load"))
