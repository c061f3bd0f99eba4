"""The line about a world whose processes end on purpose, because the next world has others."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.membership.processes import starting
from hvd_elastic_ext.launcher.reporting.all_waits import waits_for
from tests.unit.launcher.health.test_silence import drains, imports, silent
from tests.unit.launcher.membership.test_restarting import Restarts, Torchrun
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.state_changes import happen, small_job

WORLD = "waiting: for the end of world 1, as the next one begins: "


def test_ranks_that_leave_on_purpose_are_neither_busy_nor_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Defect: they were reported as busy or hanging. Then the ended one was reported as lost, and the job failed for
    that."""
    play("train a b; run 20; ignore a b; hosts a b c; changes; run 6", Torchrun, steps=Restarts)
    until = "no limit: it ends when they have come to their next commit, and left"
    assert f"{WORLD}a[0], b[0]; {until}" in caplog.text
    assert "busy, or hang" not in caplog.text


def test_those_that_have_not_left_yet_are_named_with_their_limit(caplog: pytest.LogCaptureFixture) -> None:
    play("train a b; run 20; ignore b; hosts a b c; changes; exits a; run 6", Torchrun, steps=Restarts)
    assert f"{WORLD}b[0]; at most 11 s more, then they are ended, and the next world begins" in caplog.text
    assert "lost a[0]" not in caplog.text


def test_a_newcomer_tells_until_when_it_waits() -> None:
    cluster = play("train a b; run 5; ignore a b; hosts a b c; changes; run 1", Torchrun, steps=Restarts)
    job = cluster.driver.job
    assert str(starting(job, job.now)["c"]).startswith("the process in slot 0 joins once world 1 has ended (started")
    job.restarting.change = None
    for worker in job.roster.present(job.world.members):
        worker.agreed = 0
    assert str(starting(job, job.now)["c"]).startswith("the process in slot 0 joins once world 1 trains (started")


def test_the_silence_of_one_that_imports_or_leaves_is_no_failure_soon() -> None:
    for prepare in (imports, drains):
        job = small_job(engine="torchrun")
        happen(job, prepare, 8.0, silent("a", 7.0))
        wait = waits_for(job)
        assert wait is None or "no heartbeat" not in wait.what
    job = small_job(engine="torchrun")
    happen(job, imports, 30.0, silent("a", 30.0))
    wait = waits_for(job)
    assert wait is not None
    assert (wait.what, wait.until) == ("no heartbeat from a[0]", job.now + 30.0)
