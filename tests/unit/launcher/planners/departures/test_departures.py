"""Processes that leave in good order although training is not done, again and again; and hosts held back by hand."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.rules.health import host_requests
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.simulated import Cluster, Rules

QUICK = (1.0, 4.0)


def everybody_leaves(cluster: Cluster) -> None:
    """As a training function that ends the process, with exit code 0, in every world anew."""
    for host in ("a", "b"):
        cluster.kill(host, code=0)


def test_a_job_that_everybody_leaves_again_and_again_ends_with_a_readable_reason() -> None:
    cluster = running("a", "b", rules=Rules(Limits(settle_s=0.1), cooldown_s=QUICK, failure_budget=2))
    cluster.run(1.0)
    for times in (1, 2, 3):
        everybody_leaves(cluster)
        cluster.run(0.1)
        assert (cluster.driver.outcome is not None) == (times == 3)
        if times < 3:
            cluster.until(lambda: len(cluster.world) == 2)
            cluster.run(1.0)
    assert str(cluster.driver.outcome) == (
        "all processes have left 3 times within an hour, more than --failure-budget allows; the last one was b[0]: "
        "left with exit code 0 before training was done. Training is done when the training function returns"
    )
    cluster.until(lambda: cluster.driver.over)
    assert not cluster.agents
    assert not cluster.events("struck")


def test_one_that_leaves_for_ever_is_let_in_more_and_more_seldom_and_ends_nothing() -> None:
    cluster = running("a", "b", rules=Rules(Limits(settle_s=0.1), cooldown_s=QUICK, failure_budget=2))
    pauses = []
    for _ in range(5):
        cluster.run(1.0)
        cluster.kill("b", code=0)
        begun = len(cluster.events("spawned"))
        pauses.append(cluster.until(lambda begun=begun: len(cluster.events("spawned")) > begun))
        cluster.until(lambda: len(cluster.world) == 2)
    assert pauses == [pytest.approx(rest, abs=0.1) for rest in (1.0, 2.0, 4.0, 4.0, 4.0)]
    assert cluster.driver.outcome is None
    assert not cluster.events("struck")


def test_one_that_stayed_for_long_rests_as_shortly_as_the_first_time() -> None:
    cluster = running("a", "b", rules=Rules(Limits(settle_s=0.1), cooldown_s=QUICK))
    for wait in (1.0, 60.0):
        cluster.run(wait)
        cluster.kill("b", code=0)
        begun = len(cluster.events("spawned"))
        assert cluster.until(lambda begun=begun: len(cluster.events("spawned")) > begun) < 1.1
        cluster.until(lambda: len(cluster.world) == 2)


def test_what_is_done_by_hand_stands_in_the_journal() -> None:
    block = {"do": "block", "host": "a", "for": 60.0, "reason": "bad fan"}
    assert host_requests.told(block) == ("blocked", {"host": "a", "for_s": 60.0, "reason": "by hand: bad fan"})
    assert host_requests.told({"do": "block", "host": "a"})[1] == {"host": "a", "for_s": None, "reason": "by hand"}
    assert host_requests.told({"do": "clear", "host": "a"}) == ("cleared", {"host": "a", "reason": "by hand"})
