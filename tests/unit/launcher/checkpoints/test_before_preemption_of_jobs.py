"""Checkpoints before an expected end of all hosts: one at once, and one as late as possible."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import CANCELLED_AFTER_S
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster

NEEDED = "train a b least=2; run 10; notice b {} spot reclaim; "
"""Two hosts that are both needed, one of which will go."""
SCENARIOS = {
    "if too few hosts will be left, one is made at once and one as late as possible": NEEDED.format(120)
    + "sees sealed <10; stays <109; sees sealed 2 <10; took 0.1",
    "a notice without a deadline counts as the shortest notice of any cloud": NEEDED.format("?")
    + "sees sealed <10; sees sealed 2 <29; took 5",
    "all ranks continue after a withdrawn notice": NEEDED.format(30)
    + "stays; sees sealed 2; held-back; stay b; run 2; released; no not_sealed",
    "if time is short, the first one is the last": NEEDED.format(15) + "run 14; number sealed 1; held-back",
    "all ranks continue if the announced end does not come": NEEDED.format(20)
    + f"run {25 + CANCELLED_AFTER_S}; released",
    "the remaining ranks continue in the next world": NEEDED.format(30) + "sees sealed 2; hosts a b c; together a c",
    "if enough hosts stay, none is made": "train a b; notice b 20 spot reclaim; run 30; no sealed",
}


@pytest.mark.parametrize("text", SCENARIOS.values(), ids=SCENARIOS)
def test_hosts_that_training_needs_are_about_to_go(text: str) -> None:
    play(text, every="notice")


def both_are_to_go() -> Cluster:
    """Two hosts that will go, one of which would be enough. The last checkpoint is made, and no process trains beyond
    it."""
    cluster: Cluster = play("train a b; run 10", every="notice")
    now = cluster.clock.mono()
    leaving = {"a": ("spot reclaim", now + 25.0), "b": ("spot reclaim", now + 30.0)}
    cluster.publish(HostSet(()), leaving)
    cluster.until(lambda: True in cluster.training.stays and len(cluster.events("sealed")) == 2, within=30.0)
    return cluster


def test_who_is_left_when_the_first_one_goes_trains_no_further_than_the_last_checkpoint_unless_its_end_does_not_come(
) -> None:  # fmt: skip
    cluster = both_are_to_go()
    worlds = len(cluster.events("resized"))
    cluster.kill("a")
    cluster.run(4.0)
    assert len(cluster.events("resized")) == worlds
    assert not cluster.members
    cluster.run(30.0 + CANCELLED_AFTER_S)
    assert cluster.members


def test_a_world_that_goes_on_behind_the_last_checkpoint_has_another_one_made() -> None:
    """Its commit may be lost, or a newer one may be known. So processes that train again are held back again in
    time."""
    cluster = both_are_to_go()
    cluster.driver.job.checkpoints.stored = None
    cluster.kill("a")
    cluster.until(lambda: len(cluster.members) == 1, within=10.0)
    cluster.until(lambda: len(cluster.events("sealed")) > 2 and cluster.training.stays[-1] is True, within=29.0)


def test_a_commit_that_was_long_waited_for_has_the_last_one_begin_sooner() -> None:
    """Ranks that evaluate do not commit for seconds."""
    begun = []
    for busy_s in (0.0, 6.0):
        cluster = play(f"train a b least=2; busy {busy_s}; run 30", every="notice")
        cluster.write_notice("b", "spot reclaim", 60.0)
        begun.append(cluster.until(lambda: True in cluster.training.stays, within=60.0))  # noqa: B023
        cluster.run(60.0 - begun[-1])
        assert len(cluster.events("sealed")) == 2
    assert begun[1] < begun[0] - 5.0
