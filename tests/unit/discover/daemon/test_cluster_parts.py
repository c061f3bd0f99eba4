"""What Events are about, and the look that writers are shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discover.daemon.cluster_parts import KubeParts, ViewOf, _own_pod
from discover.daemon.settings import KubernetesSettings
from discover.metrics import Metrics
from discover.pods.operators import JobView
from discover.reap.events import EventObject, EventWriter
from discover.reap.reaper import Reaper
from discover.sources import Observation
from discover.verdicts.damping import DampingResult, DampingState
from discover.verdicts.verdicts import Selection
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from tests.support.clock import ManualClock

JOB = KubernetesSettings(job="digits", namespace="jobs")


class Cluster:
    """Knows one pod, or does not answer."""

    namespace = "here"

    def __init__(self, pod: dict[str, Any] | ApiError) -> None:
        self._pod = pod

    def pod_now(self, namespace: str, name: str) -> dict[str, Any]:
        if isinstance(self._pod, ApiError):
            raise self._pod
        return self._pod


def about(cluster: Cluster, *, job: JobView | None, own: str = "") -> Any:
    parts: Any = KubeParts.__new__(KubeParts)
    parts._cluster, parts._settings, parts._namespace, parts._own = cluster, JOB, "jobs", own
    parts.source = SimpleNamespace(job=job)
    return parts.event_object()


OWN = Cluster({"metadata": {"uid": "pod-uid"}})


def test_events_are_about_the_job_where_it_may_be_read() -> None:
    wanted = EventObject("kubeflow.org/v2beta1", "MPIJob", "jobs", "digits", "job-uid")
    assert about(OWN, job=JobView(uid="job-uid"), own="launcher-x") == wanted


def test_else_about_the_daemons_own_pod() -> None:
    assert about(OWN, job=None, own="launcher-x") == EventObject("v1", "Pod", "here", "launcher-x", "pod-uid")


def test_without_a_job_and_an_owner_events_are_about_nothing() -> None:
    missing = ApiError.of_status({"message": "no such pod"}, code=404)
    assert about(OWN, job=None) is None
    assert about(Cluster(missing), job=None, own="launcher-x") is None
    assert about(Cluster({}), job=None, own="launcher-x") is None


def test_a_server_that_does_not_answer_may_know_it_later() -> None:
    with pytest.raises(ApiError):
        about(Cluster(ApiError(Reason.UNREACHABLE, "refused")), job=None, own="launcher-x")


@pytest.mark.parametrize("reap", [False, True])
def test_pods_are_deleted_only_where_that_was_asked_for(tmp_path: Path, manual_clock: ManualClock, reap: bool) -> None:
    settings = KubernetesSettings(job="digits", kubeconfig=kubeconfig(tmp_path), reap=reap)
    made = KubeParts(settings, metrics=Metrics(manual_clock), clock=manual_clock).writers()
    assert [type(each) for each in made] == [EventWriter, Reaper][: 1 + reap]


def kubeconfig(folder: Path) -> Path:
    whole = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(whole))
    return path


def test_a_pod_is_ones_own_only_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert _own_pod(JOB) == ""
    assert _own_pod(KubernetesSettings(job="digits", own_pod="x")) == "x"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert _own_pod(JOB) != ""
    monkeypatch.setenv("KUBECONFIG", "/of/another")
    assert _own_pod(JOB) == ""


def test_a_view_is_one_object_until_the_next_look_and_none_before_the_first_publication() -> None:
    host = Host("a", 1, "uid-a")

    def evaluation(*, started: bool) -> Any:
        observation = Observation(HostSet((host,))) if started else None
        return SimpleNamespace(
            selection=Selection(), damping=DampingResult(DampingState(published={"uid-a": host}), observation)
        )

    source: Any = SimpleNamespace(evaluation=None, nodes=None, job=None)
    settled = [True]
    scenes = ViewOf(source, "advice", only_if=lambda: settled[0])
    assert scenes() is None
    source.evaluation = evaluation(started=False)
    assert scenes() is None
    source.evaluation = evaluation(started=True)
    first = scenes()
    assert first is not None
    assert first.published == {"uid-a": host}
    assert scenes() is first
    source.evaluation = evaluation(started=True)
    assert scenes() is not first
    settled[0] = False
    assert scenes() is None
