"""Between the end of training and the end of the processes, in which much may be done yet."""

from __future__ import annotations

from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.simulated import Cluster, Rules


def training(*names: str, rules: Rules | None = None) -> Cluster:
    cluster = running(*names, rules=rules)
    cluster.run(1.0)
    return cluster


def done(cluster: Cluster, *hosts: str) -> None:
    for host in hosts:
        cluster.says(host, "done")
    cluster.run(0.5)


def test_who_is_done_first_is_neither_missed_nor_sent_away_however_long_it_has_to_do_yet() -> None:
    cluster = training("a", "b")
    done(cluster, "b")  # the other one needs half a second more for the same step
    done(cluster, "a")
    cluster.run(300.0)  # writing the model
    assert cluster.driver.job.generation == 1
    assert not cluster.told["update"]
    cluster.finish()
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_newcomers_that_are_ready_when_training_is_done_do_not_begin_it_anew() -> None:
    cluster = training("a", "b", rules=Rules(Limits(settle_s=5.0)))
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: bool(cluster.events("parked")[2:]))
    done(cluster, "a", "b")
    cluster.run(60.0)
    assert cluster.driver.job.generation == 1
    cluster.finish()
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_a_script_may_train_twice_and_is_elastic_in_the_second_training_too() -> None:
    cluster = training("a", "b", "c")
    done(cluster, "a", "c", "b")
    for host in ("b", "a", "c"):
        cluster.says(host, "looping")
    cluster.run(1.0)
    assert cluster.driver.job.generation == 1
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a", "c"])
    assert not cluster.driver.over


def test_a_world_that_forms_when_a_member_is_done_forms_without_it() -> None:
    cluster = training("a", "b", "c")
    cluster.stop("a")  # it does not come, and says that it is done before anybody takes it for lost
    cluster.kill("c")
    cluster.run(0.2)
    cluster.says("a", "done")
    cluster.until(lambda: cluster.world[-1:] == ["b"] and cluster.driver.job.formed)
    assert cluster.driver.job.world.members[0].seat.host == "b"


def test_whoever_has_much_to_do_after_training_is_not_taken_to_stand_still() -> None:
    cluster = training("a", "b", rules=Rules(progress_timeout_s=5.0, restart_stalled=True))
    cluster.run(3.0)
    done(cluster, "a", "b")
    for process in cluster.training:
        process.stuck = True  # it counts no steps any more
    cluster.run(60.0)
    assert not cluster.events("stalled")
    assert len(cluster.training) == 2


def test_who_lost_the_world_with_one_that_is_done_and_has_ended_does_the_last_steps_alone() -> None:
    cluster = training("a", "b", "c", rules=Rules(Limits(least=3, settle_s=0.1)))
    cluster.says("b", "done")
    cluster.kill("c")
    cluster.run(0.004)
    cluster.ends_well("b")
    cluster.until(lambda: cluster.world == ["a"], within=30.0)
    cluster.finish()
    cluster.until(lambda: cluster.driver.over, within=30.0)
    assert cluster.driver.outcome is None


def test_one_that_nothing_can_kill_does_not_keep_a_job_that_is_done_from_ending() -> None:
    cluster = training("a", "b", "c")
    cluster.undying.add("c")  # in the midst of a call to a driver that never returns
    cluster.stop("c")
    cluster.until(lambda: len(cluster.events("resized")) == 2)
    cluster.run(1.0)
    cluster.finish()
    cluster.until(lambda: cluster.driver.over, within=60.0)
    assert cluster.driver.outcome is None


def test_a_rank_that_fails_while_the_others_come_to_their_end_fails_the_job() -> None:
    """It may have been about to write the model. No world forms any more: the others have nothing to do in one."""
    cluster = training("a", "b")
    cluster.kill("a", code=1)
    cluster.run(0.004)
    cluster.says("b", "done")  # what it did needed nobody else any more
    cluster.ends_well("b")
    cluster.until(lambda: cluster.driver.over)
    assert "a[0] crashed: exit code 1, before its training was done; that of others is" in str(cluster.driver.outcome)


def test_a_rank_that_failed_in_a_world_before_the_last_one_fails_nothing() -> None:
    cluster = training("a", "b")
    cluster.kill("a", code=1)
    cluster.until(lambda: cluster.world == ["b"])
    cluster.run(1.0)
    cluster.finish()
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None
