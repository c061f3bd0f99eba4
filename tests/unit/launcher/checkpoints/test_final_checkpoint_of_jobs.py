"""The end of a job that has succeeded: its last state is sealed before agents end, whatever storage does."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.launcher.checkpoints.save_then_stop import STORAGE_ANSWER_S, WRITE_TRIES_S
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster, storing


def facts_sealed(cluster: Cluster) -> list[dict[str, Any]]:
    return [request["facts"] for _, request in cluster.helpers.of("seal")]


def test_what_training_was_left_with_is_sealed_when_all_processes_have_ended_and_says_that_it_is_the_end() -> None:
    cluster = play("train a b every=notice; run 10")
    steps = cluster.members[0].batch
    cluster.training.finish()
    cluster.until(lambda: cluster.driver.over, within=20.0)
    assert cluster.driver.outcome is None
    [sealed] = cluster.events("sealed")
    assert sealed["step"] >= steps
    assert [facts["finished"] for facts in facts_sealed(cluster)] == ["this"]
    assert all(line["mono"] < sealed["mono"] for line in cluster.events("exited"))


def test_a_checkpoint_that_is_being_written_then_is_waited_for_and_one_that_was_only_named_is_not() -> None:
    cluster = play("train a b every=5; run 10")
    cluster.helpers.takes_s["write"] = 30.0
    cluster.until(lambda: len(cluster.helpers.of("write")) >= 2)
    cluster.training.finish()
    cluster.helpers.takes_s["write"] = 0.5
    cluster.until(lambda: cluster.driver.over, within=90.0)
    assert [facts.get("finished") for facts in facts_sealed(cluster)][-2:] == [None, "this"]
    cluster = play("train a b every=5; run 10")
    cluster.training.busy_s = 1000.0
    cluster.until(lambda: cluster.driver.job.checkpoints.attempt is not None)
    cluster.training.finish()
    assert cluster.until(lambda: cluster.driver.over, within=30.0) < 5.0
    assert facts_sealed(cluster)[-1]["finished"] == "this"


def test_a_checkpoint_of_the_last_commit_that_was_asked_for_before_the_end_is_made_the_end() -> None:
    cluster = play("train a b every=5; run 10")
    cluster.helpers.takes_s["write"] = 3.0
    cluster.until(lambda: bool(cluster.driver.job.helpers[Purpose.CHECKPOINT]))
    cluster.training.finish()
    cluster.until(lambda: cluster.driver.over, within=60.0)
    before, last = cluster.events("sealed")[-2:]
    assert before["path"] == last["path"], "else this test shows nothing"
    assert [facts.get("finished") for facts in facts_sealed(cluster)][-2:] == [None, "this"]


ENDS = {
    "storage that fails costs the checkpoint but not exit code 0": f"""
        train a b; run 10; refuses a write no room; refuses b write no room; finish; ended-well <90
        took {WRITE_TRIES_S}; says not_sealed.reason the end of training: it could not be written""",
    "storage that never answers costs the checkpoint but not exit code 0": f"""
        train a b; run 10; silent a b; finish; ended-well <{STORAGE_ANSWER_S + 40}; took {STORAGE_ANSWER_S}
        says not_sealed.reason storage did not answer""",
    "a host lost at the end costs nothing that the others hold": """
        train a b; run 10; finish; lose-agent a; ended-well; helpers seal b; finished this""",
    "a job told to end meanwhile ends at once, and is not finished": """
        train a b; run 10; takes write 60; finish; asked write; interrupt; over <10; fails stopped; helpers seal""",
    "a job that is told to end is not finished": "train a b; run 10; interrupt; over; helpers seal a; finished None",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_the_end_of_training_becomes_the_last_checkpoint(text: str) -> None:
    play(text, every="notice")


def test_that_the_end_is_in_no_checkpoint_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    play("train a; run 5; refuses a write no room; finish; ended-well <90", every="notice")
    assert caplog.text.count("training is done, but no checkpoint has its end") == 1
    assert "; there is none, and the same command starts from the beginning" in caplog.text


def test_files_that_were_saved_in_the_place_of_the_last_commit_are_what_is_sealed() -> None:
    cluster = play("train a:2 every=notice; run 10")
    process = next(each for each in cluster.members if each.rank == 0)
    commit = [77, 1, process.generation, process.batch]
    cluster.say(process, "last_commit", commit=commit, step=process.batch, side=2, files=True, stall_s=0.5)
    cluster.training.finish()
    cluster.until(lambda: cluster.driver.over)
    [(_, request)] = cluster.helpers.of("write")
    assert request["parts"] == 1
    assert request["shares"][str(process.slot)] == [0, 0, 2]
    assert [share[0] for slot, share in request["shares"].items() if slot != str(process.slot)] == [None]


@pytest.mark.parametrize("wrong", [{"commit": [1, 2]}, {"step": "x"}, {"side": None}, {"commit": ["a", 1, 2, 3]}])
def test_a_word_about_files_that_makes_no_sense_is_passed_over(wrong: dict[str, Any]) -> None:
    cluster = play("train a every=notice; run 10")
    process = cluster.members[0]
    said = {"commit": [77, 1, process.generation, process.batch], "step": process.batch, "side": 2, "files": True}
    cluster.say(process, "last_commit", **{**said, **wrong})
    cluster.training.finish()
    cluster.until(lambda: cluster.driver.over)
    [(_, request)] = cluster.helpers.of("write")
    assert request["shares"] == {"0": [0, 0, 1]}


def test_nothing_is_started_for_a_job_whose_newest_checkpoint_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(storing("notice"))
    done = {"done": True, "path": "/store/x", "step": 40, "passed_over": []}
    cluster.helpers.answers = {("a", "load"): done, ("b", "load"): {}}
    cluster.helpers.held_s = {"b": 1.0}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None
    assert not cluster.events("spawned")
    assert not cluster.helpers.of("seal")
    assert caplog.text.count("the job is done: step 40 is in /store/x") == 1
    assert all(request["done"] == "this" for _, request in cluster.helpers.of("load"))


def test_a_host_that_does_not_see_yet_that_the_checkpoint_is_the_end_does_not_have_it_written_again() -> None:
    cluster = play("train a b every=notice; run 10")
    cluster.training.finish()
    cluster.until(lambda: len(facts_sealed(cluster)) == 1, within=20.0)
    seen = cluster.helpers._facts

    def held_by(agent: Any, number: int, request: Any, held: Any = cluster.helpers._held) -> None:
        cluster.helpers._facts = {key: {} for key in seen} if agent.host == "a" else seen
        held(agent, number, request)

    cluster.helpers._held = held_by
    cluster.until(lambda: cluster.driver.over, within=60.0)
    assert len(facts_sealed(cluster)) == 1
    assert not cluster.events("not_sealed")
