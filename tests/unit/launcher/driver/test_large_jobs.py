"""Costs that hundreds of hosts must not have: looks without any change, and hosts that only wait."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import JOIN_S, SEND_S
from hvd_elastic_ext.launcher.health import silence
from hvd_elastic_ext.launcher.membership import world_change
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import Engine
from hvd_elastic_ext.launcher.membership.rendezvous import HOLD_S, Question
from hvd_elastic_ext.launcher.membership.world_change import WorldDecision
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions


def steady(*names: str) -> Cluster:
    """A job in which only heartbeats come."""
    cluster = play(f"train {' '.join(names)}")
    cluster.run(15.0)
    return cluster


def next_look_in(cluster: Cluster) -> float:
    at = cluster.driver.look()
    assert at is not None
    return at - cluster.clock.mono()


def test_the_larger_a_calm_job_the_rarer_the_looks_but_not_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = steady("a", "b")
    assert next_look_in(cluster) == pytest.approx(plan.LOOK_S)
    monkeypatch.setattr(plan, "PAUSE_PER_PROCESS_S", 2.0)
    assert next_look_in(cluster) == pytest.approx(4.0)
    monkeypatch.setattr(plan, "PAUSE_PER_PROCESS_S", 200.0)
    assert next_look_in(cluster) == pytest.approx(plan.MAX_PAUSE_S)


def test_a_large_job_whose_world_is_not_whole_is_looked_at_as_often_as_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "PAUSE_PER_PROCESS_S", 2.0)
    cluster = steady("a", "b")
    cluster.kill("b")
    cluster.until(lambda: cluster.events("exited"))
    assert next_look_in(cluster) <= plan.LOOK_S


def test_between_two_looks_silence_is_noticed_all_the_same() -> None:
    cluster = steady("a", "b")
    assert not cluster.driver.is_due()
    cluster.clock.now += cluster.options.heartbeat_timeout_s + 1.0
    assert cluster.driver.is_due()
    cluster.driver.tell(News("a", {"event": "beats", "slots": {}}))
    cluster.driver.look()
    assert not cluster.driver.is_due()
    assert {event["host"] for event in cluster.events("fenced")} == {"b"}


def test_a_heartbeat_message_that_tells_of_a_silent_process_is_due_at_once_and_only_on_its_host() -> None:
    cluster = steady("a", "b")
    (worker,) = cluster.driver.job.roster.on("a")
    limit_s = cluster.options.heartbeat_timeout_s
    told = {}
    for age in (limit_s, limit_s + 0.1):
        beat = {"life": worker.life.number, "age": age, "beat": {"step": 1, "pid": 7}}
        cluster.driver.tell(News("a", {"event": "beats", "part": True, "slots": {"0": beat}}))
        told[age] = [silence.is_due_on(cluster.driver.job, host) for host in ("a", "b")]
    assert list(told.values()) == [[False, False], [True, False]]
    cluster.driver.look()
    assert {event["host"] for event in cluster.events("fenced")} == {"a"}
    assert not silence.is_due_on(cluster.driver.job, "a")


def test_a_question_for_a_key_is_answered_in_time_though_it_causes_no_look() -> None:
    cluster = steady("a")
    (worker,) = cluster.driver.job.roster.workers.values()
    asked = {"event": "asked", "slot": 0, "life": worker.life.number, "id": 99, "method": "GET", "path": "/global/9"}
    cluster.driver.tell(News("a", asked))
    assert not cluster.driver.is_due()
    at = cluster.driver.due_at()
    assert at == pytest.approx(cluster.clock.mono() + HOLD_S)
    cluster.clock.now += HOLD_S
    assert cluster.driver.is_due()
    cluster.driver.look()
    assert not cluster.driver.is_due()


@pytest.mark.parametrize(("others", "blamed"), [(0, True), (30, False)])
def test_who_stands_in_line_for_its_start_is_not_taken_for_unreachable(others: int, blamed: bool) -> None:
    cluster = Cluster(JobOptions())
    started: list[str] = []
    cluster.launcher.start_agent = lambda host: started.append(host.name)  # type: ignore[method-assign]
    cluster.hosts(**dict.fromkeys(("a", *(f"h{number}" for number in range(others))), 1))
    cluster.driver.look()
    assert len(started) == others + 1
    cluster.clock.now += JOIN_S + 20.0
    cluster.driver.look()
    assert bool(cluster.events("struck")) is blamed


@pytest.mark.parametrize(("passed_s", "blamed"), [(JOIN_S + 20.0, False), (SEND_S + 20.0, True)])
def test_a_host_to_which_code_is_sent_has_time_for_it(passed_s: float, blamed: bool) -> None:
    cluster = Cluster(JobOptions(send_code=True))
    cluster.launcher.start_agent = lambda host: None  # type: ignore[method-assign]
    cluster.hosts(a=1)
    cluster.driver.look()
    cluster.clock.now += passed_s
    cluster.driver.look()
    assert bool(cluster.events("struck")) is blamed


def test_who_waits_for_a_rank_is_seen_without_a_copy_of_all() -> None:
    cluster = steady("a")
    meeting, (worker,) = cluster.driver.job.rendezvous, cluster.driver.job.roster.workers.values()
    waiting = meeting.waiting
    assert worker.life not in waiting
    meeting.ask(Question(worker.life, 99, "GET", "/rank_and_size/a/0"), cluster.clock.mono())
    assert worker.life in waiting


@pytest.mark.parametrize(("part", "missed"), [(False, True), (True, False)])
def test_a_beat_that_tells_of_some_processes_only_says_nothing_of_the_others(part: bool, missed: bool) -> None:
    cluster = steady("a")
    hung_up: list[str] = []
    cluster.launcher.hang_up = lambda host, reason: hung_up.append(host)  # type: ignore[method-assign]
    for _ in range(3):
        cluster.clock.now += cluster.options.heartbeat_timeout_s / 2 + 1.0
        cluster.driver.tell(News("a", {"event": "beats", "slots": {}, **({"part": True} if part else {})}))
        cluster.driver.look()
    assert bool(hung_up) is missed  # so that it connects again, and reports what it runs
    assert not cluster.events("fenced")
    assert len(cluster.members) == 1


def test_a_process_that_a_part_of_the_beats_calls_silent_is_killed_for_it() -> None:
    cluster = steady("a")
    quiet = {"0": {"life": 1, "age": cluster.options.heartbeat_timeout_s + 1.0, "beat": {"step": 1}}}
    cluster.driver.tell(News("a", {"event": "beats", "slots": quiet, "part": True}))
    assert cluster.driver.is_due()
    cluster.driver.look()
    assert [event["host"] for event in cluster.events("fenced")] == ["a"]


def test_the_processes_of_a_host_are_known_whatever_has_become_of_them() -> None:
    cluster = Cluster(JobOptions())
    roster = cluster.driver.job.roster

    def check() -> None:
        for host in ("a", "b", "c"):
            assert roster.on(host) == [worker for seat, worker in roster.workers.items() if seat.host == host]

    cluster.inherit("a", "b")
    cluster.hosts(a=2, b=2, c=1)
    cluster.run(20.0)
    assert len(cluster.members) == 5
    check()
    cluster.kill("a", 1)
    cluster.run(1.0)
    check()
    cluster.lose_agent("c")  # the others are those of the launcher before
    cluster.run(1.0)
    assert not roster.on("c")
    check()
    cluster.run(60.0)
    check()


def test_a_decision_by_what_differs_is_that_by_a_look_at_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    causes: list[str] = []

    def compared(job: JobState) -> WorldDecision:
        found = Engine().advance(job)
        assert found == world_change.decide(job.now, job.situation, job.options.limits)
        causes.append(found.cause)
        return found

    monkeypatch.setattr(plan.forming, "engine_of", lambda job: Engine(advance=compared))
    cluster = play("train a b")
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(30.0)
    cluster.kill("b")
    cluster.run(30.0)
    cluster.write_notice("c", "spot", in_s=30.0)
    cluster.run(5.0)
    cluster.lose_world("a")
    cluster.run(60.0)
    (worker,) = cluster.driver.job.roster.on("a")
    done = {"event": "said", "slot": 0, "life": worker.life.number, "message": {"say": "done"}}
    cluster.driver.tell(News("a", done))
    cluster.driver.look()
    assert {"start", "hosts added", "worker failed"} <= set(causes)
