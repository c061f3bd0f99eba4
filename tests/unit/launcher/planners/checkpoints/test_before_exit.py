"""The end of a job that makes a last checkpoint: it is an end in good order, and says what it has not saved."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import ON_NOTICE, Cadence
from hvd_elastic_ext.launcher.state.checkpoints import LAST_CHECKPOINT_S
from hvd_elastic_ext.launcher.state.events import End
from tests.unit.launcher.checkpointing_cluster import Stored, Storing, storing
from tests.unit.launcher.scenarios import play


class Slow(Storing):
    """Its processes take their time to end; ``orders`` has what agents were told to do with them."""

    def __init__(self) -> None:
        super().__init__(Cadence(steps=1000))
        self.orders: list[str] = []
        self.hosts(a=2)
        self.until(lambda: len(self.training) == 2)
        self.run(10.0)
        self.ends_s["a"] = 4.0

    def _obey(self, host: str, order: dict[str, Any], connection: int) -> None:
        self.orders.append(order["do"])
        super()._obey(host, order, connection)

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
    cluster.silent = {"a"}
    cluster.end()
    assert caplog.text.count("no last checkpoint") == 1
    assert f"in {LAST_CHECKPOINT_S:g} s" in caplog.text
    assert "kill" not in cluster.orders


@pytest.mark.parametrize("order", ["kill a; interrupt", "interrupt; run 0.005; kill a"])
def test_a_process_lost_at_the_moment_of_the_end_has_the_others_memory_saved(order: str) -> None:
    """The commit that was named for the last checkpoint never came, and it was waited for to the end."""
    cluster = play(f"train a b; run 5; {order}; over; number sealed 1", storing(ON_NOTICE), steps=Stored)
    assert cluster.events("sealed")[0]["step"] >= 4


@pytest.mark.parametrize("hanging", ["hang a", "hang a; hang b"])
def test_where_ranks_hang_the_commit_in_memory_is_saved(hanging: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next commit was waited for to the end, and what was trained since the newest checkpoint was lost."""
    cluster = play(
        f"train a b; run 5; {hanging}; run 1; interrupt; over; number sealed 1", storing(ON_NOTICE), steps=Stored
    )
    step = cluster.events("sealed")[0]["step"]
    assert step >= 4
    assert caplog.text.count("no commit in 10 s: the processes are ended, and the last commit is saved") == 1
    assert "no last checkpoint" not in caplog.text


def test_a_job_whose_memory_is_saved_ends_its_processes_in_the_same_look() -> None:
    """A second was lost while the grace period after a SIGTERM counted down."""
    cluster = play("train a b; run 5; kill a; interrupt", storing(ON_NOTICE), steps=Stored)
    driver, look, ends_by = cluster.driver, cluster.driver.look, list[float | None]()

    def noted() -> float | None:
        at = look()
        ends_by.extend([driver.job.shutdown.ends_by] if driver.outcome is not None else [])
        return at

    driver.look = noted
    cluster.until(lambda: ends_by)
    assert ends_by[0] is not None
