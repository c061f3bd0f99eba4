"""Processes that come when training calls are over catch up before they join."""

from __future__ import annotations

import re

import pytest

from hvd_elastic_ext.core.call_results import UNEQUAL
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.folder.state_json import from_text, job_of, saved_of, to_text
from hvd_elastic_ext.launcher.health import host_requests
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.membership import adoption, processes
from hvd_elastic_ext.launcher.membership.calls import Calls
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage
from hvd_elastic_ext.launcher.reporting import all_waits
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster
from tests.unit.launcher.simulated_processes import Process


def in_call(number: int, text: str = "train a; run 3", *, kept: bool = True) -> Cluster:
    cluster = play(text)
    while cluster.members[0].call < number:
        cluster.training.next_call(kept=kept)
        cluster.run(1.0)
    return cluster


def calls(cluster: Cluster) -> dict[str, int]:
    return {process.host: process.call for process in cluster.members}


def test_a_newcomer_in_a_later_call_has_the_results_before_it_is_ready_and_interrupts_nobody_before() -> None:
    cluster = in_call(2)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert cluster.helpers.pasts_sent == [("a", "b", 2)]
    assert cluster.training.tells["results"] == 0  # they were there when it came to the call
    assert calls(cluster) == {"a": 2, "b": 2}
    [_, resized] = cluster.events("resized")
    assert resized["call"] == 2


def test_status_names_the_call_in_progress_from_the_second_one_on() -> None:
    cluster = in_call(1)
    assert ", call " not in all_waits.status(cluster.driver.job)
    cluster.training.next_call()
    cluster.run(1.0)
    assert re.match(r"world 1, size 1, call 2, step \d+", all_waits.status(cluster.driver.job))
    assert "; world 1, size 1; call 2; step " in adoption.taken_over(cluster.driver.job)


def test_a_parked_newcomer_is_sent_the_result_of_a_call_that_ends_meanwhile_and_goes_on_by_itself() -> None:
    cluster = play("train a settle_s=8; run 3")
    cluster.hosts(a=1, b=1, c=1)
    cluster.boot_s["c"] = 30.0
    cluster.until(lambda: cluster.events("parked")[1:])
    cluster.training.next_call()
    cluster.run(0.4)
    assert cluster.driver.job.roster.workers[Seat("b", 0)].stage is Stage.BOOTING  # it walks through its program
    assert "b[0] catches up with call 2" in all_waits.status(cluster.driver.job)
    assert cluster.world == ["a"]
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert calls(cluster) == {"a": 2, "b": 2}
    assert [each["host"] for each in cluster.events("parked")] == ["a", "b"]
    assert cluster.training.tells["results"] == 1


def test_two_slots_of_a_host_copy_results() -> None:
    cluster = in_call(3)
    cluster.hosts(a=2)
    cluster.until(lambda: cluster.world == ["a", "a"])
    assert cluster.helpers.pasts_sent == [("a", "a", 3)]


def test_a_newcomer_that_cannot_catch_up_waits_outside_and_delays_nobody(caplog: pytest.LogCaptureFixture) -> None:
    cluster = in_call(2, "train a b; run 3", kept=False)
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(20.0)
    assert cluster.world == ["a", "b"]
    assert cluster.driver.job.roster.workers[Seat("c", 0)].stage is Stage.PARKED
    text = "c[0] waits outside until the job ends: the result of call 1 was not kept: too large"
    job = cluster.driver.job
    assert text in all_waits.status(job)
    assert "starting" not in all_waits.status(job)  # it said both
    hosts = [Host("a", 1), Host("b", 1), Host("c", 1)]
    rows = host_requests.rows(HealthLedger(), hosts, job.now, starting=processes.starting(job, job.now))
    assert [(row["state"], row["starting_s"], "waits outside" in row["why"]) for row in rows] == [
        ("free", None, False),
        ("free", None, False),
        ("free", None, True),
    ]
    [ended] = cluster.events("call_ended")
    assert (ended["call"], ended["kept"], ended["reason"]) == (1, False, "too large")
    assert sum("was not kept" in each.message for each in caplog.records if each.levelname == "WARNING") == 1
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"], within=0.5)  # c, which is parked, is not taken in its place


def test_a_call_that_is_over_is_in_the_journal_once() -> None:
    cluster = in_call(3, "train a b; run 3")
    assert [(each["call"], each["kept"]) for each in cluster.events("call_ended")] == [(1, True), (2, True)]


def test_a_member_that_comes_back_in_a_later_call_joins_with_what_its_slot_has() -> None:
    cluster = in_call(3, "train a b; run 3")
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert calls(cluster) == {"a": 3, "b": 3}
    assert not cluster.helpers.pasts_sent


