"""More pods than are listed often: whether a watch still tells all there is, is found out by another one beside it."""

from __future__ import annotations

import pytest

from discover.kube.watch_audit import SMALL_JOB
from tests.contract.discover.following import HurriedClock, eventually, followed, rechecked
from tests.support.kube import bodies

MANY = SMALL_JOB + 10
FAST = 6.0
"""How much faster than the machine's the clock runs; the server's is the machine's."""


@pytest.fixture
def crowd(kube):
    for number in range(MANY):
        kube.put("pods", bodies.pod(f"p{number}"))
    return kube


def test_a_watch_of_many_pods_that_misses_changes_is_found_by_a_second_watch(crowd, tmp_path):
    with followed(crowd, tmp_path, clock=HurriedClock(FAST)) as pods:
        eventually(lambda: crowd.watches("pods"), "the watch")
        (watch,) = crowd.watches("pods")
        watch.silence()
        crowd.put("pods", bodies.pod("late"))
        with rechecked(pods, tmp_path):
            eventually(lambda: "late" in pods.names, "the pod that was not told of")
            eventually(lambda: crowd.counts.of("watch", "pods") >= 3, "the first watch, the short one, the next")
    assert "deaf" in pods.counted.restarts


def test_a_watch_cache_of_many_pods_that_stands_still_is_found_out_by_the_store(crowd, tmp_path):
    """The short watch beside the first one is as deaf as that one."""
    with followed(crowd, tmp_path, clock=HurriedClock(25.0)) as pods:
        eventually(lambda: crowd.watches("pods"), "the watch")
        with crowd.stalls("pods"), rechecked(pods, tmp_path):
            crowd.put("pods", bodies.pod("late"))
            crowd.remove("pods", "p0")
            eventually(lambda: "late" in pods.names and "p0" not in pods.names, "what was not told")
        crowd.put("pods", bodies.pod("later"))
        eventually(lambda: "later" in pods.names, "what comes afterwards")
    assert "deaf" in pods.counted.restarts
