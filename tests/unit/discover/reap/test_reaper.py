"""Which pods are deleted, when, and above all which are not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from discover.pods.operators import HostRules, JobView, operator_named
from discover.pods.views import NodeView
from discover.reap.cluster_view import ClusterView
from discover.reap.reaper import (
    EVICTED,
    FAILED,
    SHUTDOWN,
    SHUTTING_DOWN,
    Deletion,
    ReapLimits,
    ReapState,
    decide_deletions,
    deleted,
    refused,
)
from discover.verdicts.signals import BUILT_IN
from discover.verdicts.verdicts import Grade, Selector
from hvd_elastic_ext.core.hosts import Host
from tests.support.kube import bodies
from tests.unit.discover import pod_and_node_views

LIMITS = ReapLimits(linger=5.0, handed=2.0, per_minute=3, again=10.0, longest=80.0)
OWNER = ("MPIJob", "job", "job-uid")
KNOWN = JobView(uid="job-uid")
GONE = "2026-01-01T00:10:00Z"


def worker(name: str, *, node: str = "node-0", owner: tuple[str, str, str] | None = OWNER, **more: Any) -> Any:
    return pod_and_node_views.pod(name, node=node, owner=owner, subdomain="job", **more)


def failed(name: str, *, reason: str = "", **more: Any) -> Any:
    status = {"conditions": [bodies.condition("Ready", False)], **({"reason": reason} if reason else {})}
    return worker(name, phase="Failed", status=status, **more)


def shutting_down(name: str = "node-0") -> NodeView:
    body = bodies.condition("Ready", False, reason="KubeletNotReady")
    return pod_and_node_views.node(name, ready=False, conditions=[{**body, "message": "node is shutting down"}])


class Job:
    """Selects as the daemon does, publishes whom that lets pass, and reaps in virtual time."""

    def __init__(self, *, job: JobView | None = KNOWN) -> None:
        self.rules = HostRules(operator=operator_named("mpi"))
        self.selector = Selector(self.rules, BUILT_IN)
        self.job = job
        self.now = 1000.0
        self.reaped = ReapState()
        self.again_at: float | None = None
        self.chosen: tuple[Deletion, ...] = ()
        self.why: list[str] = []

    def scene(self, pods: Iterable[Any], nodes: Iterable[NodeView] | None) -> ClusterView:
        snapshot = pod_and_node_views.picture(pods, nodes)
        verdicts = self.selector.select(pod_and_node_views.NOW, snapshot, job=self.job).verdicts
        published = {each.pod.uid: each.host for each in verdicts if each.grade is Grade.USABLE and each.host}
        advice = self.rules.operator.advice
        return ClusterView(verdicts, published, nodes=snapshot.nodes, job=self.job, advice=advice)

    def look(
        self, *pods: Any, nodes: Iterable[NodeView] | None = (), after: float = 0.0, works: bool = True
    ) -> list[tuple[str, str]]:
        """What is deleted: names and causes. ``nodes``: beside the healthy ``node-0``; None: they may not be read."""
        self.now += after
        listed = (
            None if nodes is None else {"node-0": pod_and_node_views.node(), **{each.key.name: each for each in nodes}}
        )
        return self.see(self.scene(pods, None if listed is None else listed.values()), works=works)

    def refuse(self, *names: str, least: float = 0.0) -> None:
        """All deletions of the last look came to nothing, or those of these pods."""
        for each in self.chosen:
            if not names or each.key.name in names:
                self.reaped = refused(self.now, self.reaped, each, jitter=0.0, least=least)

    def see(self, scene: ClusterView, *, works: bool = True) -> list[tuple[str, str]]:
        self.reaped, chosen, self.again_at = decide_deletions(self.now, self.reaped, scene, BUILT_IN, limits=LIMITS)
        for each in chosen if works else ():
            self.reaped = deleted(self.now, self.reaped, each)
        self.chosen = chosen
        self.why = [each.why for each in chosen]
        return [(each.key.name, each.cause) for each in chosen]


@pytest.mark.parametrize(("reason", "cause"), [("", FAILED), ("Evicted", EVICTED), ("Terminated", EVICTED)])
def test_a_failed_worker_is_deleted_once_its_cause_could_be_seen(reason: str, cause: str) -> None:
    job = Job()
    pod = failed("w-0", reason=reason)
    assert job.look(pod) == []
    assert job.again_at == job.now + 5.0
    assert job.look(pod, after=4.9) == []
    assert job.look(pod, after=0.1) == [("w-0", cause)]
    assert "--reap-failed" not in job.why[0]  # advice for those who do without it


def test_each_pod_is_deleted_once() -> None:
    job = Job()
    pod = failed("w-0")
    job.look(pod)
    assert job.look(pod, after=5.0) == [("w-0", FAILED)]
    assert job.look(pod, after=3600.0) == []
    assert job.again_at is None


def test_a_deletion_that_came_to_nothing_is_asked_for_again() -> None:
    job = Job()
    pod = failed("w-0")
    job.look(pod)
    for _ in range(3):
        assert job.look(pod, after=5.0, works=False) == [("w-0", FAILED)]


@pytest.mark.parametrize(
    "pod",
    [
        failed("w-0", deletion=GONE),
        failed("w-0", owner=("MPIJob", "other", "another-uid")),
        failed("w-0", owner=None),
        worker("w-0", phase="Succeeded"),
        worker("w-0", ready=False),
        worker("w-0", phase="Pending", ready=False),
        worker("w-0", phase="Unknown"),
        worker("w-0"),
    ],
    ids=["deleted already", "of another job", "nobody's", "succeeded", "not ready", "pending", "unknown", "well"],
)
def test_no_other_pod_is_deleted(pod: Any) -> None:
    job = Job()
    for _ in range(3):
        assert job.look(pod, after=60.0) == []


def test_where_the_job_may_not_be_read_labels_decide_but_nobodys_pods_are_left_alone() -> None:
    job = Job(job=None)
    pods = [failed("w-0"), failed("w-1", owner=None)]
    job.look(*pods)
    assert job.look(*pods, after=5.0) == [("w-0", FAILED)]


@pytest.mark.parametrize("pod", [failed("w-0"), worker("w-0")], ids=["failed", "shut down"])
def test_of_a_job_that_has_finished_nobody_is_deleted(pod: Any) -> None:
    job = Job(job=replace(KNOWN, finished=True))
    for _ in range(3):
        assert job.look(pod, nodes=[shutting_down()], after=60.0) == []


# Before the kubelet kills them


@pytest.mark.parametrize("grace", [30, 600])
def test_a_pod_of_a_node_that_shuts_down_is_deleted_once_its_departure_was_published(grace: int) -> None:
    job = Job()
    pod = worker("w-0")
    assert job.look(pod) == []
    assert job.look(pod, nodes=[shutting_down()], after=60.0) == []
    assert job.again_at == job.now + 2.0
    assert job.look(pod, nodes=[shutting_down()], after=2.0) == [("w-0", SHUTTING_DOWN)]
    assert "is shutting down" in job.why[0]


def test_not_while_it_is_still_published() -> None:
    job = Job()
    seen = job.scene([worker("w-0")], [shutting_down()])
    assert [each.grade for each in seen.verdicts] == [Grade.LEAVING]
    published = {"uid-w-0": Host("w-0", 1, "uid-w-0")}
    for _ in range(3):
        job.now += 60.0
        assert job.see(ClusterView(seen.verdicts, published, nodes=seen.nodes, job=seen.job)) == []


def test_a_shutdown_that_is_called_off_deletes_nobody() -> None:
    job = Job()
    pod = worker("w-0")
    job.look(pod, nodes=[shutting_down()])
    assert job.look(pod, after=1.0) == []
    assert job.look(pod, nodes=[shutting_down()], after=1.5) == []


def taints(*keys: str) -> NodeView:
    return pod_and_node_views.node(taints=[bodies.taint(key, "", "NoSchedule") for key in keys])


SILENT = [
    pod_and_node_views.node(ready="Unknown"),
    pod_and_node_views.node(ready=False),
    taints("node.kubernetes.io/unreachable"),
    taints("node.kubernetes.io/not-ready"),
]
PRESSED = [taints(f"node.kubernetes.io/{what}-pressure") for what in ("memory", "disk", "pid")]
OTHERS = [
    taints("ToBeDeletedByClusterAutoscaler"),
    taints("karpenter.sh/disrupted"),
    taints("aws-node-termination-handler/spot-itn"),
    taints("cloud.google.com/impending-node-termination"),
    taints("node.kubernetes.io/out-of-service"),
    pod_and_node_views.node(unschedulable=True),
]


@pytest.mark.parametrize("node", [*SILENT, *PRESSED, *OTHERS], ids=repr)
def test_no_other_signal_of_a_node_deletes_a_pod(node: NodeView) -> None:
    job = Job()
    for _ in range(3):
        assert job.look(worker("w-0"), nodes=[node], after=60.0) == []


def test_the_rows_that_delete_are_notices_of_nodes_and_in_the_table() -> None:
    rows = {signal.name: signal for signal in BUILT_IN.signals}
    assert {(rows[name].object, rows[name].evidence.value) for name in SHUTDOWN} == {("node", "notice")}


def test_where_nodes_may_not_be_read_only_failed_pods_are_deleted() -> None:
    job = Job()
    pods = [failed("w-0"), worker("w-1")]
    job.look(*pods, nodes=None)
    assert job.look(*pods, nodes=None, after=5.0) == [("w-0", FAILED)]


# What is refused


def test_refused_long_polls_take_no_place() -> None:
    job = Job()
    pods = [failed(f"w-{number}") for number in range(4)]
    job.look(*pods)
    assert len(job.look(*pods, after=5.0, works=False)) == LIMITS.per_minute == 3
    job.refuse()
    assert job.look(*pods) == [("w-3", FAILED)]
    assert job.again_at == job.now + 0.8


def test_who_is_refused_waits_longer_each_time() -> None:
    job = Job()
    job.look(failed("w-0"))
    assert job.look(failed("w-0"), after=5.0, works=False) == [("w-0", FAILED)]
    for pause in (0.8, 1.6, 3.2):
        job.refuse()
        assert job.look(failed("w-0"), after=pause - 0.1) == []
        assert job.look(failed("w-0"), after=0.11, works=False) == [("w-0", FAILED)]


def test_refused_deletions_come_after_others_of_the_same_urgency() -> None:
    job = Job()
    pods = [failed("a"), failed("b"), worker("y"), worker("z")]
    nodes = [shutting_down()]
    job.look(*pods, nodes=nodes)
    job.look(*pods, nodes=nodes, after=5.0, works=False)
    job.refuse("a", "y")
    assert [name for name, _ in job.look(*pods, nodes=nodes, after=5.0)] == ["z", "y", "b"]


def test_a_refusal_may_ask_for_a_longer_pause_and_is_forgotten_with_its_pod() -> None:
    job = Job()
    job.look(failed("w-0"))
    job.look(failed("w-0"), after=5.0, works=False)
    job.refuse(least=60.0)
    assert job.look(failed("w-0"), after=59.0) == []
    assert job.look(failed("w-0"), after=1.0) == [("w-0", FAILED)]
    job.look(after=600.0)
    assert job.reaped == ReapState()


# Not too many


def test_a_minute_has_its_limit_and_those_who_are_about_to_be_killed_come_first() -> None:
    job = Job()
    pods = [*(failed(f"a-{number}") for number in range(4)), worker("z")]
    job.look(*pods, nodes=[shutting_down()])
    seen = job.look(*pods, nodes=[shutting_down()], after=10.0)
    assert seen[0] == ("z", SHUTTING_DOWN)
    for _ in range(20):
        seen += job.look(*pods, nodes=[shutting_down()], after=1.0)
    assert len(seen) == LIMITS.per_minute
    assert job.again_at is not None
    assert job.look(*pods, nodes=[shutting_down()], after=job.again_at - job.now) != []


def test_a_worker_that_fails_again_and_again_is_replaced_more_and_more_seldom() -> None:
    job = Job()
    times: list[float] = []
    life = 0
    for _ in range(600):
        if job.look(failed("w-0", uid=f"life-{life}"), after=1.0):
            times.append(job.now)
            life += 1
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses[:4] == [10.0, 20.0, 40.0, 80.0]
    assert set(pauses[4:]) == {80.0}


def test_a_worker_that_failed_long_ago_is_replaced_at_once_again() -> None:
    job = Job()
    job.look(failed("w-0", uid="first"))
    job.look(failed("w-0", uid="first"), after=5.0)
    job.look(worker("w-0", uid="second"), after=400.0)
    job.look(failed("w-0", uid="second"), after=1.0)
    assert job.look(failed("w-0", uid="second"), after=5.0) == [("w-0", FAILED)]
    assert job.reaped.names[pod_and_node_views.pod("w-0").key][0] == 1