def test_after_the_loss_of_all_the_results_go_to_a_new_host_before_a_world_forms() -> None:
    cluster = in_call(3, "train a least=2 start=1; run 3")
    cluster.kill("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert calls(cluster) == {"a": 3, "b": 3}


def test_a_process_that_does_not_find_the_results_in_its_slot_joins_as_it_is_after_a_second_try() -> None:
    cluster = in_call(2)
    cluster.hosts(a=1, b=1)
    cluster.training.goes_on = lambda process: cluster.say(process, "parked", call=1)  # type: ignore[method-assign]
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert cluster.training.tells["results"] == 2


def test_a_transfer_whose_connection_breaks_is_tried_again() -> None:
    cluster = in_call(2)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.job.calls.transfer is not None)
    cluster.disconnect("a")
    cluster.run(0.2)
    assert cluster.driver.job.calls.transfer is None
    cluster.reconnect("a")
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert calls(cluster) == {"a": 2, "b": 2}


def test_a_job_in_its_first_call_asks_nothing_about_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_elastic_ext.launcher.membership.calls.decide", None)
    cluster = play("train a; run 3")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])


def test_what_a_launcher_does_not_know_of_calls_it_learns_from_the_agent() -> None:
    cluster = in_call(3)
    job, seat = cluster.driver.job, Seat("a", 0)
    job.calls, job.roster.workers[seat].call = Calls(), 1
    cluster.disconnect("a")
    cluster.run(0.2)
    cluster.reconnect("a")
    cluster.run(0.1)
    assert (job.roster.workers[seat].call, job.calls.pasts, job.calls.newest) == (3, {seat: 3}, 3)


def test_results_that_vanish_with_their_agent_are_not_counted_on() -> None:
    cluster = in_call(2, "train a b; run 3")
    assert cluster.driver.job.calls.pasts == {Seat("a", 0): 2, Seat("b", 0): 2}
    cluster.lose_agent("b")
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert cluster.helpers.pasts_sent == [("a", "b", 2)]


def test_another_helper_on_the_same_host_comes_first_and_the_results_are_sent_again_after_it() -> None:
    cluster = in_call(2)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.job.calls.transfer is not None)
    job = cluster.driver.job
    job.run_helper(Purpose.CHECKPOINT, "a", [0], {"do": "verify"})
    job.helpers[Purpose.CHECKPOINT].clear()  # its answer does not matter
    cluster.driver.look()
    assert cluster.driver.job.calls.transfer is None
    assert cluster.helpers.dropped == []  # the other helper goes on
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert calls(cluster) == {"a": 2, "b": 2}


def one(cluster: Cluster, host: str) -> Process:
    [found] = [each for each in cluster.members if each.host == host]
    return found


def goes_ahead(cluster: Cluster, host: str) -> None:
    """A process ends its call and begins the next one, while the others are at the end of theirs."""
    process = one(cluster, host)
    process.call += 1
    cluster.say(process, "done", call=process.call - 1)
    cluster.say(process, "looping", call=process.call)


def keeps_its_own(cluster: Cluster, host: str, *, kept: bool = True, reason: str = "too large") -> None:
    """It loses its world in the next call, and keeps the result of the last one."""
    process = one(cluster, host)
    if kept:
        process.past[:] = [None] * process.call
    why = {} if kept else {"reason": reason}
    cluster.say(process, "result", call=process.call - 1, bytes=9, kept=kept, **why)


def one_ahead(text: str = "train a b c; run 3", *, kept: bool = True) -> Cluster:
    """The process on a is in call 3, that on b at the end of call 2, and that on c is lost."""
    cluster = in_call(2, text)
    goes_ahead(cluster, "a")
    cluster.run(0.2)
    cluster.kill("c")
    keeps_its_own(cluster, "a", kept=kept)
    return cluster


def test_a_process_that_rolls_back_in_a_call_that_others_have_ended_starts_again_without_blame_and_catches_up() -> None:
    cluster = one_ahead()
    cluster.until(lambda: cluster.world == ["a"] and len(cluster.events("resized")) == 2, within=1.0)
    [behind] = [each for each in cluster.events("exited") if each["host"] == "b"]
    assert behind["cause"] == "behind"
    assert "b[0] is still in call 2, others are in call 3" in behind["reason"]
    cluster.until(lambda: sorted(cluster.world) == ["a", "b", "c"])
    assert calls(cluster) == {"a": 3, "b": 3, "c": 3}
    assert [each["host"] for each in cluster.events("struck")] == ["c"]
    [_, alone, *_] = cluster.events("resized")
    assert (alone["cause"], alone["failed"]) == ("worker failed", {"c": 1})
    assert "b[0] is still in call 2" in alone["reason"]


def test_those_that_are_too_few_to_train_alone_get_the_others_back_in_their_call() -> None:
    cluster = one_ahead("train a b c least=3 cooldown_s=(1.0,1.0); run 3")
    cluster.until(lambda: sorted(cluster.world) == ["a", "b", "c"])
    assert calls(cluster) == {"a": 3, "b": 3, "c": 3}
    assert len(cluster.events("resized")) == 2  # no world of a and b, which are in different calls


