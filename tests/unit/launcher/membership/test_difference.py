"""The difference from the present world is the same with the short method as when each process is compared."""

from __future__ import annotations

from hvd_elastic_ext.launcher.membership.world_change import Difference, difference
from tests.unit.launcher.state_changes import small_job


def test_training_stays_over_when_the_process_that_was_done_has_left() -> None:
    job = small_job()
    assert not difference(job).over
    job.outcome.finishing = True
    assert difference(job).over
    assert difference(job) == Difference.of(job.situation)
