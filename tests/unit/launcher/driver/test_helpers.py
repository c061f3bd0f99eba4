"""A helper's answer goes to the planner that waits for it. All other messages about helpers change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from hvd_elastic_ext.launcher.checkpoints import attempt, restore, save_then_stop
from hvd_elastic_ext.launcher.checkpoints.restore import may_start_on
from hvd_elastic_ext.launcher.custody import transfers
from hvd_elastic_ext.launcher.driver.events import AgentJoined, News
from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer, Purpose, answer_of
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.world_change import Stage
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Agent, Cluster


class Asked(NamedTuple):
    """A cluster whose agents never answer, and the host and number of each helper, in order."""

    cluster: Cluster
    helpers: list[tuple[str, int]]


def begun(text: str, **options: str) -> Asked:
    asked = Asked(play(text, **options), [])

    def begin(agent: Agent, order: Mapping[str, Any]) -> None:
        asked.helpers.append((agent.host, order["id"]))

    asked.cluster.helpers.begin = begin  # type: ignore[method-assign]
    return asked


def for_checkpoint() -> Asked:
    asked = begun("train a b; run 10", every="notice")
    asked.cluster.ask(attempt.request)
    return asked


def for_restore() -> Asked:
    asked = begun("begin start=2", every="notice")
    asked.cluster.hosts(a=1, b=1)
    return asked


def for_sleep() -> Asked:
    asked = begun("train a b c least=3 below_min=sleep; run 10", every="notice")
    asked.cluster.lose_agent("c")
    asked.cluster.lose_world("a")
    asked.cluster.hosts(a=1, b=1)
    return asked


def for_transfer() -> Asked:
    asked = begun("train a cooldown_s=(20.0,300.0); run 3")
    asked.cluster.kill("a")
    asked.cluster.hosts(a=1, b=1)
    return asked


def for_past() -> Asked:
    asked = begun("train a; run 3")
    asked.cluster.training.next_call()
    asked.cluster.hosts(a=1, b=1)
    return asked


BEGIN = {
    Purpose.CHECKPOINT: for_checkpoint,
    Purpose.RESTORE: for_restore,
    Purpose.SAVE: for_sleep,
    Purpose.TRANSFER: for_transfer,
    Purpose.PAST: for_past,
}
GOOD: dict[Purpose, dict[str, Any]] = {
    Purpose.CHECKPOINT: {"store": "here"},
    Purpose.RESTORE: {"path": "/store/y", "step": 40, "generation": 3},
    Purpose.SAVE: {"held": {}, "newest": None},
    Purpose.TRANSFER: {"listening": ["address of a", 4711]},
    Purpose.PAST: {"listening": ["address of a", 4711]},
}
GIVE_UP: dict[Purpose, Callable[[JobState], object]] = {
    Purpose.CHECKPOINT: attempt.withdraw_request,
    Purpose.RESTORE: restore._abandon,
    Purpose.SAVE: save_then_stop.training_resumed,
    Purpose.TRANSFER: transfers.cancel,
    Purpose.PAST: calls.cancel,
}
each_purpose = pytest.mark.parametrize("purpose", Purpose, ids=lambda purpose: purpose.name.lower())


def running_helper(purpose: Purpose) -> Asked:
    """Host a runs a helper for this purpose, and b, too, if there may be two."""
    asked = BEGIN[purpose]()
    asked.cluster.until(lambda: len(asked.helpers) == (1 if purpose in (Purpose.TRANSFER, Purpose.PAST) else 2))
    assert asked.helpers[0][0] == "a"
    return asked


def news_of(number: Any, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all messages that an agent may send about a helper."""
    return [
        {"event": "helper", "id": number, "answer": answer},
        {"event": "helper", "id": number, "answer": {"failed": "no room", "for_good": True}},
        {"event": "helper_ended", "id": number, "code": 0, "words": ""},
        {"event": "helper_ended", "id": number, "code": 1, "words": "no room"},
    ]


def changes(cluster: Cluster, host: str, news: dict[str, Any]) -> bool:
    """Whether a message changes the state or causes an action."""
    job = cluster.driver.job
    reduce(job, News(host, {"event": "nothing"}))  # the host has sent a message
    job.take_actions()
    before = repr(job)
    reduce(job, News(host, news))
    return repr(job) != before or bool(job.take_actions())


@each_purpose
def test_only_the_number_of_the_helper_from_the_host_that_was_sent_counts(purpose: Purpose) -> None:
    cluster, helpers = running_helper(purpose)
    host, number = helpers[0]
    others = [(host, number + 1000), (host, None), (host, str(number)), (host, [number]), ("b", number)]
    others += [(host, other) for of, other in helpers if of != host]
    for teller, told in others:
        for news in news_of(told, GOOD[purpose]):
            assert not changes(cluster, teller, news), (teller, news)
    assert changes(cluster, host, news_of(number, GOOD[purpose])[0])


def test_each_helper_has_a_number_of_its_own() -> None:
    for purpose in Purpose:
        numbers = [number for _, number in running_helper(purpose).helpers]
        assert len(set(numbers)) == len(numbers)


@each_purpose
def test_a_helper_that_fails_is_reported_to_its_planner(purpose: Purpose) -> None:
    for news in (1, 3):
        cluster, [(host, number), *_] = running_helper(purpose)
        assert changes(cluster, host, news_of(number, {})[news])


def cut(asked: Asked, _: Purpose) -> None:
    asked.cluster.disconnect("a")
    asked.cluster.reconnect("a")


