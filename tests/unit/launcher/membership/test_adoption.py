"""Training continues without a launcher: what the next launcher does until agents connect, and afterwards."""

from __future__ import annotations

import logging

import pytest

from hvd_elastic_ext.launcher.departures.shutdown import PROCESSES_S
from hvd_elastic_ext.launcher.folder.state_json import saved_of
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster

OWN_LINK = {
    "a launcher whose link is down disturbs no training process": """
        train a b c; run 2; cut a b c; run 12; back a b c; run 60; untouched; processes a:1 b:1 c:1
        number isolated 1""",
    "hosts return one after the other": """
        train a b c; run 2; cut a; run 0.3; cut b; run 0.3; cut c; run 20.3; disconnect a b c; back a b c; run 3
        reconnect a; run 3; reconnect b; run 3; reconnect c; run 60; untouched; processes a:1 b:1 c:1""",
    "a host that does not return with the others is cut off": """
        train a b c; run 2; cut a b c; run 15; back a b; run 9; no fenced; until a b <8; is fenced.host c""",
    **{
        f"messages of a newcomer that boots for {boot} s cut off no member": f"""
            train a b; run 2; boot d {boot}; hosts a b d; run 0.5; cut a b; run 30; no fenced; back a b
            together a b d <12; is resized.cause start, hosts added; processes a:1 b:1 d:1"""
        for boot in (4, 20)
    },
    **{
        f"ranks without news for {silent} s do not count as stalled": f"""
            train a b progress_timeout_s={limit} restart_stalled=True; run 3; wedge b; run 2; cut a b; wedge b 0
            run {silent}; back a b; run 30; no stalled; untouched"""
        for limit, silent in ((12, 20), (5, 8))
    },
    "hosts that are gone are replaced when the orphan grace is over": """
        train a b orphan_grace_s=40; run 2; cut a b; dead a b; run 12; hosts c d; run 23; generation 1; members c d
        took 5; only fenced.host a, b""",
    "the only host may be silent for the orphan grace": """
        train a orphan_grace_s=40; run 2; cut a; run 35; back a; run 10; untouched; cut a; sees fenced <42""",
}
INHERITED = {
    "the launcher waits for a late host": "inherit a b c=12; run 60; undisturbed a b c",
    "newcomers join when all hosts are back": """
        inherit a b c=40; hosts a b c d; run 39; no resized spawned; size 4; processes a:4 b:4 c:4 d:1
        is resized.cause hosts added""",
    "a host that returns after the wait belongs to the world that was taken over": """
        inherit a b c=200; run 100; members a b; run 150; undisturbed a b c""",
    "an unreachable host trains on, and the launcher tries to reach it": """
        dead c; inherit a b c; run 8; members a b; run 100; back c; run 20; undisturbed a b c""",
    "agents connect by themselves when none can be started": """
        dead a b c; inherit a b c; run 4; join a; run 1; join b; run 1; join c; run 60; undisturbed a b c""",
    "if no host is back in time, the world is taken over when hosts come": """
        inherit a=61 b=61.2; run 120; undisturbed a b""",
    "a host that returns after the others formed a new world starts new processes": """
        inherit a b c=200; run 100; lose-world a; lose-world b; begun 8; members a b; run 1; join c; sees spawned <5
        size 3 <30; processes a:4 b:4 c:5""",
}
STOPPED = {
    "hosts that return are ended": """
        inherit a=2 b=5; run 0.5; interrupt; over; took 4.5; gone a b; untold""",
    "hosts that do not return in time are ended without a connection": f"""
        inherit a b=1000; run 0.5; interrupt; over <{PROCESSES_S + 2}; took {PROCESSES_S}; gone a b; untold""",
    "after a second signal the launcher waits for no host": """
        inherit a=1000 b=1000; run 0.5; interrupt; interrupt; over <2; gone a b""",
    "a host that falls silent meanwhile is ended without a connection": """
        train a b heartbeat_timeout_s=3; run 2; cut b; dies a 8; interrupt; over; gone a b""",
    "a launcher that is cut off itself does not count the job as ended": """
        train a b; run 2; cut a b; dead a b; run 15; interrupt; over <90; untold a b""",
}


@pytest.mark.parametrize("text", OWN_LINK.values(), ids=OWN_LINK)
def test_a_launcher_whose_own_link_is_down(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", INHERITED.values(), ids=INHERITED)
def test_a_world_of_an_earlier_launcher(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", STOPPED.values(), ids=STOPPED)
def test_a_job_that_is_stopped_before_its_hosts_are_back(text: str) -> None:
    play(text)


def test_who_waits_for_a_world_does_not_wait_for_all_hosts_of_the_last_launcher() -> None:
    cluster = play("inherit a b c=50; cut c")  # lost with the launcher; the start of its agent hangs
    cluster.later(2.0, lambda: cluster.lose_world("a"))
    cluster.later(2.0, lambda: cluster.lose_world("b"))
    waited = cluster.until(lambda: [p.generation for p in cluster.members if p.host in "ab"] == [8, 8])
    assert 9.0 < waited < 14.0
    cluster.vanish("c")
    cluster.run(60.0)
    assert not cluster.driver.job.adoption.missing


@pytest.mark.parametrize(("dead", "left"), [("dead b; ", ["b"]), ("", [])], ids=["not told", "told"])
def test_a_host_that_nobody_could_tell_is_noted_for_the_next_launcher(dead: str, left: list[str]) -> None:
    cluster: Cluster = play(f"{dead}inherit a b; interrupt; over <15; untold {' '.join(left)}")
    saved = saved_of(cluster.driver.job, incarnation=2, ports={"10.0.0.1": 7}, wall=0.0, run=None)
    assert [host.name for host in saved.hosts_left] == left
    assert saved.ports == {"10.0.0.1": 7}


@pytest.mark.parametrize(
    ("killed", "told"),
    [
        ("kill b", "world 7, size 1; ended meanwhile: b[0] (crashed: killed by SIGKILL)"),
        ("kill b; kill a 3", "ended meanwhile: a[0] (crashed: exit code 3), b[0] (crashed: killed by SIGKILL)"),
    ],
)
def test_a_process_that_ended_while_no_launcher_ran_is_named_with_its_end(
    killed: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    play(f"left a b; {killed}; expect a b; run 10")
    lines = [line for each in caplog.records if "taken over" in (line := each.getMessage())]
    assert len(lines) == 1
    assert told in lines[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("inherit a b c; run 10", ["taken over: 3 processes on 3 hosts (a:1, b:1, c:1); world 7, size 3"]),
        (
            "inherit a b c=200; run 250",
            [
                "taken over: 2 processes on 2 hosts (a:1, b:1); world 7, size 2; step ",
                "c is back; taken over: 3 processes on 3 hosts (a:1, b:1, c:1); world 7, size 3; step ",
            ],
        ),
        (
            "begin start=1; dead a; expect a; run 70",
            [
                "nothing was taken over: no process of the earlier launcher runs (without a launcher they end after "
                "--orphan-grace, or with their machine; --checkpoint-every auto would keep what they trained)"
            ],
        ),
    ],
)
def test_what_is_taken_over_is_told_with_its_size_and_step(
    text: str, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    play(text)
    lines = [line for each in caplog.records if "taken over" in (line := each.getMessage())]
    assert len(lines) == len(told), lines
    for line, begins in zip(lines, told, strict=True):
        assert line.startswith(begins)
        assert line == begins or line.removeprefix(begins).isdigit()
