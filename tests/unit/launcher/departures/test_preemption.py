"""The processes that learn of their preemption, and the cause if a script then ends by itself."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.departures.notices import SAVE_S, leaves_by
from hvd_elastic_ext.launcher.driver import plan
from tests.unit.launcher.scenarios import play

BELOW = "train a b least=2; run 2; "

SCENARIOS = {
    "only the leaving host is told, at its step, while others continue": """
        train a b; run 2; notice b 120 spot reclaim; until a; run 10; messages reclaim 0""",
    "below the minimum every process is told once, and that it is over": BELOW
    + """notice b ? spot reclaim; run 5; reclaimed a b; messages reclaim 2; world a b; stay b; run 5; reclaimed
        messages reclaim 4; run 30; messages reclaim 4""",
    "the only host is told late while its replacement starts": f"""
        train a; run 2; boot b 300; hosts a b; notice a 100 spot reclaim; told reclaim 1 <{101.5 - SAVE_S}
        took {98.5 - SAVE_S}; reclaimed a""",
    "the only host is told at once without a replacement": """
        train a; run 2; notice a 100 spot reclaim; told reclaim 1 <1.5""",
    "messages lost with a connection are sent again": BELOW
    + f"""lose reclaim 2; notice b ? spot reclaim; run 1
        {"".join(f"disconnect {host}; run 0.2; reconnect {host}; " for host in "ab")} run 2; messages reclaim 4
        reclaimed a b""",
    "scripts that save and end with -1 are preempted, and the job continues with new hosts": BELOW
    + """notice b 120 spot reclaim; run 1; warned a; run 0.1; kill a 255; warned b; run 0.1; kill b 255; run 5
        is exited.host a, b; is exited.cause preempted, preempted; blameless; stay b; until a b; goes-on""",
    "a script is preempted even if the notice was withdrawn while it saved": """
        train a; run 2; notice a 120 spot reclaim; run 1; warned a; run 0.1; stay a; run 1; kill a 255; run 0.1
        is exited.cause preempted; blameless; until a""",
    "a script that saw the withdrawal and fails later has failed": """
        train a b; run 2; warned b; run 0.1; warned b 0; run 0.1; kill b 255; run 0.1; is exited.host b
        is exited.cause unreachable; number struck 1""",
    "what a script saw is known after a lost connection, if it ended during the loss": """
        train a; run 2; mute a; warned a; run 0.1; kill a 255; disconnect a; run 0.5; reconnect a; run 0.1
        is exited.cause preempted""",
    "what a script saw is known after a lost connection, if it ends later": """
        train a; run 2; mute a; warned a; run 0.1; disconnect a; run 0.5; reconnect a; run 0.1; kill a 255; run 0.1
        is exited.cause preempted""",
    "the next launcher tells a script of the last one that it may stay": """
        inherit a; warned a; told reclaim 1; run 5; reclaimed; messages reclaim 1; world a""",
}


@pytest.mark.parametrize("text", SCENARIOS.values(), ids=SCENARIOS)
def test_processes_are_told_of_a_preemption_and_of_its_end(text: str) -> None:
    play(text)


def test_in_a_large_job_too_a_process_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: a steady job of thousands has a look only every 20 s, so the warning could come only 10 s before the
    end."""
    cluster = play("train a; run 2; boot b 300; hosts a b; notice a 40 spot reclaim; run 1; messages reclaim 0")
    monkeypatch.setattr(plan, "PAUSE_PER_PROCESS_S", plan.MAX_PAUSE_S)
    job, at = cluster.driver.job, cluster.driver.look()
    assert job.steady
    assert at == pytest.approx(leaves_by(job)["a"] - SAVE_S)
    cluster.clock.now += at - cluster.clock.mono() + 1e-6
    cluster.driver.look()
    assert [worker.reclaimed for worker in job.roster.on("a")] == [True]
