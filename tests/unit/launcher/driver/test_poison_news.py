"""The launcher accepts the valid part of any message, and continues."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.events import AgentJoined, News
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from tests.unit.launcher.driver.test_helpers import running_helper
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster

POISON: tuple[Any, ...] = (
    "²", "", "x", "99999999999", None, True, -1, 5, 1 << 70, 10**400, 1e308, -1e308, math.inf, -math.inf, math.nan,
    [], [[]], [1, 2, 3], [1, 2, 3, 4], ["²"], ["a", "b", "c"], [None] * 3, [{}] * 4, [math.inf] * 4, [10**400] * 3,
    [10**400] * 4, {}, {"²": {}}, {"0": None}, {"0": []}, {"0": {"life": 1}}, {"0": [[math.inf] * 4, 1, 1]},
    {"0": ["abcd", 1, 1]}, {"count": 10**400, "exposure_s": 1.0, "seen": 1}, {"failures": {"count": 10**400}},
)  # fmt: skip
OF_AGENTS = (
    "asked", "unasked", "started", "restarted", "restarting", "ended", "forgotten", "refused",
    "left", "dropped", "beats", "said", "helper", "helper_ended", "held", "notice", "going", "staying", "advised",
    "notices_unavailable", "output", "²",
)  # fmt: skip
FIELDS = (
    "slot", "life", "id", "method", "path", "body", "message", "slots", "code", "signal", "oom", "held", "reason",
    "pid", "grace_s", "in_s", "answer", "words", "output", "news", "records", "messages", "pids", "source", "stream",
    "text", "warm", "ready", "memory",
)  # fmt: skip
SAID = (
    "parked", "entered", "record", "commit_kept", "last_commit", "commit_not_kept", "first_step",
    "looping", "synced", "done", "failed",
    "beat", "agreed", "²",
)  # fmt: skip
IN_WORDS = (
    "commit", "step", "side", "stall_s", "files", "generation", "pause_s", "fields", "event", "why", "error", "rank",
    "step_s", "progress", "waiting", "every", "commit_s", "call_s", "steps_lost", "text", "kind", "reason", "path",
    "warned", "wanted", "newest", "loops", "digest", "every", "say", "share", "averages",
)  # fmt: skip

OF_COMMITS = ("commit", "step", "side", "stall_s", "files", "wanted", "newest", "failed")


@pytest.fixture
def cluster() -> Cluster:
    return play("train a b")


def said(cluster: Cluster, message: Any) -> None:
    number = cluster.agents["a"].processes[0].life
    cluster.driver.tell(News("a", {"event": "said", "slot": 0, "life": number, "message": message}))


@pytest.mark.parametrize("events", [OF_AGENTS, ("exited",), ("not_started",)], ids=["news", "exited", "not started"])
def test_no_field_of_an_agents_news_is_an_error_of_ours(cluster: Cluster, events: tuple[str, ...]) -> None:
    for event in events:
        usual = {"event": event, "slot": 0, "life": cluster.agents["a"].processes[0].life}
        for field in FIELDS:
            for poison in POISON:
                cluster.driver.tell(News("a", {**usual, field: poison}))
            cluster.driver.look()
    assert not cluster.driver.over


def test_no_field_of_what_a_process_says_is_an_error_of_ours(cluster: Cluster) -> None:
    for word, field in itertools.product(SAID, IN_WORDS):
        for poison in POISON:
            said(cluster, {"say": word, field: poison})
            said(cluster, {"say": word, "commit": [1, 1, 1, 1], "step": 1, "side": 1, field: poison})
        cluster.driver.look()
    assert not cluster.driver.over


def test_no_field_of_an_answer_about_a_commit_to_keep_is_an_error_of_ours() -> None:
    storing_cluster = play("train a b every=notice; run 10")
    attempts_made = 0
    for word, field, poison in itertools.product(("commit_kept", "commit_not_kept", "last_commit"), OF_COMMITS, POISON):
        job = storing_cluster.driver.job
        if job.checkpoints.attempt is None:
            attempts_made += 1
            job.checkpoints.staying = None
            storing_cluster.ask(attempt.request)
            storing_cluster.ask(attempt.begin)
        wanted = [*job.checkpoints.attempt.wanted]
        usual = {"say": word, "commit": [77, *wanted], "step": 9, "side": 1, "wanted": wanted, "newest": wanted}
        said(storing_cluster, {**usual, field: poison})
    assert attempts_made > len(POISON)


def test_no_field_of_a_beat_is_an_error_of_ours(cluster: Cluster) -> None:
    progress = itertools.count(10)
    for field, poison in itertools.product(IN_WORDS, POISON):
        number = next(progress)
        usual = {"commit": [1, 1, number], "step": number, "progress": number}
        beat = {"life": cluster.agents["a"].processes[0].life, "age": poison, "beat": {**usual, field: poison}}
        cluster.driver.tell(News("a", {"event": "beats", "slots": {"0": beat, "²": beat, "9" * 5000: beat}}))
        cluster.driver.look()
    assert cluster.driver.job.roster.workers.keys() == {Seat("a", 0), Seat("b", 0)}
    assert not cluster.driver.over


def test_no_field_of_a_record_is_an_error_of_ours(cluster: Cluster) -> None:
    names = ("self", "event", "generation", "at_mono", "t", "host", "²", "cls", "fields")
    for name, poison in itertools.product(names, POISON):
        said(cluster, {"say": "record", "event": "rolled_back", "fields": {name: poison, "steps_lost": 3}})
    cluster.driver.look()
    lines = [json.loads(line) for line in cluster.journal.getvalue().splitlines()]
    assert sum(line["event"] == "rolled_back" for line in lines) == len(names) * len(POISON)


@pytest.mark.parametrize("poison", [each for each in POISON if not isinstance(each, dict)])
def test_an_answer_of_a_helper_that_is_none_is_a_failed_try(poison: Any) -> None:
    loads = play("start a every=5; asked load")
    number = loads.driver.job.helpers[Purpose.RESTORE]["a"]
    loads.driver.tell(News("a", {"event": "helper", "id": number, "answer": poison}))
    assert len(loads.events("not_resumed")) == 1
    sends = play("train a cooldown_s=(300.0,300.0); run 3; kill a; hosts a b")
    sends.until(lambda: sends.driver.job.transfers.current is not None)
    ((host, number),) = sends.driver.job.helpers[Purpose.TRANSFER].items()
    sends.driver.tell(News(host, {"event": "helper", "id": number, "answer": poison}))
    assert len(sends.events("not_sent")) == 1


def test_a_slot_that_is_none_is_left_out_of_an_agents_account(cluster: Cluster) -> None:
    for number in ("²", "٣", "-1", "", "x", "9" * 5000):
        come_back(cluster, number)
        assert {seat for seat in cluster.driver.job.roster.workers if seat.host == "a"} <= {Seat("a", 0)}
    assert not cluster.driver.over


def come_back(cluster: Cluster, number: str) -> None:
    status = {"life": 1, "pid": 1, "state": "running", "code": None, "held": [1, 1, 1, 1], "note": number}
    cluster.disconnect("a")
    facts = {"event": "hello", "facts": {}, "seats": {number: status}}
    cluster.driver.tell(AgentJoined("a", {**cluster.agents["a"]._hello().news, **facts}))
    cluster.driver.tell(News("a", {"event": "held", "slots": {number: [1, 1, 1, 1]}}))
    cluster.driver.look()


COMMIT = [77, 1, 1, 9]
FOUND = {"name": "1-1-9", "path": "/store/x", "identity": COMMIT, "step": 9}
LISTENING = {"listening": ["a", 1], "held": [1, 1, 9, 9], "bytes": 9, "path": "/x", "for_good": True}
LOADED = {
    "path": "/store/y", "step": 40, "generation": 3, "passed_over": ["x"], "slots": [0], "commit": [1, 2, 3],
    "held": [1, 2, 3, 40], "done": False, "facts": {"failures": {"count": 1.0, "exposure_s": 1.0, "seen": 1}},
}  # fmt: skip
WRITTEN = {"store": "here", "path": "/store/x", "bytes": 9, "not_removed": ""}
STAGES: list[tuple[Purpose, list[dict[str, Any]]]] = [
    (Purpose.CHECKPOINT, [WRITTEN]),
    (Purpose.CHECKPOINT, [WRITTEN, WRITTEN]),
    (Purpose.RESTORE, [LOADED]),
    (Purpose.SAVE, [{"held": {"0": [COMMIT, 9, 1]}, "newest": FOUND, "whole": True}]),
    (Purpose.SAVE, [{"held": {}, "newest": FOUND}, {"whole": True, "why": "", "held": {}, "newest": None}]),
    (Purpose.TRANSFER, [LISTENING]),
    (Purpose.TRANSFER, [LISTENING, LISTENING]),
]
"""The purpose of a helper, and the messages of all helpers, one after the other. The last one gets the invalid
values."""


def replaced(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the answer with each invalid value in place of each field, also of inner fields."""
    for field, value in answer.items():
        yield from ({**answer, field: poison} for poison in POISON)
        if isinstance(value, dict):
            yield from ({**answer, field: inner} for inner in replaced(value))


@pytest.mark.parametrize(("purpose", "answers"), STAGES)
def test_no_field_of_a_helpers_answer_is_an_error_of_ours(purpose: Purpose, answers: list[dict[str, Any]]) -> None:
    cluster = running_helper(purpose).cluster
    job = cluster.driver.job
    for answer in answers[:-1]:
        for host, helper in list(job.helpers[purpose].items()):
            cluster.driver.tell(News(host, {"event": "helper", "id": helper, "answer": answer}))
        cluster.until(lambda: job.helpers[purpose])
    *others, last = job.helpers[purpose].items()
    for number, poisoned in enumerate(replaced(answers[-1])):
        taken = copy.deepcopy(job)
        said = [(*last, poisoned)] if purpose is Purpose.TRANSFER else [(*each, answers[-1]) for each in others]
        for host, helper, answer in [*said, (*last, poisoned)]:
            reduce(taken, News(host, {"event": "helper", "id": helper, "answer": answer}))
        if number % 5 == 0:
            plan.look(taken)
        assert taken.roster.workers.keys() >= job.roster.workers.keys(), "a process is lost by it"
