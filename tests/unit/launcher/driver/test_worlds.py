"""The driver in a cluster in memory: the worlds that form when hosts and processes come, go and fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.membership.processes import LEAVE_S
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions

NEWCOMERS = {
    "let in when ready, with one interrupt": """
        train a; boot b 20; hosts a b; run 15; world a; generation 1; until a b; is resized.cause start, hosts added""",
    "one without ssh costs nothing": """
        train a b; dead c; hosts a b c; run 60; world a b; generation 1; only struck.cause unreachable""",
    "one that does not fit starts nothing until it does": """
        train a; misfit b it has another torch; hosts a b; run 40; is spawned.host a
        only struck.reason it has another torch; misfit b; until a b""",
    "arriving one after the other, they make one resize": "train h0 settle_s=3; "
    + "".join(f"hosts {' '.join(f'h{n}' for n in range(last))}; run 2.5; " for last in range(2, 10))
    + "size 9; is resized.cause start, hosts added",
    "a late one does not hold up one that is ready": "train a settle_s=3; boot c 100; hosts a b c; until a b <8",
    "removed while it boots": """
        train a; boot b 20; hosts a b; run 5; hosts a; gone b <2; run 60; is resized.cause start; no struck""",
    "removed while it is parked": """
        train a settle_s=5; hosts a b; parked b; hosts a; run 60; is resized.cause start; no struck; gone b <1""",
    "on its way out it is not counted on when its host is back": """
        train a settle_s=8; dies b 2; hosts a b; parked b; run 4; hosts a; run 0.5; hosts a b; until a b
        is resized.size 1, 2""",
    "one that comes and goes every second interrupts nobody": f"""
        train a; {30 * "hosts a b; run 1; hosts a; run 1; "} is resized.cause start; no struck; hosts a b; until a b""",
    "one that never gets ready is not a fault of the job's": f"""
        train a failure_budget=2 cooldown_s=(1.0,4.0); hosts a b; {5 * "state b booting <20; run 0.5; kill b 1; "}
        run 1; world a; is resized.cause start; goes-on""",
    "its error again and again is not every rank's": f"""
        train a cooldown_s=(1.0,4.0); hosts a b; {3 * "state b booting <20; run 0.5; fail b disk not mounted; "}
        run 1; world a; goes-on""",
    "before the first world one host's error is not the job's while another still boots": """
        begin start=3 cooldown_s=(1.0,4.0); boot a 60; hosts a b:2; sees spawned 3 <20; run 0.5
        fail b disk not mounted; fail b disk not mounted; run 0.5; goes-on; only struck.host b""",
    "before the first world the same error of all processes ends the job": """
        begin start=2; boot b 60; hosts b:2; sees spawned 2 <20; run 0.5; fail b no such file; run 0.01
        fail b no such file; fails the training script fails: no such file""",
    "before the first world the same error on two hosts ends the job": """
        begin start=3; boot c 60; hosts a b c; sees spawned 3 <20; run 0.5; fail a no such file; fail b no such file
        fails the training script fails: no such file""",
    "killed while it goes live": """
        train a b; run 2; hosts a b c; begun 2; kill c; sees resized 2 <1; until a b <1; is resized.size 2, 2
        only struck.host c""",
    "a member killed right after a join": "train a b; run 1; hosts a b c; until a b c; kill a; until b c",
}
FAILURES = {
    "a killed worker is back after its cooldown": """
        train a b; run 2; kill b; until a <0.2; until a b; took 10 16
        is resized.cause start, worker failed, cooldown over""",
    "rank 0 is a holder of the newest commit": "train a b; run 2; kill a; until b; until b a",
    "all may be killed at once": "train a b; run 2; kill a; kill b; size 2; goes-on",
    "a stopped process is killed": """
        train a b heartbeat_timeout_s=3; run 2; stop b; until a <5.5; sees exited <1; is exited.cause silent""",
    "a silent host is cut off": """
        train a b c heartbeat_timeout_s=3; run 2; cut c; begun 2 <4.5; formed a b <0.5; is fenced.host c""",
    "a silent host that was to leave is not waited for": """
        train a b c heartbeat_timeout_s=3; run 2; cut c; hosts a b; formed a b <4.5; took 2
        is resized.cause start, hosts removed""",
    "nor while another one joins": """
        train a b c heartbeat_timeout_s=3; run 2; hosts a b c d; parked d; cut c; hosts a b d; formed a b d <4.5""",
    "a lost connection is waited for": """
        train a b c; run 2; cut c; disconnect c; sees fenced <10.5; took 8.5; until a b""",
    "but not that of a host that is listed no more": """
        train a b c; run 2; cut c; disconnect c; hosts a b; sees fenced <2.5; took 0.5; until a b""",
    "a host that was cut off is back with a new process": """
        train a b heartbeat_timeout_s=3; run 2; cut b; dead b; until a; run 20; back b; until a b
        is resized.cause start, worker failed, cooldown over; is exited.cause told to leave""",
    "an exit with 0 before training is done is a departure": """
        train a b; run 1; kill b 0; until a; goes-on; no struck""",
    **{
        f"a second failure {after} s after the first": f"""
            train a b c d; run 2; kill b; run {after}; kill c; until a d <1; run 0.5; world a d
            only struck.host b, c"""
        for after in ("0", "0.011", "0.013", "0.05")
    },
    "the same error on one host after the other ends the job": """
        train a b c; run 2; fail a division by zero at step 7; run 0.05; fail b division by zero at step 7
        fails division by zero at step 7""",
    "a survivor that waits for a lost peer in vain is ended, without blame": """
        train a b c; run 1; wedge b; run 1; kill c; formed a <12; is exited.cause crashed, peer lost; is struck.host c
        until a b <12""",
    "so is one that is busy first, and then waits in vain": """
        train a b c; run 1; hang b; run 1; kill c; run 20; is exited.host c; stick b 0; formed a c <12
        is exited.cause crashed, peer lost; is struck.host c""",
    "not one that was busy until a moment ago": """
        train a b c; run 1; hang b; run 1; kill c; run 6.5; stick b 0; run 5; is exited.host c
        wedge b 0; lose-world b; size 2 <1""",
    "nor one that a launcher which stood still itself has not heard yet": """
        train a b c; run 1; wedge b; run 1; kill c; run 1; standstill 15; wedge b 0; lose-world b; size 2 <1
        is exited.host c""",
    "nor one that was stopped": """
        train a b c heartbeat_timeout_s=30; run 1; wedge b; run 1.5; kill c; stop b; run 15; is exited.host c""",
    "one that is busy is waited for": "train a b c; run 1; hang b; run 1; kill c; run 60; is exited.host c",
    "a launcher that stood still itself cuts nobody off": """
        train a b; run 3; standstill 15; run 20; no fenced struck isolated; cut b; sees fenced <12""",
}
REPLACED = {
    "a removed host goes at the next step": """
        train a b; run 2; hosts a; until a <0.25; run 3; gone b <1; is exited.cause told to leave; no struck""",
    "all in one list": """
        train a b; run 2; hosts c d; run 2; world a b; until c d; is resized.size 2, 3, 2; no struck""",
    "one by one": """
        train a b c least=2; hosts b c n0; together b c n0; hosts c n0 n1; together c n0 n1; hosts n0 n1 n2
        together n0 n1 n2; no struck; run 5; gone a b c <1""",
    "not before the replacement is ready, where too few would be left": """
        train a b least=2; run 2; hosts a c; run 2; world a b; until a c; generation 2""",
    "a host that is listed again while its agent ends": """
        train a b; clears 3; run 2; hosts a; ending b; hosts a b; until a b <10; no struck fenced""",
    "who comes back does not push out who has its place": """
        begin start=2 most=2 cooldown_s=(5.0,5.0); hosts a b c; until a b; run 1; kill b; until a c; run 60; world a c
        number resized 3""",
    "a sent process may take its time to end where nobody waits": """
        train a b heartbeat_timeout_s=3; run 1; stop b; hosts a; members a; run 20; no fenced struck""",
    "all may be in a long evaluation when one is to leave": f"""
        train a b; run 1; step {10 * LEAVE_S}; hosts a; run {9 * LEAVE_S}; no exited; until a <{2 * LEAVE_S}
        is exited.code 0""",
    "one that does not come to the step at which others left is ended": f"""
        train a b; run 1; wedge b; hosts a; members a <2; run {LEAVE_S - 2}; no exited; run 3; is exited.code 143""",
}
SIZES = {
    "only allowed ones": """
        begin allowed=(2,4); hosts a b c; until a b; run 10; world a b; hosts a b c d; until a b c d""",
    "too few for too long end the job": """
        start a least=2 start=2 elastic_timeout_s=30.0; fails processes ready: 1, needed: 2""",
    "below the minimum it fails at once if asked to": """
        train a b least=2 start=1 below_min=fail; run 2; kill b
        fails slots needed to go on: 2, usable: 1 (a, b); took 0 0.5; over; gone a b""",
    "or waits": "train a b least=2; run 2; kill b; begun 2; size 2; goes-on",
    "who only has to be started again is not missing": """
        train a b below_min=fail; run 2; kill a; kill b; size 2; goes-on""",
    "the rest waits for a replacement": """
        train a b least=2; run 2; kill b; hosts a; run 20; is resized.cause start; hosts a c; until a c
        is resized.size 2, 2""",
}
ENDS = {
    "one that is done may hang in its last lines": """
        train a b heartbeat_timeout_s=3; run 1; finish b; run 30; no fenced; ended-well
        is exited.cause done, silent""",
    "told to stop": "train a b; end; over; gone a b",
}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=f"{subject}: {name}")
        for subject, scenarios in (
            ("newcomers", NEWCOMERS), ("failures", FAILURES), ("replaced", REPLACED), ("sizes", SIZES), ("ends", ENDS),
        )
        for name, text in scenarios.items()
    ],
)  # fmt: skip
def test_worlds_form_of_the_right_processes_in_time(text: str) -> None:
    play(text)


def test_hosts_of_equal_standing_get_ranks_in_the_order_of_the_list() -> None:
    shown: dict[str, int] = {}

    class Watched(Cluster):
        def ordered(self, host: str, order: Mapping[str, Any]) -> None:
            if order.get("message", {}).get("tell") == "go":
                shown[host] = int(order["message"]["env"]["HOROVOD_RANK"])

    cluster = Watched(JobOptions(WorldLimits(start=3, settle_s=0.1)))
    cluster.hosts(b=1, c=1, a=1)
    cluster.until(lambda: cluster.members)
    assert cluster.world == ["b", "c", "a"]
    assert shown == {"b": 0, "c": 1, "a": 2}  # before they ask


def test_an_empty_list_is_told_in_one_line_that_says_whether_hosts_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster()
    cluster.hosts(a=1, b=1)
    cluster.hosts()
    assert [each.getMessage() for each in caplog.records] == ["hosts: none (-a, -b)"]
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.world)
    caplog.clear()
    cluster.hosts()
    kept = "a list without any host was published; the hosts known so far are kept while they work"
    assert [each.getMessage() for each in caplog.records] == [kept]
    cluster.hosts()  # the launcher receives a refused list in the same way
    assert [each.getMessage() for each in caplog.records] == [kept]
    cluster.hosts(a=1)
    cluster.hosts()
    assert [each.getMessage() for each in caplog.records] == [kept, kept]


def test_a_process_that_starts_while_nothing_trains_is_not_said_to_start_beside_the_training() -> None:
    cluster = play("train a b least=2")
    cluster.kill("a")
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a", "b"] and len(cluster.events("resized")) == 2, within=60.0)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: len(cluster.world) == 3, within=60.0)
    assert [each.get("trains", True) for each in cluster.events("standby")] == [False, False, True]


def test_a_host_that_stays_in_the_world_with_other_slots_is_journalled_with_those_it_had() -> None:
    cluster = play("train a b")
    for slots in (3, 2):
        cluster.hosts(a=slots, b=1)
        cluster.until(lambda slots=slots: len(cluster.world) == slots + 1, within=60.0)
        cluster.run(15.0)
    first, grown, shrunk = cluster.events("resized")
    assert "slots_before" not in first
    assert "slots_added" not in first
    assert (grown["slots_added"], shrunk["slots_removed"]) == ({"a": [1, 2]}, {"a": [2]})
    assert not {"slots_removed", "slots_failed"} & grown.keys()
    assert (grown["added"], grown["removed"], grown["slots_before"]) == (["a"], [], {"a": 1})
    assert (shrunk["added"], shrunk["removed"], shrunk["slots_before"]) == ([], ["a"], {"a": 3})


def test_a_host_that_loses_one_of_its_slots_is_journalled_with_that_slot() -> None:
    cluster = play("train a:2 b; run 3; kill a:1; until a b; run 5")
    failed = cluster.events("resized")[1]
    assert (failed["removed"], failed["slots_removed"], failed["slots_failed"]) == (["a"], {"a": [1]}, {"a": [1]})
    whole = play("train a:2 b; run 3; hosts b; until b; run 5").events("resized")[1]
    assert whole["removed"] == ["a"]
    assert not {"slots_removed", "slots_failed", "slots_before"} & whole.keys()


def test_an_empty_list_interrupts_nobody() -> None:
    cluster = play("train a b")
    cluster.publish(HostSet())
    cluster.run(5.0)
    assert cluster.world == ["a", "b"]


def test_a_worker_that_crashes_each_time_it_joins_is_let_in_ever_more_seldom_and_never_ends_the_job() -> None:
    cluster = play("train a b failure_budget=4 cooldown_s=(1.0,8.0)")
    joined: list[float] = []
    for _ in range(7):
        cluster.until(lambda: cluster.world == ["a", "b"], within=20.0)
        joined.append(cluster.clock.mono())
        cluster.run(0.5)
        cluster.kill("b", code=1)
        cluster.until(lambda: cluster.world == ["a"], within=1.0)
    waits = [after - before for before, after in pairwise(joined)]
    # The time of its start and 1 s, 2 s, and from the third time on the longest cooldown: it costs the others steps.
    assert [round(wait - 1.0) for wait in waits[:3]] == [4, 5, 11]
    assert all(wait > 8.0 for wait in waits[3:])
    assert not cluster.driver.over


def test_ranks_go_by_what_is_said_when_they_are_asked_for_and_not_by_whose_beat_was_the_last() -> None:
    cluster = play("train a b c")
    cluster.run(3.0)
    for host, number in (("a", 100), ("b", 101), ("c", 104)):
        beat = {"commit": [1, 1, number], "step": number}
        cluster.driver.tell(News(host, {"event": "beats", "slots": {"0": {"life": 1, "age": 0.0, "beat": beat}}}))
    cluster.training.sealed = [1, 1, 105]
    cluster.hosts(a=1, b=1, c=1, d=1)
    cluster.until(lambda: len(cluster.events("resized")) == 2)
    cluster.run(0.1)
    assert [process.rank for host in "abc" for process in cluster.members if process.host == host] == [0, 1, 2]
