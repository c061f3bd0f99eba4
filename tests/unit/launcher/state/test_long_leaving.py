"""Told to leave at its next step: how long that may take."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.planners.membership.processes import LEAVE_S
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.simulated_processes import STEP_S


def test_a_removed_host_is_left_alone_as_long_as_all_are_in_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running("a", "b")
    cluster.run(1.0)
    monkeypatch.setattr("tests.unit.launcher.simulated_processes.STEP_S", 10 * LEAVE_S)
    cluster.hosts(a=1)
    cluster.run(9 * LEAVE_S)
    assert not cluster.events("exited")
    cluster.until(lambda: cluster.world == ["a"], within=2 * LEAVE_S)
    assert [event["cause"] for event in cluster.events("exited")] == ["told to leave"]
    assert [event["code"] for event in cluster.events("exited")] == [0]


def test_one_that_does_not_come_to_the_step_at_which_the_others_left_is_ended() -> None:
    cluster = running("a", "b")
    cluster.run(1.0)
    lingering = next(process for process in cluster.training if process.host == "b")
    lingering.wedged = True  # in what it does on being removed
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.world[:1] == ["a"] and cluster.driver.job.formed, within=10 * STEP_S + 1.0)
    cluster.run(LEAVE_S - 2.0)
    assert not cluster.events("exited")
    cluster.run(3.0)
    assert [(event["host"], event["code"]) for event in cluster.events("exited")] == [("b", 143)]