def cut_and_asked_anew(asked: Asked, purpose: Purpose) -> None:
    cut(asked, purpose)
    asked.cluster.until(lambda: [host for host, _ in asked.helpers].count("a") > 1)


def agent_replaced(asked: Asked, _: Purpose) -> None:
    asked.cluster.lose_agent("a")
    asked.cluster.until(lambda: "a" in asked.cluster.agents)


def given_up(asked: Asked, purpose: Purpose) -> None:
    asked.cluster.ask(GIVE_UP[purpose])


def failed(asked: Asked, _: Purpose) -> None:
    host, number = asked.helpers[0]
    asked.cluster.driver.tell(News(host, news_of(number, {})[1]))


@each_purpose
@pytest.mark.parametrize("end", [cut, cut_and_asked_anew, agent_replaced, given_up, failed])
def test_an_answer_that_comes_when_nobody_waits_any_more_is_ignored(
    purpose: Purpose, end: Callable[[Asked, Purpose], None]
) -> None:
    asked = running_helper(purpose)
    host, number = asked.helpers[0]
    end(asked, purpose)
    for news in news_of(number, GOOD[purpose]):
        assert not changes(asked.cluster, host, news), news


def test_a_host_whose_agent_is_another_one_with_processes_has_no_helper_of_the_agent_before() -> None:
    asked = running_helper(Purpose.RESTORE)
    host, number = asked.helpers[0]
    found = {"0": {"life": 1, "pid": 1, "state": "running", "code": None, "parked": True}}
    hello = {**asked.cluster.agents[host]._hello().news, "agent": "another", "seats": found}
    asked.cluster.driver.tell(AgentJoined(host, hello))
    asked.cluster.driver.look()
    assert may_start_on(asked.cluster.driver.job, host)
    for news in news_of(number, GOOD[Purpose.RESTORE]):
        assert not changes(asked.cluster, host, news), news


@each_purpose
def test_the_end_of_a_helper_after_its_answer_says_nothing_new(purpose: Purpose) -> None:
    cluster, [(host, number), *_] = running_helper(purpose)
    answer, *_, end, _ = news_of(number, GOOD[purpose])
    assert changes(cluster, host, answer)
    assert not changes(cluster, host, end)


def receiving() -> tuple[Cluster, int, int]:
    """Host a sends to b. Return the cluster, and the numbers of both helpers."""
    cluster, helpers = running_helper(Purpose.TRANSFER)
    cluster.driver.tell(News("a", news_of(helpers[0][1], GOOD[Purpose.TRANSFER])[0]))
    cluster.until(lambda: len(helpers) == 2)
    assert [host for host, _ in helpers] == ["a", "b"]
    return cluster, helpers[0][1], helpers[1][1]


def test_both_ends_of_a_transfer_are_heard_until_the_receiver_has_the_commit() -> None:
    cluster, sends, receives = receiving()
    sent, _, ended, broken = news_of(sends, {"sent": True})
    assert not changes(cluster, "a", sent)
    assert not changes(cluster, "a", ended)  # the sender ends before the receiver
    [held] = [commit.held for commit in cluster.agents["a"].memory.values()]
    assert changes(cluster, "b", news_of(receives, {"held": held, "bytes": 8})[0])
    for news in (broken, *news_of(receives, {"held": held})):
        assert not changes(cluster, "a" if news is broken else "b", news)


@pytest.mark.parametrize("end", ["the sender's", "the receiver's", "the receiver's without an answer"])
def test_a_transfer_fails_with_either_end(end: str) -> None:
    cluster, sends, receives = receiving()
    news = {"the sender's": ("a", sends, 3), "the receiver's": ("b", receives, 3)}.get(end, ("b", receives, 2))
    host, number, which = news
    cluster.driver.tell(News(host, news_of(number, {})[which]))
    assert len(cluster.events("not_sent")) == 1
    for late in (*news_of(sends, GOOD[Purpose.TRANSFER]), *news_of(receives, {"held": [1, 1, 1, 1]})):
        assert not changes(cluster, "a" if late["id"] == sends else "b", late)


@pytest.mark.parametrize(
    ("news", "answer"),
    [
        ({"answer": {"step": 1}}, HelperAnswer({"step": 1}, None, False)),
        ({"answer": {"failed": "no"}}, HelperAnswer({"failed": "no"}, "no", False)),
        ({"answer": {"failed": None}}, HelperAnswer({"failed": None}, None, False)),
        ({"answer": [1], "words": "a\nb"}, HelperAnswer({}, "b", False)),
        ({"code": 0, "words": ""}, HelperAnswer({}, "it ended with exit code 0", True)),
        ({"code": 9, "words": "Traceback\nOSError: no room"}, HelperAnswer({}, "OSError: no room", False)),
    ],
)
def test_news_of_a_helper_as_an_answer(news: dict[str, Any], answer: HelperAnswer) -> None:
    assert answer_of(news) == answer


def test_no_world_is_called_before_the_newest_commit_has_come_to_a_member() -> None:
    asked = for_transfer()
    job = asked.cluster.driver.job
    asked.cluster.until(lambda: any(worker.stage is Stage.PARKED for worker in job.roster.workers.values()))
    asked.cluster.run(10.0)
    assert job.generation == 1
    assert not asked.cluster.events("resized")[1:]
    assert job.decision.members is None
    assert job.decision.reason == "the newest commit, of step 3, is held by a only: it is sent to b"
