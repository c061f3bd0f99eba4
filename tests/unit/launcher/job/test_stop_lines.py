"""A job that is told to stop says what happens, in that order, and what the same command goes on with."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.job.stop_lines import what_happens, what_is_kept
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import ON_NOTICE
from hvd_elastic_ext.launcher.state.events import End
from tests.unit.launcher.checkpointing_cluster import Stored, storing
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster, running


def stop(cluster: Cluster) -> str:
    job = cluster.driver.job
    ends_already = job.outcome.failure is not None
    cluster.driver.tell(End(Interrupted(2, "stopped by SIGINT")))
    return what_happens("SIGINT", job, ends_already=ends_already, grace_s=5.0)


def test_without_checkpoints_processes_are_given_time_and_killed_at_a_second_signal() -> None:
    cluster = running("a", "b")
    assert stop(cluster) == "SIGINT: the job ends; its processes have 5 s to end"
    assert stop(cluster) == "SIGINT: the job is ending already; all of its processes are killed now"


def test_a_last_checkpoint_is_named_before_the_time_that_processes_have_after_it() -> None:
    cluster = play("train a b; run 5; takes write 60", storing(ON_NOTICE), steps=Stored)
    assert stop(cluster) == (
        "SIGINT: the job makes a last checkpoint, in 20 s at most; then its processes have 5 s to end; "
        "a second signal ends it without that checkpoint"
    )
    assert stop(cluster) == "SIGINT: the job ends; its processes have 5 s to end"
    assert stop(cluster) == "SIGINT: the job is ending already; all of its processes are killed now"


def test_a_job_that_kept_a_checkpoint_names_it() -> None:
    job = play("train a b; run 5; interrupt; over", storing(ON_NOTICE), steps=Stored).driver.job
    path, step = job.checkpoints.newest
    assert path is not None
    assert what_is_kept(job) == f"the same command goes on after step {step}, with the checkpoint {path}"


def test_a_job_without_checkpoints_says_so_with_the_option_that_keeps_them() -> None:
    cluster = running("a", "b")
    cluster.run(5.0)
    job = cluster.driver.job
    goes_on = "--checkpoint-every auto the same command goes on where it stopped"
    job.loopless.kept = True
    assert what_is_kept(job) == f"no checkpoint was kept; with {goes_on}"
    job.loopless.kept = False
    assert what_is_kept(job) == (f"no checkpoint was kept; with a State of hvd_elastic_ext or --adopt, and {goes_on}")


def test_a_job_whose_checkpoint_is_not_complete_says_so() -> None:
    job = play("train a b", storing(ON_NOTICE), steps=Stored).driver.job
    assert job.checkpoints.path is None
    job.world.begun = True
    assert what_is_kept(job) == "no checkpoint is complete; the same command starts from the beginning"


@pytest.mark.parametrize("hosts", [{}, {"a": 1}], ids=["no host", "a host that starts"])
def test_a_job_that_has_not_trained_has_nothing_to_say(hosts: dict[str, int]) -> None:
    cluster = Cluster()
    cluster.hosts(**hosts)
    cluster.run(0.1)
    assert what_is_kept(cluster.driver.job) == ""
