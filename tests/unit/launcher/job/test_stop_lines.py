"""A job that is told to stop logs what happens, in that order, and from what the same command continues."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.driver.events import End
from hvd_elastic_ext.launcher.job.stop_lines import COMMAND, how_it_ended, what_happens, what_is_kept
from hvd_elastic_ext.launcher.reporting.status import numbers
from hvd_elastic_ext.simulate.cluster.processes import Commit
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster
from tests.unit.launcher.simulated_processes import LINEAGE, Process, Training


def stop(cluster: Cluster) -> str:
    job = cluster.driver.job
    ends_already = job.outcome.failure is not None
    cluster.driver.tell(End(Interrupted(2, "stopped by SIGINT")))
    return what_happens("SIGINT", job, ends_already=ends_already, grace_s=5.0)


def test_without_checkpoints_processes_are_given_time_and_killed_at_a_second_signal() -> None:
    cluster = play("train a b")
    assert stop(cluster) == "SIGINT: the job ends; its processes have 5 s to end"
    assert stop(cluster) == "SIGINT: the job is ending already; all of its processes are killed now"


def test_a_last_checkpoint_is_named_before_the_time_that_processes_have_after_it() -> None:
    cluster = play("train a b; run 5; takes write 60", every="notice")
    assert stop(cluster) == (
        "SIGINT: the job makes a last checkpoint, in 60 s at most; then its processes have 5 s to end; "
        "a second signal ends it without that checkpoint"
    )
    assert stop(cluster) == "SIGINT: the job ends; its processes have 5 s to end"
    assert stop(cluster) == "SIGINT: the job is ending already; all of its processes are killed now"


def test_the_command_that_stops_a_job_gives_its_last_checkpoint_the_time_that_ctrl_c_gives() -> None:
    job = play("train a b; run 5; takes write 60", every="notice").driver.job
    said = what_happens(COMMAND, job, ends_already=False, grace_s=5.0)
    assert said.startswith("`hvd-elastic stop`: the job makes a last checkpoint, in 60 s at most; ")
    assert said.endswith("; a second `hvd-elastic stop` ends it without that checkpoint")


def test_where_storage_has_failed_the_last_checkpoint_is_promised_no_longer_than_it_is_waited_for() -> None:
    cluster = play("train a b; run 5", every="notice")
    cluster.driver.job.checkpoints.failed_in_a_row = 2
    assert stop(cluster).startswith("SIGINT: the job makes a last checkpoint, in 20 s at most; ")


def test_a_training_that_is_done_has_the_time_of_its_last_checkpoint() -> None:
    cluster = play("train a b; run 5; done a b; run 1", every="notice")
    assert stop(cluster).startswith("SIGINT: the job makes a last checkpoint, in 300 s at most; ")


def test_a_job_that_kept_a_checkpoint_names_it() -> None:
    job = play("train a b; run 5; interrupt; over", every="notice").driver.job
    path, step = job.checkpoints.newest
    assert path is not None
    assert what_is_kept(job) == f"the same command goes on after step {step}, with the checkpoint {path}"


class Forgets(Training):
    """Its script does steps, and never commits: memory holds the state of the first sync."""

    def commit(self, process: Process) -> None:
        super().commit(process)
        process.agent.memory[process.slot] = Commit(1, process.generation, 0, 0, LINEAGE)

    def commit_of(self, process: Process) -> list[int] | None:
        return [1, process.generation, 0] if process.generation else None


@pytest.mark.parametrize("signal", ["ctrl-c", "interrupt"])
def test_a_script_that_made_no_commit_is_told_at_the_end_how_many_steps_are_lost_by_that(signal: str) -> None:
    """Defect: the last line was "the same command goes on after step 0", and 372 steps were lost."""
    job = play(f"train a b; busy 1000; run 20; {signal}; over", Forgets, every="notice").driver.job
    path, step = job.checkpoints.newest
    assert (step, job.before_exit.reached > 20) == (0, True)
    assert what_is_kept(job) == (
        f"the same command goes on after step 0, with the checkpoint {path}; {job.before_exit.reached} steps since "
        "then are lost: the script has made no commit since (state.commit())"
    )


def test_steps_that_a_last_checkpoint_does_not_have_in_time_are_said_to_be_lost() -> None:
    job = play("train a b; run 20; takes write 100; ctrl-c; over <70", every="notice").driver.job
    assert what_is_kept(job) == (
        "no checkpoint is complete; the same command starts from the beginning; "
        f"{job.before_exit.reached} steps are lost: no last checkpoint was complete in 60 s"
    )


class Unusable(Cluster):
    """No job can resume from its checkpoints: the result of an earlier call was not kept."""

    more: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        lacks = {"not_resumable": "it is of call 2, and the result of call 1 was not kept"}
        self.helpers.answers["a", "seal"] = {"path": "/store/x", "call": 2, **lacks, **self.more}


class OnlyTheNewestUnusable(Unusable):
    more: ClassVar[dict[str, Any]] = {"resumable": "/store/w", "resumable_step": 3}


def test_the_same_command_is_not_said_to_go_on_from_a_checkpoint_from_which_no_job_can_resume() -> None:
    """Defect: it said so, and the same command then failed."""
    job = play("train a b; run 5; interrupt; over", Unusable, every="notice").driver.job
    step = job.checkpoints.last.step
    assert what_is_kept(job) == (
        f"the same command cannot go on: no job can resume from /store/x, of step {step}: it is of call 2, and the "
        "result of call 1 was not kept; mend that and name another --checkpoint-dir, to train from the beginning"
    )
    assert numbers(job)["checkpoint"] is None


def test_the_checkpoint_that_the_same_command_takes_is_the_newest_from_which_a_job_can_resume() -> None:
    job = play("train a b; run 5; interrupt; over", OnlyTheNewestUnusable, every="notice").driver.job
    step = job.checkpoints.last.step
    assert what_is_kept(job) == (
        "the same command goes on after step 3, with the checkpoint /store/w; "
        f"{max(step, job.before_exit.reached) - 3} steps since then are lost: no job can resume from /store/x, of step "
        f"{step}: it is of call 2, and the result of call 1 was not kept"
    )
    assert numbers(job)["checkpoint"] == {"path": "/store/w", "step": 3}


def test_a_job_without_checkpoints_says_so_with_the_option_that_keeps_them() -> None:
    cluster = play("train a b")
    cluster.run(5.0)
    job = cluster.driver.job
    goes_on = "--checkpoint-every auto the same command would go on where it stopped"
    job.loopless.kept = True
    assert what_is_kept(job) == f"no checkpoint was kept; with {goes_on}"
    job.loopless.kept = False
    assert what_is_kept(job) == (f"no checkpoint was kept; with a State of hvd_elastic_ext or --adopt, and {goes_on}")


def test_a_job_whose_checkpoint_is_not_complete_says_so() -> None:
    job = play("train a b", every="notice").driver.job
    assert job.checkpoints.path is None
    job.world.begun = True
    assert what_is_kept(job) == "no checkpoint is complete; the same command starts from the beginning"


@pytest.mark.parametrize("hosts", [{}, {"a": 1}], ids=["no host", "a host that starts"])
def test_a_job_that_has_not_trained_has_nothing_to_say(hosts: dict[str, int]) -> None:
    cluster = Cluster()
    cluster.hosts(**hosts)
    cluster.run(0.1)
    assert what_is_kept(cluster.driver.job) == ""


@pytest.mark.parametrize(("slots", "where"), [(1, "1 slot"), (2, "all 2 slots")])
def test_a_program_that_asks_for_no_world_is_not_said_to_have_trained(slots: int, where: str) -> None:
    ends = "; ".join(f"kill a:{slot} 0" for slot in range(slots))
    cluster = play(f"begin start={slots}; boot a 1000; hosts a:{slots}; run 5; {ends}; ended-well")
    assert how_it_ended(cluster.driver.job) == (
        f"the program has ended well in {where}, and no process asked for a world: none has trained with Horovod"
    )


def test_a_job_that_has_trained_says_that_training_is_done() -> None:
    assert how_it_ended(play("train a b; run 3; finish; ended-well").driver.job) == "training is done"


ALONE = (
    "but each rank trained alone (nothing was averaged), so no rank has learnt from the data of all: wrap the "
    "optimizer with hvd.DistributedOptimizer or elastic.wrap, and train again; a script that averages by itself can "
    "ignore this"
)


def test_a_job_whose_ranks_trained_alone_says_at_its_end_that_it_has_no_result_and_what_to_do() -> None:
    job = play("train a b; run 3; finish; ended-well").driver.job
    job.world.trains_alone = "nothing was averaged"
    assert how_it_ended(job) == f"training is done; {ALONE}"
    job = play("train a b; run 5; interrupt; over", every="notice").driver.job
    job.world.trains_alone = "nothing was averaged"
    assert what_is_kept(job).startswith("the same command goes on after step ")
    assert what_is_kept(job).endswith(f"; {ALONE}")


@pytest.mark.parametrize(
    "scenario",
    ["begin start=2; hosts a; run 10", "start a b; boot b 30; run 5", "begin start=2; run 5"],
    ids=["too few", "one boots", "no host"],
)
def test_a_job_that_waits_and_has_nothing_to_save_makes_no_last_checkpoint(scenario: str) -> None:
    cluster = play(scenario, every="notice")
    assert stop(cluster) == "SIGINT: the job ends; its processes have 5 s to end"


def test_a_world_that_has_not_trained_yet_has_nothing_to_save() -> None:
    cluster = play("start a b; boot b 3", every="notice")
    cluster.until(lambda: cluster.driver.job.world.members)
    assert not cluster.driver.job.settled
    assert stop(cluster) == "SIGINT: the job ends; its processes have 5 s to end"
