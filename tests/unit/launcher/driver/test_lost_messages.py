"""Lost orders, repeated messages, and agents that connect again: the job reaches the same state as without them."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.membership.forming import CALL_AGAIN_S
from tests.unit.launcher.scenarios import play

UNNOTICED = "deaf b; run {}; disconnect b; run 0.2; reconnect b; "
"""All orders to b are lost for this time. Then its connection breaks, and is made again."""
SOON, NOW = UNNOTICED.format(0.3), UNNOTICED.format(0.1)

LOST = {
    "a change, by all members": f"""
        train a b; run 2; lose update 3; hosts a b c; told update 2; until a b c <{CALL_AGAIN_S + 1}
        took {CALL_AGAIN_S - 0.1}; run 1; messages update 4; run {4 * CALL_AGAIN_S}; messages update 4""",
    "go, until its agent is back": f"""
        train a; hosts a b; parked b; deaf b; begun 2; state b parked; {SOON} until a b <1
        is resized.cause start, hosts added""",
    "go": f"train a; lose go 1; hosts a b; begun 2; until a b <{CALL_AGAIN_S + 1}",
    "stop of a parked process": f"""
        train a settle_s=20; hosts a b; parked b; deaf b; hosts a; {SOON} gone b <5; is resized.cause start""",
    "that a member is to leave": f"""
        train a b; run 2; deaf b; hosts a; {SOON} until a <1; gone b <1; is exited.cause told to leave""",
    "kill of a silent process": f"""
        train a b heartbeat_timeout_s=3; run 2; stop b; deaf b; sees fenced; {NOW} sees exited <1
        is exited.cause silent""",
    "a rank": f"""
        train a; hosts a b; state b asking; deaf b; sees resized 2; state b asking; {NOW} until a b <0.5; run 5
        is resized.cause start, hosts added; generation 2""",
    "that one is parked": """
        train a; hosts a b; state b booting; mute b; state b parked; run 0.1; disconnect b; reconnect b
        until a b <1""",
    "that members have arrived": """
        train a; hosts a b; until a b; mute a b; run 1; disconnect a b; reconnect a; reconnect b; hosts a; until a <15
        no struck""",
    "how a process ended": """
        train a b; run 2; disconnect b; kill b 0; run 0.1; reconnect b; until a; is exited.code 0; is exited.cause left
        no struck""",
    "the end of training": """
        train a b; run 2; disconnect a b; finish; run 0.1; reconnect a; reconnect b; ended-well""",
    "nothing": f"""
        train a b; run 2; {3 * (UNNOTICED.format(1) + "run 1; ")} world a b; is resized.cause start; no struck""",
    "that a process has started": f"""
        train a; lose-news started 1; hosts a b; state b booting; {UNNOTICED.format(1)} until a b
        is spawned.host a, b""",
    "a question comes again while a world forms": """
        train a b; run 2; hosts a b c; state c asking; disconnect a; reconnect a 0.5; disconnect b; reconnect b 0.5
        until a b c; run 10; is resized.cause start, hosts added""",
    "an end, told and never taken in": """
        train a b c heartbeat_timeout_s=3; run 2; lose-news exited 1; kill b 1; members a c <6; took 3
        is exited.host b; is exited.code 1; until a c b; no fenced""",
    "the last ends of a job": """
        train a b heartbeat_timeout_s=3; run 2; lose-news exited 2; finish; ended-well <10""",
    "a notice of an agent that was sent a signal": """
        train a b; run 2; mute b; sigterm b; run 0.5; disconnect b; run 0.5; reconnect b; formed a <0.2; until a b
        is resized.cause start, hosts removed, hosts added; blameless""",
    "a notice in a file, and its end": """
        train a b; run 2; mute b; notice b ? drained; run 0.5; disconnect b; run 0.2; reconnect b; formed a
        mute b; stay b; run 0.5; disconnect b; run 0.2; reconnect b; formed a b; blameless""",
    **{
        f"nothing, and news of the last {again} s come twice": f"""
            train a b; hosts a b c; until a b c
            {"".join(f"disconnect {host}; run 0.05; reconnect {host} {again}; " for host in "abc")}
            run 20; world a b c; is resized.cause start, hosts added; hosts a b; until a b <0.25
            is exited.cause told to leave"""
        for again in (0.02, 60)
    },
}


@pytest.mark.parametrize("text", LOST.values(), ids=LOST)
def test_what_got_lost_is_repeated(text: str) -> None:
    play(text)


def test_a_process_whose_start_got_lost_is_started_when_its_agent_is_back() -> None:
    cluster = play("train a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.job.roster.on("b"))
    cluster.disconnect("b")  # the order is on its way
    cluster.run(0.2)
    assert not cluster.agents["b"].processes
    cluster.reconnect("b")
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 5.0
    assert not cluster.events("struck")


def test_a_process_that_is_just_being_started_when_its_agent_comes_back_is_journalled_once_with_its_number() -> None:
    cluster = play("train a")
    cluster.pid = None
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: "b" in cluster.agents and cluster.agents["b"].processes)
    cluster.disconnect("b")
    cluster.run(0.5)
    cluster.reconnect("b")
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert [(event["host"], event["pid"]) for event in cluster.events("spawned")] == [("a", 1), ("b", 1)]


def test_a_start_that_is_refused_is_ordered_again_after_a_while_and_nobody_is_blamed() -> None:
    cluster = play("train a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: "b" in cluster.agents)
    cluster.agents["b"].finishing = True  # as after a signal to it
    cluster.run(5.0)
    assert not cluster.agents["b"].processes
    assert not cluster.driver.job.roster.on("b")
    cluster.agents["b"].finishing = False
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 20.0
    assert not cluster.events("struck")
