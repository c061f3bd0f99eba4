"""No job sleeps before all of its training is on storage, sealed and read back."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import RETRY_S
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Agent, Cluster, Helpers

TWO = "train a b least=2 below_min=sleep; run 10; "
"""Two hosts that are both needed, and train."""
SHORT = TWO + "lose-b; "

SLEEPS = {
    "an empty list counts only when no agent answers": TWO
    + "hosts; run 60; world a b; lose-agent a; lose-agent b; asleep None; gone a b",
    "an empty list does not count while an agent answers": TWO + "hosts; kill a; kill b; together a b; run 60; running",
    "hosts that return in time prevent the sleep": SHORT
    + "run 20; hosts a b; together a b; run 60; helpers held; running",
    "hosts that return during the write let the job continue": TWO
    + "takes write 40; lose-b; asked write; hosts a b; together a b; run 120; helpers seal; running",
    "a checkpoint that fails is tried again after pauses": TWO
    + "refuses a write no room; lose-b; run 200; running; accepts a write; asleep /store/x <300",
    "a job without agents sleeps with the last sealed checkpoint": TWO
    + "notice b 15 spot reclaim; sees sealed; dead a b; lose-agent a; lose-agent b; asleep; helpers held",
    "the job waits for a connection that is lost meanwhile": """
        train a b least=2 below_min=sleep heartbeat_timeout_s=100.0; run 10; lose-b; run 28; disconnect a; run 20
        running; reconnect a; asleep""",
    **{
        f"a host that falls silent during {helper} delays the sleep no longer than others": TWO
        + f"takes {helper} 5; lose-b; asked {helper} <35; dead a c; hosts c; cut a; mute a; asleep None <150"
        for helper in ("held", "write")
    },
    "a member that is lost for ever while a world forms": SHORT
    + """lose go 1000; hosts a b; begun 2; run 1; lose-agent b; dead b; hosts a; asleep /store/x <60""",
    **{
        f"memory of a host that will go ({how}) is sealed in time": SHORT
        + f"run 2; note-step a; {how}; asleep /store/x <14; sealed-there"
        for how in ("sigterm a", "notice a 15 spot reclaim")
    },
}
TOLD_TO_END = {
    **{
        f"the commit in memory is saved, {sleeps}": f"""
            train a b least=2 {sleeps}; run 10; lose-b; run 2; note-step a; interrupt; over <20; number sealed 1
            sealed-there; fails stopped by SIGTERM"""
        for sleeps in ("below_min=sleep", "below_min=wait")
    },
    "failing storage delays the end no longer than any last checkpoint": TWO
    + "refuses a held no room; lose-b; run 2; interrupt; over <30; took 20; fails stopped by SIGTERM",
}


@pytest.mark.parametrize("text", SLEEPS.values(), ids=SLEEPS)
def test_a_job_that_lacks_hosts_sleeps_once_its_newest_commit_is_durable(text: str) -> None:
    play(text, every="notice")


@pytest.mark.parametrize("text", TOLD_TO_END.values(), ids=TOLD_TO_END)
def test_told_to_end_while_its_world_is_broken(text: str) -> None:
    assert isinstance(play(text, every="notice").driver.outcome, Interrupted)


def test_what_the_survivors_hold_is_sealed_and_verified_before_anything_ends() -> None:
    cluster = play(SHORT + "run 29; helpers held; note-step a; asleep; sealed-there", every="notice")
    kinds = [request["do"] for _, request in cluster.helpers.asked if request["do"] != "load"]
    assert kinds == ["held", "write", "seal", "held", "verify"]
    [(_, request)] = cluster.helpers.of("write")
    assert (request["parts"], request["shares"]) == (1, {"0": [0, 0, 1]})
    assert not cluster.agents.get("a")


def test_as_long_as_storage_fails_nobody_sleeps_and_nobody_is_given_up() -> None:
    cluster = play(
        "train a b least=2 below_min=sleep elastic_timeout_s=50.0; run 10; refuses a held no room; lose-b; run 300",
        every="notice",
    )
    assert not cluster.driver.over
    assert 300.0 / RETRY_S > len(cluster.helpers.of("held")) > 10
    assert "no room" in cluster.events("not_slept")[0]["reason"]


def test_one_that_is_not_whole_is_made_anew_from_memory() -> None:
    cluster = play(TWO, every="notice")
    cluster.helpers.answers["a", "verify"] = {"whole": False, "why": "a block of it is wrong"}
    cluster.lose_agent("b")
    cluster.lose_world("a")
    cluster.hosts(a=1)
    cluster.until(lambda: len(cluster.helpers.of("verify")) == 1)
    cluster.run(0.5)
    del cluster.helpers.answers["a", "verify"]
    cluster.until(lambda: cluster.driver.over, within=120.0)
    assert len(cluster.helpers.of("write")) == 2
    assert "a block of it is wrong" in cluster.events("checkpoint_skipped")[0]["reason"]


def looks_in(cluster: Cluster, seconds: float) -> int:
    """Return how often the driver looks in that time, 1000 times at most."""
    count, look = 0, cluster.driver.look

    def counted() -> float | None:
        nonlocal count
        count += 1
        assert count <= 1000, "it looks all the time"
        return look()

    cluster.driver.look = counted  # type: ignore[method-assign]
    cluster.run(seconds)
    return count


def test_a_checkpoint_that_is_due_while_nobody_trains_has_nobody_look_all_the_time() -> None:
    assert looks_in(play(SHORT, every="2s"), 15.0) >= 15


def test_told_to_end_while_storage_hangs_nobody_looks_all_the_time() -> None:
    cluster = play(
        """train a b least=1 settle_s=5 below_min=sleep; run 10; takes held 60; boot c 60; lose-agent b; kill a
        hosts a b c; sees parked 3; interrupt""",
        every="notice",
    )
    looks_in(cluster, 15.0)
    assert not cluster.driver.over


def test_a_checkpoint_is_read_back_where_it_is() -> None:
    """Hosts share no storage, and the first one that answers does not have the checkpoint."""
    cluster = play(SHORT, every="notice")
    cluster.helpers.answers["c", "held"] = {"held": {}, "newest": None}
    cluster.helpers.answers["c", "verify"] = {"whole": False, "why": "it is not there"}
    cluster.options.limits = WorldLimits(start=2, least=3, settle_s=0.1)
    cluster.hosts(a=1, c=1)
    cluster.helpers.held_s["a"] = 0.5
    cluster.until(lambda: cluster.driver.over)
    assert [host for host, _ in cluster.helpers.of("verify")] == ["a"]


def test_an_agent_that_alone_holds_the_newest_commit_is_asked_though_its_host_is_listed_no_more() -> None:
    cluster = play(TWO, every="notice")
    cluster.helpers.answers["a", "send"] = {"failed": "no route to c", "for_good": False}
    cluster.lose_agent("b")
    cluster.kill("a")
    cluster.hosts(c=1)
    cluster.run(40.0)
    assert {host for host, _ in cluster.helpers.of("write")} == {"a"}


class Unusable(Helpers):
    """No job can resume from its checkpoints."""

    def _over(self, agent: Agent, number: int, answer: dict[str, Any], **more: Any) -> None:
        if "newest" in answer:
            answer["newest"] = None
        elif "path" in answer:
            answer["not_resumable"] = LACKS
        super()._over(agent, number, answer, **more)


LACKS = "it is of call 2, and the result of call 1 was not kept"


def test_a_job_from_whose_newest_checkpoint_none_can_resume_does_not_sleep_and_writes_it_once() -> None:
    """Defect: it wrote that checkpoint again and again."""

    class Storage(Cluster):
        helpers_kind = Unusable

    cluster = play(SHORT + "run 300; running", Storage, every="notice")
    assert len(cluster.events("sealed")) == 1
    assert f"no job can resume from /store/x: {LACKS}" in cluster.events("not_slept")[-1]["reason"]
