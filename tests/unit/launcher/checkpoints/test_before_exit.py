"""The end of a job with a last checkpoint: it ends in good order, and reports what it has not saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.checkpoints import save_then_stop
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import STOP_LIMIT_S
from hvd_elastic_ext.launcher.driver.actions import Send
from hvd_elastic_ext.launcher.driver.events import End
from hvd_elastic_ext.launcher.health.causes import Cause
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster, storing
from tests.unit.launcher.state_changes import small_job


class Slow(Cluster):
    """Its processes take time to end. ``orders``: the orders to agents about them."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        super().__init__(storing("1000"))
        self.hosts(a=2)
        self.until(lambda: len(self.members) == 2)
        self.run(10.0)
        self.ends_s["a"] = 4.0

    def ordered(self, host: str, order: Mapping[str, Any]) -> None:
        self.orders.append(order["do"])

    def end(self) -> None:
        self.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
        self.until(lambda: self.driver.over, within=60.0)


def test_after_a_last_checkpoint_processes_have_their_grace_as_at_any_end() -> None:
    cluster = Slow()
    cluster.end()
    [sealed] = cluster.events("sealed")
    assert "kill" not in cluster.orders
    assert all(line["mono"] > sealed["mono"] + 3.0 for line in cluster.events("exited"))


def test_where_a_last_checkpoint_does_not_come_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Slow()
    cluster.helpers.silent = {"a"}
    cluster.end()
    assert caplog.text.count("no last checkpoint") == 1
    assert f"in {STOP_LIMIT_S:g} s" in caplog.text
    assert "kill" not in cluster.orders


@pytest.mark.parametrize("order", ["kill a; interrupt", "interrupt; run 0.005; kill a"])
def test_a_process_lost_at_the_moment_of_the_end_has_the_others_memory_saved(order: str) -> None:
    """Defect: the commit named for the last checkpoint never came, and the job waited for it until the limit."""
    cluster = play(f"train a b; run 5; {order}; over; number sealed 1", every="notice")
    assert cluster.events("sealed")[0]["step"] >= 4


@pytest.mark.parametrize("hanging", ["hang a", "hang a; hang b"])
def test_where_ranks_hang_the_commit_in_memory_is_saved(hanging: str, caplog: pytest.LogCaptureFixture) -> None:
    """Defect: the job waited for the next commit until the limit, and lost the training since the newest checkpoint."""
    cluster = play(f"train a b; run 5; {hanging}; run 1; interrupt; over; number sealed 1", every="notice")
    step = cluster.events("sealed")[0]["step"]
    assert step >= 4
    assert caplog.text.count("no commit in 10 s: the processes are ended, and the last commit is saved") == 1
    assert "no last checkpoint" not in caplog.text


def test_a_job_whose_memory_is_saved_ends_its_processes_in_the_same_look() -> None:
    """Defect: a second was lost while the grace period after a SIGTERM passed."""
    cluster = play("train a b; run 5; kill a; interrupt", every="notice")
    driver, look, ends_by = cluster.driver, cluster.driver.look, list[float | None]()

    def noted() -> float | None:
        at = look()
        ends_by.extend([driver.job.shutdown.ends_by] if driver.outcome is not None else [])
        return at

    driver.look = noted
    cluster.until(lambda: ends_by)
    assert ends_by[0] is not None


@pytest.mark.parametrize(("signal", "sealed"), [("ctrl-c", 1), ("interrupt", 0)])
def test_after_ctrl_c_slow_programs_are_waited_for_and_after_sigterm_only_as_long_as_a_pod_has(
    signal: str, sealed: int
) -> None:
    play(
        f"train a b; run 5; takes write 30; {signal}; over <70; number sealed {sealed}",
        every="notice",
    )


@pytest.mark.parametrize("stuck", ["takes write 100", "silent a"])
def test_after_ctrl_c_a_last_checkpoint_has_a_limit_too(stuck: str, caplog: pytest.LogCaptureFixture) -> None:
    play(f"train a b; run 5; {stuck}; ctrl-c; over <70; took 59; number sealed 0", every="notice")
    assert "no last checkpoint in 60 s" in caplog.text


