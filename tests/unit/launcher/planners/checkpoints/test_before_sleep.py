"""Nothing sleeps before all that was trained is on storage, sealed and read back."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Asleep, Interrupted
from hvd_elastic_ext.launcher.driver.events import End
from hvd_elastic_ext.launcher.planners.checkpoints.before_sleep import AGAIN_S, Step, next_step
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Kept
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import ON_NOTICE, Cadence
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.checkpoints import Found, Known
from tests.unit.launcher.storing import Storing

HELD = {Seat("a", 0): Kept((7, 1, 2, 30), 30, 1)}


def stored(number: int) -> Found:
    return Found(f"n{number}", f"/store/n{number}", (7, 1, 2, number), number)


@pytest.mark.parametrize(
    ("known", "step"),
    [
        (Known(), Step.LOOK),
        (Known(True), Step.SLEEP),
        (Known(True, stateless=True), Step.WAIT),
        (Known(True, HELD), Step.WRITE),
        (Known(True, HELD, stored(29), whole=True), Step.WRITE),
        (Known(True, HELD, stored(30)), Step.VERIFY),
        (Known(True, HELD, stored(30), whole=True), Step.SLEEP),
        (Known(True, {}, stored(30)), Step.VERIFY),
        (Known(True, {}, stored(30), whole=True), Step.SLEEP),
        (Known(True, {}, stored(30), stateless=True), Step.VERIFY),
    ],
)
def test_what_is_newer_in_memory_is_sealed_and_what_is_sealed_is_read_back(known: Known, step: Step) -> None:
    assert next_step(known) is step


def two(every: Cadence = ON_NOTICE, **rules: object) -> Storing:
    """Two hosts that are both needed, and train."""
    usual: dict[str, Any] = {"limits": Limits(start=2, least=2, settle_s=0.1), "sleep_after_s": 30.0}
    cluster = Storing(every, **{**usual, **rules})
    cluster.answers = {(host, "load"): {} for host in "ab"}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.training) == 2)
    cluster.run(10.0)
    return cluster


def lose_b(cluster: Storing) -> None:
    cluster.lose_agent("b")
    cluster.lose_world("a")
    cluster.hosts(a=1)


def asleep(cluster: Storing) -> Asleep:
    cluster.until(lambda: cluster.driver.over, within=120.0)
    assert isinstance(cluster.driver.outcome, Asleep), cluster.driver.outcome
    return cluster.driver.outcome


def test_what_the_survivors_hold_is_sealed_and_verified_before_anything_ends() -> None:
    cluster = two()
    lose_b(cluster)
    [survivor] = cluster.agents["a"].values()
    cluster.run(29.0)
    assert not cluster.asked[-1:] or cluster.asked[-1][1]["do"] == "load"
    night = asleep(cluster)
    kinds = [request["do"] for _, request in cluster.asked if request["do"] != "load"]
    assert kinds == ["held", "write", "seal", "held", "verify"]
    [(_, request)] = cluster.of("write")
    assert (request["parts"], request["shares"]) == (1, {"0": [0, 0, 1]})
    assert request["commit"][3] == survivor.steps
    assert (night.path, night.step) == ("/store/x", survivor.steps)
    assert not cluster.agents.get("a")


def test_an_empty_list_is_believed_when_nobody_is_left_that_answers_and_not_before() -> None:
    cluster = two()
    cluster.hosts()
    cluster.run(60.0)
    assert {process.host for process in cluster.training} == {"a", "b"}
    cluster.lose_agent("a")
    cluster.lose_agent("b")
    night = asleep(cluster)
    assert (night.path, night.step) == (None, None)
    assert not cluster.agents


def test_an_empty_list_is_not_believed_while_an_agent_answers() -> None:
    cluster = two()
    cluster.hosts()
    for host in "ab":
        cluster.kill(host)
    cluster.until(lambda: {process.host for process in cluster.training} == {"a", "b"})
    cluster.run(60.0)
    assert not cluster.driver.over


def test_hosts_that_are_back_in_time_have_nobody_sleep() -> None:
    cluster = two()
    lose_b(cluster)
    cluster.run(20.0)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.training) == 2)
    cluster.run(60.0)
    assert not cluster.of("held")
    assert not cluster.driver.over


def test_hosts_that_are_back_while_it_is_written_have_the_job_go_on() -> None:
    cluster = two()
    cluster.takes_s["write"] = 40.0
    lose_b(cluster)
    cluster.until(lambda: cluster.of("write"))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.training) == 2)
    assert "a" in cluster.dropped
    cluster.run(120.0)
    assert not cluster.of("seal")
    assert not cluster.driver.over


def test_as_long_as_storage_fails_nobody_sleeps_and_nobody_is_given_up() -> None:
    cluster = two(elastic_timeout_s=50.0)
    cluster.answers["a", "held"] = {"failed": "no room"}
    lose_b(cluster)
    cluster.run(300.0)
    assert not cluster.driver.over
    assert 300.0 / AGAIN_S > len(cluster.of("held")) > 10
    assert "no room" in cluster.events("not_slept")[0]["reason"]
    del cluster.answers["a", "held"]
    assert asleep(cluster).path == "/store/x"


def test_a_seal_that_fails_is_tried_again_and_not_all_the_time() -> None:
    cluster = two()
    cluster.answers["a", "write"] = {"failed": "no room"}
    lose_b(cluster)
    cluster.run(200.0)
    assert not cluster.driver.over
    assert 2 < len(cluster.of("write")) < 10
    del cluster.answers["a", "write"]
    cluster.until(lambda: cluster.driver.over, within=300.0)
    assert isinstance(cluster.driver.outcome, Asleep)


def test_one_that_is_not_whole_is_made_anew_from_memory() -> None:
    cluster = two()
    cluster.answers["a", "verify"] = {"whole": False, "why": "a block of it is wrong"}
    lose_b(cluster)
    cluster.until(lambda: len(cluster.of("verify")) == 1)
    cluster.run(0.5)
    del cluster.answers["a", "verify"]
    asleep(cluster)
    assert len(cluster.of("write")) == 2
    assert "a block of it is wrong" in cluster.events("passed_over")[0]["reason"]


def test_where_nobody_is_left_it_sleeps_with_what_was_sealed_last() -> None:
    cluster = two()
    cluster.write_notice("b", "spot reclaim", 15.0)
    cluster.until(lambda: cluster.events("sealed"))
    cluster.lose_agent("a")
    cluster.lose_agent("b")
    cluster.dead = {"a", "b"}
    night = asleep(cluster)
    assert (night.path, night.step) == ("/store/x", cluster.events("sealed")[-1]["step"])
    assert not cluster.of("held")


def test_a_connection_that_is_lost_meanwhile_is_waited_for() -> None:
    cluster = two(heartbeat_timeout_s=100.0)
    lose_b(cluster)
    cluster.run(28.0)
    cluster.disconnect("a")
    cluster.run(20.0)
    assert not cluster.driver.over
    cluster.reconnect("a")
    assert asleep(cluster).path == "/store/x"


@pytest.mark.parametrize("sleeps", [True, False])
def test_told_to_end_while_its_world_is_broken_a_job_saves_what_memory_holds(sleeps: bool) -> None:
    cluster = two(sleep_after_s=30.0 if sleeps else None)
    lose_b(cluster)
    cluster.run(2.0)
    [survivor] = cluster.agents["a"].values()
    cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
    took_s = cluster.until(lambda: cluster.driver.over)
    assert isinstance(cluster.driver.outcome, Interrupted)
    assert [line["step"] for line in cluster.events("sealed")] == [survivor.steps]
    assert took_s < 20.0


def test_told_to_end_it_waits_for_storage_that_fails_no_longer_than_for_any_last_checkpoint() -> None:
    cluster = two()
    cluster.answers["a", "held"] = {"failed": "no room"}
    lose_b(cluster)
    cluster.run(2.0)
    cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
    took_s = cluster.until(lambda: cluster.driver.over)
    assert 20.0 <= took_s < 30.0
    assert isinstance(cluster.driver.outcome, Interrupted)


def looks_in(cluster: Storing, seconds: float, *, most: int) -> int:
    """How often the driver looks in that time; given up beyond ``most``."""
    count, look = 0, cluster.driver.look

    def counted() -> float | None:
        nonlocal count
        count += 1
        assert count <= most, "it looks all the time"
        return look()

    cluster.driver.look = counted  # type: ignore[method-assign]
    cluster.run(seconds)
    cluster.driver.look = look  # type: ignore[method-assign]
    return count


def test_a_checkpoint_that_is_due_while_nobody_trains_has_nobody_look_all_the_time() -> None:
    cluster = two(every=Cadence(seconds=2.0))
    lose_b(cluster)
    assert looks_in(cluster, 15.0, most=1000) >= 15


def test_told_to_end_while_storage_hangs_nobody_looks_all_the_time() -> None:
    cluster = two(limits=Limits(start=2, least=1, settle_s=5.0))
    cluster.takes_s["held"] = cluster.boot_s["c"] = 60.0
    cluster.lose_agent("b")
    cluster.kill("a")
    cluster.hosts(a=1, b=1, c=1)
    ready = len(cluster.events("parked"))
    cluster.until(lambda: len(cluster.events("parked")) > ready)  # and c is waited for
    cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
    looks_in(cluster, 15.0, most=1000)
    assert not cluster.driver.over


@pytest.mark.parametrize("errand", ["held", "write"])
def test_a_survivor_that_falls_silent_while_it_is_asked_is_waited_for_no_longer_than_any(errand: str) -> None:
    cluster = two()
    cluster.takes_s[errand] = 5.0
    lose_b(cluster)
    cluster.run(31.0)
    assert cluster.of(errand)
    cluster.dead = {"a", "c"}
    cluster.hosts(c=1)
    cluster.cut.add("a")
    cluster.mute.add("a")
    cluster.run(150.0)
    assert isinstance(cluster.driver.outcome, Asleep)


def test_a_world_that_loses_a_member_for_good_while_it_forms_is_no_reason_to_stay_awake() -> None:
    cluster = two()
    lose_b(cluster)
    cluster.lose["go"] = 1000
    cluster.hosts(a=1, b=1)
    before = cluster.driver.job.generation
    cluster.until(lambda: cluster.driver.job.generation > before)
    cluster.run(1.0)
    assert not cluster.driver.job.formed
    cluster.lose_agent("b")
    cluster.dead.add("b")
    cluster.hosts(a=1)
    cluster.run(60.0)
    assert isinstance(cluster.driver.outcome, Asleep)


def test_a_checkpoint_is_read_back_where_it_is() -> None:
    """Hosts share no storage, and the first one that answers has none of it."""
    cluster = two()
    cluster.answers["c", "held"] = {"held": {}, "newest": None}
    cluster.answers["c", "verify"] = {"whole": False, "why": "it is not there"}
    lose_b(cluster)
    cluster.rules.limits = Limits(start=2, least=3, settle_s=0.1)
    cluster.hosts(a=1, c=1)
    cluster.held_s["a"] = 0.5
    cluster.run(40.0)
    assert isinstance(cluster.driver.outcome, Asleep)
    assert [host for host, _ in cluster.of("verify")] == ["a"]


@pytest.mark.parametrize("signalled", [True, False])
def test_memory_that_is_about_to_go_is_sealed_while_it_is_there(signalled: bool) -> None:
    cluster = two()
    lose_b(cluster)
    cluster.run(2.0)
    [survivor] = cluster.agents["a"].values()
    if signalled:
        cluster.terminate("a")
    else:
        cluster.write_notice("a", "spot reclaim", 15.0)
    cluster.run(14.0)
    assert isinstance(cluster.driver.outcome, Asleep)
    assert (cluster.driver.outcome.path, cluster.driver.outcome.step) == ("/store/x", survivor.steps)


def test_an_agent_that_alone_holds_the_newest_commit_is_asked_though_its_host_is_listed_no_more() -> None:
    cluster = two()
    [survivor] = cluster.agents["a"].values()
    held = [[77, 1, survivor.generation, survivor.steps], survivor.steps, 1]
    cluster.answers["a", "held"] = {"held": {"0": held}, "newest": None}
    cluster.lose_agent("b")
    cluster.kill("a")
    cluster.hosts(c=1)
    cluster.run(40.0)
    assert {host for host, _ in cluster.of("write")} == {"a"}