def test_a_process_whose_message_of_the_next_call_is_late_is_not_behind() -> None:
    cluster = in_call(2, "train a b c; run 3")
    goes_ahead(cluster, "a")
    cluster.run(5.0)
    assert sorted(cluster.world) == ["a", "b", "c"]
    goes_ahead(cluster, "b")
    cluster.kill("c")
    cluster.until(lambda: cluster.world == ["a", "b"] and len(cluster.events("resized")) == 2, within=1.0)
    assert [each["cause"] for each in cluster.events("exited")] == ["crashed"]


def test_what_the_slot_of_a_process_that_was_behind_holds_is_there_if_those_ahead_are_lost() -> None:
    cluster = one_ahead()
    cluster.until(lambda: cluster.world == ["a"])
    cluster.lose_agent("a")
    cluster.hosts(b=1, c=1)
    cluster.until(lambda: sorted(cluster.world) == ["b", "c"])
    assert calls(cluster) == {"b": 2, "c": 2}
    assert cluster.events("resized")[-1].get("lost_because") is None


def test_a_process_behind_whose_call_cannot_be_skipped_waits_outside_and_the_others_train() -> None:
    cluster = one_ahead(kept=False)
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(30.0)
    assert cluster.world == ["a"]
    assert calls(cluster) == {"a": 3}
    text = "b[0] waits outside until the job ends: the result of call 2 was not kept: too large"
    assert text in all_waits.status(cluster.driver.job)
    assert len([each for each in cluster.events("exited") if each["host"] == "b"]) == 1


def test_a_newcomer_that_was_called_in_a_call_that_ends_meanwhile_catches_up_first() -> None:
    cluster = in_call(2, "train a b; run 3")
    cluster.training.step_s = 3.0
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: any(each.host == "c" and each.state == "asking" for each in cluster.training.all))
    cluster.training.next_call()
    cluster.until(lambda: cluster.world == ["a", "b", "c"])
    assert calls(cluster) == {"a": 3, "b": 3, "c": 3}
    assert not cluster.events("struck")


def test_who_has_not_said_yet_that_it_is_in_the_call_of_the_others_is_waited_for() -> None:
    cluster = in_call(2, "train a b; run 3")
    cluster.training.step_s = 3.0
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: any(each.host == "c" and each.state == "asking" for each in cluster.training.all))
    a, b = one(cluster, "a"), one(cluster, "b")
    for process in (a, b):
        process.past.extend([None] * (3 - len(process.past)))
        cluster.say(process, "done", call=2)
    goes_ahead(cluster, "a")
    cluster.training.ask(a)
    cluster.run(0.2)
    goes_ahead(cluster, "b")
    cluster.training.ask(b)
    cluster.until(lambda: cluster.world == ["a", "b"] and len(cluster.events("resized")) == 2)
    assert [(each["host"], each["cause"]) for each in cluster.events("exited")] == [("c", "behind")]


def test_the_next_launcher_knows_why_the_result_of_a_call_was_not_kept() -> None:
    cluster = in_call(2, "train a b; run 3", kept=False)
    saved = saved_of(cluster.driver.job, incarnation=1, ports={}, wall=0.0, run=None)
    job = job_of(from_text(to_text(saved)), cluster.driver.job.options, now=0.0, wall=0.0, helper_number=1)
    assert job.calls.refused == {1: "too large"}


def test_a_result_that_ranks_have_refused_since_it_differs_is_not_there_because_another_rank_has_one() -> None:
    cluster = in_call(2, "train a b; run 3", kept=False)
    job = cluster.driver.job
    cluster.say(one(cluster, "a"), "result", call=1, bytes=0, kept=False, reason=UNEQUAL)
    cluster.run(0.2)
    assert job.calls.refused == {1: UNEQUAL}
    cluster.say(one(cluster, "b"), "result", call=1, bytes=9, kept=True)
    cluster.run(0.2)
    assert job.calls.refused == {1: UNEQUAL}
    assert job.calls.pasts.get(Seat("b", 0), 0) <= 1
    assert [each["kept"] for each in cluster.events("call_ended")] == [False]


def test_who_has_ended_a_call_and_is_lost_in_the_next_one_has_not_ended_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b; run 3")
    for host in ("a", "b"):
        cluster.training.says(host, "done")
    finished = cluster.driver.job.liveness.finished
    cluster.until(lambda: len(finished) == 2, within=3.0)  # the launcher has noted that they are done
    cluster.training.next_call()
    cluster.run(0.01)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"], within=5.0)
    assert "ended training" not in caplog.text
    cluster.until(lambda: cluster.world == ["a", "b"], within=30.0)