def test_storage_that_fails_after_ctrl_c_is_not_waited_for_longer_than_after_sigterm() -> None:
    play("train a b; run 5; refuses a write full; ctrl-c; over <70; took 19 25", every="notice")


def test_a_job_that_was_told_to_end_starts_no_process_while_it_makes_its_last_checkpoint() -> None:
    """Defect: the imports of a process whose cooldown was over took the CPU from the programs that wrote the
    checkpoint."""
    steps = "train a b; run 5; kill b; until a; takes write 30; ctrl-c; over <70; number sealed 1; no standby"
    play(steps, every="notice")


def test_newcomers_are_ended_at_once_when_the_job_is_told_to_end() -> None:
    cluster = play("train a; run 5; takes write 10", every="notice")
    cluster.boot_s["b"] = 100.0
    cluster.hosts(a=1, b=1)
    cluster.run(3.0)
    told = cluster.clock.mono()
    cluster.driver.tell(End(Interrupted(2, "stopped by SIGINT")))
    cluster.until(lambda: cluster.driver.over, within=60.0)
    [ended] = [line for line in cluster.events("exited") if line["host"] == "b"]
    assert ended["mono"] < told + 2.0
    assert len(cluster.events("sealed")) == 1


def test_a_checkpoint_on_its_way_makes_way_for_the_last_one() -> None:
    """Defect: the job waited for it until the limit, and lost all training since."""
    cluster = play("train a b every=5; takes write 12; asked write 2; run 3")
    step = max(each.batch for each in cluster.members)
    cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
    cluster.until(lambda: cluster.driver.over, within=60.0)
    [sealed] = cluster.events("sealed")
    assert sealed["step"] >= step


def test_a_checkpoint_of_which_all_is_written_is_completed_before_the_last_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    cluster = play("train a b every=5; takes seal 15; asked seal; run 1; ctrl-c; run 6")
    step = max(each.batch for each in cluster.members)
    cluster.until(lambda: cluster.driver.over, within=60.0)
    assert "for the last checkpoint: first the one before it: step" in caplog.text
    assert "a second Ctrl-C ends it now" in caplog.text
    assert [line["step"] >= step for line in cluster.events("sealed")] == [False, True]


@pytest.mark.parametrize(("engine", "killed"), [("torchrun", ["a", "b"]), ("horovod", [])])
def test_a_world_of_new_processes_that_has_no_state_yet_is_ended_at_once_and_memory_is_saved(
    engine: str, killed: list[str]
) -> None:
    """Defect: the job waited for its first commit, which came too late on a busy machine."""
    job = small_job(engine=engine)
    for worker in job.roster.present(job.world.members):
        worker.loops, worker.generation, worker.agreed = True, 2, 2
    job.before_exit.why, job.before_exit.since = Interrupted(2, "stopped by SIGINT"), job.now
    job.before_exit.commit_by, job.checkpoints.asked = job.now + 10.0, True
    save_then_stop.plan_exit(job)
    orders = [action.order for action in job.take_actions() if isinstance(action, Send)]
    assert [worker.seat.host for worker in job.roster.workers.values() if worker.killed is Cause.TOLD] == killed
    assert [order["do"] for order in orders] == ["stop", *("kill" for _ in killed)]  # first the newcomer's


def test_only_the_last_checkpoint_is_written_with_usual_priority() -> None:
    cluster = play("train a b; run 30", every="10")
    beside = [request for kind in ("write", "seal") for _, request in cluster.helpers.of(kind)]
    assert len(beside) >= 2
    assert not any("urgent" in request for request in beside)
    cluster.helpers.asked.clear()
    cluster.driver.tell(End(Interrupted(15, "stopped by SIGTERM")))
    cluster.run(10.0)
    last = [request for kind in ("write", "seal") for _, request in cluster.helpers.of(kind)]
    assert len(last) >= 2
    assert all(request["urgent"] is True for request in last)
