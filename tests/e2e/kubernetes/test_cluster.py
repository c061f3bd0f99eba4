"""A job of real pods, as far as one machine has them: the daemon, the launcher and a cluster that does as it likes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.e2e.kubernetes.mpijob import LONGEST_S, ClusterJob, cluster_job, host
from tests.support import marks
from tests.support.kube import cluster_events
from tests.support.waiting import wait_until

__all__ = ["cluster_job"]

MakeJob = Callable[[int], ClusterJob]

FIRST, SECOND, THIRD = (f"digits-worker-{number}" for number in range(3))
SPOT = "aws-node-termination-handler/spot-itn"
SHORT = ("--blacklist-cooldown-range", "2", "10")
LONG = ("--blacklist-cooldown-range", "600", "600")
"""Longer than any test: whoever is held back by it is not seen again."""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_scaling_notices_evictions_and_a_server_that_is_away_cost_no_step(cluster_job: MakeJob) -> None:
    job = cluster_job(3)
    with job.run_on(*LONG):
        job.trains(2)
        spot_notice_that_is_taken_back(job, SECOND)
        server_away(job, lambda: None)
        eviction(job, SECOND)
        scaled_to_one(job)
        job.check_uninterrupted(host(FIRST))
    job.check_steps()
    assert not job.events("struck")
    assert not job.events("fenced")
    assert "Traceback" not in job.process.stderr + job.daemon.output


def spot_notice_that_is_taken_back(job: ClusterJob, pod: str) -> None:
    """The job goes on without the pod while that still runs, and takes it back when it may stay."""
    uid, node, before = job.uid(pod), job.node(pod), len(job.notices(pod))
    since = time.monotonic()
    cluster_events.taint(job.kube, node, SPOT)
    left = job.resized_without(pod, since=since)
    job.trains(1)
    notice = job.notices(pod)[before]
    assert "spot" in notice.get("reason")
    assert 60 < notice.get("deadline") - since <= 120 + LONGEST_S
    assert (left.get("cause"), left.get("steps_lost")) == ("hosts removed", 0)
    assert left.mono < notice.get("deadline")
    assert uid not in job.kubelets.ended
    cluster_events.untaint(job.kube, node, SPOT)
    job.trains(2)
    assert job.uid(pod) == uid
    assert job.causes()[-1] == "hosts added"


def server_away(job: ClusterJob, long_enough: Callable[[], object]) -> None:
    """Nobody is told to go, training goes on, and what has changed meanwhile is seen afterwards."""
    before, worlds = job.file.stat(), len(job.causes())
    with job.kube.down():
        job.wait_for("a refusal", lambda: "refused" in job.daemon.output, timeout=LONGEST_S)
        job.workers.scale(3)  # as another server of the cluster, which the daemon does not reach, would be told
        wait_until(lambda: THIRD in job.running(), what="the third pod", timeout=LONGEST_S, show=job._details)
        long_enough()
        job.trains(2)
        after = job.file.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        assert len(job.causes()) == worlds
    job.trains(3)


def scaled_to_one(job: ClusterJob) -> None:
    """Whoever is not wanted any more leaves by its hook before it dies."""
    going = {pod: job.uid(pod) for pod in (SECOND, THIRD)}
    since = time.monotonic()
    job.workers.scale(1)
    job.trains(1)
    for pod, uid in going.items():
        assert job.resized_without(pod, since=since).t < job.ended(uid)
        assert job.kubelets.hooks[uid] == 0
        assert job.notices(pod)


def eviction(job: ClusterJob, pod: str) -> None:
    """The pod leaves before it dies, and the one that takes its name is a new host."""
    uid, before, since = job.uid(pod), len(job.notices(pod)), time.monotonic()
    assert job.evict(pod) == 201
    left = job.resized_without(pod, since=since)
    assert left.t < job.ended(uid)
    assert left.get("steps_lost") == 0
    assert job.notices(pod)[before:]
    assert job.kubelets.hooks[uid] == 0
    job.trains(3)
    assert job.uid(pod) != uid


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_node_that_falls_silent_and_a_server_that_is_away_for_a_minute(cluster_job: MakeJob) -> None:
    job = cluster_job(3)
    with job.run_on("--heartbeat-timeout", "5", *SHORT):
        job.trains(2)
        silence(job, SECOND)
        server_away(job, a_minute)
    job.check_steps()
    assert "Traceback" not in job.process.stderr + job.daemon.output


def silence(job: ClusterJob, pod: str) -> None:
    """The cable of a node is pulled: what runs there runs on, and nobody waits for it."""
    uid, node, container = job.uid(pod), job.node(pod), job.kubelets.container(pod)
    since = time.monotonic()
    job.kubelets.lose(node)
    job.resized_without(pod, since=since)
    job.trains(1)
    assert any("trainee" in marks.command_line(pid) for pid in container.pids())
    assert not job.notices(pod)  # silence is not a word of anybody's
    job.kubelets.regain(node)
    job.trains(2)
    assert job.uid(pod) == uid


def a_minute() -> None:
    end = time.monotonic() + 60
    wait_until(lambda: time.monotonic() >= end, what="the end of a minute", timeout=90, interval=0.1)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_took_the_place_of_an_evicted_or_a_blocked_pod_is_a_new_host(cluster_job: MakeJob) -> None:
    job = cluster_job(3)
    with job.run_on(*LONG):
        job.trains(2)
        kubelet_eviction(job, SECOND)
        blocked(job, SECOND)
    job.check_steps()
    assert "Traceback" not in job.process.stderr + job.daemon.output


def kubelet_eviction(job: ClusterJob, pod: str) -> None:
    """Killed without a word, and failed; the operator makes another one once somebody has deleted it."""
    uid, since = job.uid(pod), time.monotonic()
    job.kubelets.evict(pod)
    job.resized_without(pod, since=since)
    job.trains(1)
    found = job.kube.get("pods", pod)
    assert (found["metadata"]["uid"], found["status"]["reason"]) == (uid, "Evicted")
    job.kube.delete("pods", pod)
    job.trains(2)
    assert job.uid(pod) != uid


def blocked(job: ClusterJob, pod: str) -> None:
    """A process fails, and its pod is blocked for long; another pod under the same name is not."""
    uid, since = job.uid(pod), time.monotonic()
    (trainee,) = (pid for pid in job.kubelets.container(pod).pids() if "trainee" in marks.command_line(pid))
    os.kill(trainee, signal.SIGKILL)
    job.resized_without(pod, since=since)
    struck = job.last("struck")
    assert (struck.get("host"), struck.get("cause")) == (host(pod), "crashed")
    job.wait_for_size(1, more=60, timeout=LONGEST_S)  # it stays out
    assert uid not in job.kubelets.ended
    job.kube.delete("pods", pod)
    job.trains(2)
    assert job.uid(pod) != uid
    assert job.causes()[-1] == "hosts added"
