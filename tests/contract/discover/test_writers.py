"""Events and reaping on an API server: over the real client, under the rights of the manifests."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discover.daemon.cluster_parts import KubeParts
from discover.daemon.settings import KubernetesSettings
from discover.metrics import Metrics
from discover.pods.operators import JobView, job_view, operator_named
from discover.pods.views import Key, node_view, pod_view
from discover.reap.cluster_view import ClusterView
from discover.reap.events import EventLimits, EventObject, EventWriter
from discover.reap.reaper import Reaper
from discover.reap.request_retry import FORBIDDEN_PAUSE
from discover.sources import Observation
from discover.verdicts.damping import DampingResult, DampingState
from discover.verdicts.signals import BUILT_IN
from discover.verdicts.verdicts import Grade, Selection, Verdict
from discover.watch.cluster import Cluster, Timeouts
from discover.watch.collection import Sender
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.io.kube.paths import path_of
from tests.support.clock import ManualClock
from tests.support.kube import bodies, cluster_events, statuses
from tests.support.kube.server import KubeServer
from tests.support.manifests import documents, problems
from tests.support.waiting import wait_until

LIMITS = EventLimits()
JOB = EventObject("kubeflow.org/v2beta1", "MPIJob", "default", "digits", "job-uid")


ACCOUNT = "hvd-launcher-digits"


class Writing:
    """One server, and daemons that may do what ``files`` of the manifests allow; without any, everything. Time is
    virtual.
    """

    def __init__(self, kube: KubeServer, folder: Path, *files: str, read: float = 10.0) -> None:
        self.kube = kube
        self.clock = ManualClock()
        self._folder = folder
        self._timeouts = Timeouts(connect=5.0, of_list=read)
        self._token = kube.access.issue_for("default", ACCOUNT) if files else None
        self._numbers = itertools.count()
        kube.apply(each for file in files for each in documents(file) if each["kind"] != "MPIJob")
        self._made: list[Sender] = []

    def sender(self) -> Sender:
        config = self.kube.kubeconfig(self._folder / f"kubeconfig-{next(self._numbers)}", token=self._token)
        sender = Cluster(Access(str(config)), timeouts=self._timeouts).sender()
        self._made.append(sender)
        return sender

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture
def writing(kube: KubeServer, tmp_path: Path) -> Iterator[Writing]:
    made = Writing(kube, tmp_path, "rbac.yaml", "reap.yaml", "mpijob.yaml")
    yield made
    made.close()


QUOTA = statuses.ApiError(statuses.status(403, "Forbidden", 'events "x" is forbidden: exceeded quota: small'))
WEBHOOK = statuses.ApiError(statuses.status(403, "Forbidden", 'admission webhook "guard" denied the request: not this'))


class Counts:
    """Counts as WriteMetrics does."""

    def __init__(self) -> None:
        self.sent: Counter[bool] = Counter()
        self.reaps: list[str] = []
        self.failures = 0

    def event(self, reason: str, *, sent: bool) -> None:
        assert reason == "HostsExcluded"
        self.sent[sent] += 1

    def reaped(self, cause: str) -> None:
        self.reaps.append(cause)

    def reap_failed(self) -> None:
        self.failures += 1


class EventRig:
    """A writer, and the looks that it is shown: pods that run and are not hosts, by their names."""

    def __init__(self, writing: Writing, *, about: EventObject | None = JOB) -> None:
        self.writing = writing
        self.counts = Counts()
        self.about = about
        self.scene: ClusterView | None = None
        self.writer = EventWriter(
            writing.sender(),
            lambda: self.scene,
            lambda: self.about,
            instance="machine",
            metrics=self.counts,
            clock=writing.clock,
            draw=lambda: 0.0,
        )

    def show(self, names: str) -> None:
        """These pods are not hosts, for as long as it takes to report them."""
        views = [pod_view(bodies.pod(name)) for name in names]
        running = [replace(view, uid=view.key.name, phase="Running") for view in views]
        self.scene = ClusterView(tuple(Verdict(each, Grade.UNFIT, "pod is not ready") for each in running))
        self.turn()
        self.turn(after=LIMITS.long + LIMITS.gather)

    def turn(self, *, after: float = 0.0) -> None:
        self.writing.clock.advance(after)
        self.writer.turn()

    def texts(self) -> list[str]:
        return sorted(each["message"] for each in self.writing.kube.all("events"))


def told(names: str) -> str:
    """What is told of so many pods."""
    what = (
        "1 pod has run for 5 minutes and is not a host"
        if len(names) == 1
        else (f"{len(names)} pods have run for 5 minutes and are not hosts")
    )
    return f"{what}: {', '.join(f'{name} (pod is not ready)' for name in names)}"


def test_an_event_is_one_that_a_server_takes_and_stands_with_the_job(writing: Writing) -> None:
    rig = EventRig(writing)
    rig.show("ab")
    (event,) = writing.kube.all("events")
    assert problems({**event, "apiVersion": "v1", "kind": "Event"}) == []
    assert event["involvedObject"] == {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "namespace": "default",
        "name": "digits",
        "uid": "job-uid",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "HostsExcluded", told("ab"))
    assert event["source"] == {"component": "hvd-discover", "host": "machine"}
    assert event["metadata"]["name"].startswith("digits.")
    assert rig.counts.sent == {True: 1}


def test_without_the_right_to_write_events_it_logs_once_and_resumes_when_the_right_is_given(
    kube: KubeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = EventRig(Writing(kube, tmp_path, "reap.yaml"))
    rig.show("a")
    for _ in range(3 * 60):
        rig.turn(after=1.0)
    assert kube.counts.of("create", "events") == 1 + 3
    assert sum("hvd-elastic manifest rbac gives the right" in each.message for each in caplog.records) == 1
    assert sum("Events wait" in each.message for each in caplog.records) == 1
    Writing(kube, tmp_path, "rbac.yaml").close()
    rig.turn(after=60.0)
    assert rig.texts() == [told("a")]
    rig.writing.close()


def test_events_wait_two_seconds_for_a_server_that_has_just_started_without_a_warning(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    rig, kube = EventRig(writing), writing.kube
    rig.show("a")
    assert len(rig.texts()) == 1
    kube.clock.stop()
    kube.restart(cold=1.0)
    rig.show("ab")
    if not kube.counts.answers(403):  # the connection that was kept has been reset, before the server saw the request
        rig.turn(after=60.0)
        caplog.clear()
    assert (len(rig.texts()), kube.counts.answers(403)) == (1, 1)
    kube.clock.advance(1.0)
    rig.turn(after=2.0)
    assert rig.texts() == [told("a"), told("b")]
    assert caplog.messages == []


def test_a_quota_delays_events_and_nobody_is_told_to_give_a_right(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    rig = EventRig(writing)
    writing.kube.faults.on("create", "events", times=1).answer(QUOTA)
    rig.show("a")
    assert rig.texts() == []
    assert "exceeded quota" in caplog.text
    assert "hvd-elastic manifest" not in caplog.text
    rig.turn(after=60.0)
    assert rig.texts() == [told("a")]


def test_what_events_are_about_may_come_to_be_known(writing: Writing) -> None:
    rig = EventRig(writing, about=None)
    rig.show("a")
    assert writing.kube.counts.of("create", "events") == 0
    rig.about = JOB
    rig.turn(after=60.0)
    assert rig.texts() == [told("a")]


def test_what_cannot_be_told_is_told_when_the_server_is_back_and_all_later_pods_with_the_next_event(
    writing: Writing,
) -> None:
    rig = EventRig(writing)
    with writing.kube.down():
        rig.show("a")
        for names in ("ab", "abc"):
            rig.show(names)
        assert rig.texts() == []
    rig.turn(after=60.0)
    rig.turn(after=1.0)
    rig.turn(after=LIMITS.long + LIMITS.gather)
    assert rig.texts() == [told("a"), told("bc")]
    assert rig.counts.sent == {True: 2}


def test_nothing_is_asked_of_a_busy_server_before_its_retry_after(writing: Writing) -> None:
    busy = writing.kube.faults.on("create", "events", times=1).busy(retry_after=20)
    rig = EventRig(writing)
    rig.show("a")
    busy.wait()
    for _ in range(9):
        rig.turn(after=2.0)
    assert writing.kube.counts.of("create", "events") == 1
    rig.turn(after=2.0)
    assert rig.texts() == [told("a")]


def test_an_event_whose_answer_was_lost_is_not_told_twice(writing: Writing) -> None:
    rig = EventRig(writing)
    lost = writing.kube.faults.on("create", "events", times=1).cut()
    rig.show("a")
    lost.wait()
    rig.turn(after=60.0)
    assert rig.texts() == [told("a")]
    assert rig.counts.sent == {True: 1}


def test_a_refused_event_delays_no_other(writing: Writing) -> None:
    refusal = statuses.invalid("Event", "", "x", field="message", why="too odd")
    rig = EventRig(writing)
    odd = writing.kube.faults.on("create", "events", times=1).answer(refusal)
    rig.show("a")
    odd.wait()
    rig.show("ab")
    assert rig.texts() == [told("b")]
    assert rig.counts.sent == {False: 1, True: 1}


def test_a_writer_of_events_ends_while_the_server_never_answers(writing: Writing) -> None:
    hung = writing.kube.faults.on("create", "events").hang()
    rig = EventRig(writing)
    rig.about = None
    rig.show("a")
    rig.about = JOB
    writing.clock.advance(60.0)
    rig.writer.start()
    hung.wait()
    rig.writer.stop()
    wait_until(lambda: "events" not in {each.name for each in threading.enumerate()}, what="its end", timeout=60)


# The way to the server


def test_over_tls_nobody_is_trusted_but_the_cluster(kube_tls: KubeServer, tmp_path: Path) -> None:
    sender = Cluster(Access(str(kube_tls.kubeconfig(tmp_path / "kubeconfig")))).sender()
    sender.send("POST", path_of("v1", "configmaps", "default"), {"metadata": {"name": "x"}, "data": {"a": "ä"}})
    assert kube_tls.get("configmaps", "x")["data"] == {"a": "ä"}
    other = Cluster(Access(str(kube_tls.kubeconfig(tmp_path / "other")))).sender()
    kube_tls.rotate_ca()
    with pytest.raises(ApiError, match="TLS"):
        other.send("GET", path_of("v1", "configmaps", "default"))
    for each in (sender, other):
        each.close()


# Reaping

OWNER = ("MPIJob", "job", "job-uid")


class Reaping:
    """A reaper, and a look at what is on the server."""

    def __init__(self, writing: Writing, *failed: str, own: Key | None = None, known: bool = False) -> None:
        """``failed``: workers that have failed, and been seen. ``known``: the job is there, and was read."""
        self.writing, self.kube = writing, writing.kube
        self.counts = Counts()
        self.scene: ClusterView | None = None
        self.job: JobView | None = None
        self.reaper = Reaper(
            writing.sender(),
            lambda: self.scene,
            BUILT_IN,
            job=self.read_job,
            own=own,
            metrics=self.counts,
            clock=writing.clock,
            draw=lambda: 0.0,
        )
        if known:
            self.kube.put("mpijobs", {**bodies.mpi_job("digits"), "metadata": {"name": "digits", "uid": OWNER[2]}})
            self.job = self.read_job(writing.sender())
        for name in failed:
            self.worker(name)
            cluster_events.fail(self.kube, name)
        if failed:
            self.look()
            self.turn()

    def worker(self, name: str) -> str:
        """A worker on ``node-0``, and its UID."""
        if not any(each["metadata"]["name"] == "node-0" for each in self.kube.all("nodes")):
            self.kube.put("nodes", bodies.node("node-0"))
        return str(self.kube.put("pods", bodies.pod(name, owner=OWNER))["metadata"]["uid"])

    def look(self) -> None:
        """See all there is: failed pods are unfit, all others are leaving."""
        views = [pod_view(each) for each in self.kube.all("pods")]
        self.scene = ClusterView(
            tuple(
                Verdict(view, Grade.UNFIT if view.phase == "Failed" else Grade.LEAVING, "pod was evicted")
                for view in views
            ),
            nodes={each["metadata"]["name"]: node_view(each) for each in self.kube.all("nodes")},
            job=self.job,
        )

    def read_job(self, sender: Sender) -> JobView | None:
        found = sender.send("GET", path_of("kubeflow.org/v2beta1", "mpijobs", "default", "digits"))
        return job_view(found, operator_named("mpi"))

    def turn(self, *, after: float = 0.0) -> None:
        self.writing.clock.advance(after)
        self.reaper.turn()

    def names(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.kube.all("pods"))


def test_a_pod_that_took_the_name_meanwhile_is_not_deleted(writing: Writing) -> None:
    reaping = Reaping(writing, "w-0")
    new = cluster_events.recreate(writing.kube, "w-0")
    reaping.turn(after=5.0)
    assert writing.kube.get("pods", "w-0")["metadata"]["uid"] == new
    assert "deletionTimestamp" not in writing.kube.get("pods", "w-0")["metadata"]
    assert (reaping.counts.reaps, reaping.counts.failures) == ([], 0)
    reaping.turn(after=5.0)
    assert writing.kube.counts.of("delete", "pods") == 1


def test_one_that_somebody_else_deleted_is_fine(writing: Writing) -> None:
    reaping = Reaping(writing, "w-0")
    writing.kube.remove("pods", "w-0")
    reaping.turn(after=5.0)
    assert (reaping.counts.reaps, reaping.counts.failures) == ([], 0)


def test_without_the_right_it_says_so_once_and_goes_on_when_it_is_given(
    kube: KubeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writing = Writing(kube, tmp_path, "rbac.yaml")
    reaping = Reaping(writing, "w-0", "w-1")
    for _ in range(3):
        reaping.turn(after=FORBIDDEN_PAUSE)
    assert kube.counts.of("delete", "pods") == 3
    assert sum("hvd-elastic manifest reap gives the right" in each.message for each in caplog.records) == 1
    assert sum("reaping pod" in each.message for each in caplog.records) == 1
    assert reaping.names() == ["w-0", "w-1"]
    Writing(kube, tmp_path, "reap.yaml").close()
    reaping.turn(after=FORBIDDEN_PAUSE)
    assert reaping.names() == []
    writing.close()


@pytest.mark.parametrize("refusal", [WEBHOOK, statuses.internal("failed calling webhook")], ids=["403", "500"])
def test_one_pod_that_is_refused_holds_up_no_other(
    writing: Writing, caplog: pytest.LogCaptureFixture, refusal: statuses.ApiError
) -> None:
    plan = writing.kube.faults.on("delete", "pods", times=1).answer(refusal)
    reaping = Reaping(writing, "w-0", "w-1")
    reaping.turn(after=5.0)
    assert plan.fired == 1
    assert reaping.names() == ["w-0"]
    assert "pod default/w-0 is not deleted for now: the API server says" in caplog.text
    assert "hvd-elastic manifest" not in caplog.text
    reaping.turn(after=FORBIDDEN_PAUSE)
    assert reaping.names() == []
    assert (reaping.counts.reaps, reaping.counts.failures) == (["failed", "failed"], 1)


@pytest.mark.parametrize(
    "refusal", [statuses.unauthorized(), statuses.too_many_requests("slowly", retry_after=1)], ids=["401", "429"]
)
def test_a_server_that_is_busy_or_knows_us_not_is_left_alone(writing: Writing, refusal: statuses.ApiError) -> None:
    plan = writing.kube.faults.on("delete", "pods").answer(refusal)
    reaping = Reaping(writing, "w-0", "w-1")
    reaping.turn(after=5.0)
    asked = plan.fired
    reaping.turn()
    assert plan.fired == asked
    assert reaping.counts.failures == 1
    plan.stop()
    reaping.turn(after=60.0)
    assert reaping.names() == []


def test_a_shutdown_that_is_called_off_while_others_are_deleted_deletes_nobody_more(writing: Writing) -> None:
    reaping = Reaping(writing)
    for name in ("w-0", "w-1", "w-2"):
        reaping.worker(name)
    said = {**bodies.condition("Ready", False), "message": "node is shutting down"}
    writing.kube.change("nodes", "node-0", {"status": {"conditions": [said]}})
    reaping.look()
    reaping.turn()

    def reaped(cause: str) -> None:
        reaping.counts.reaps.append(cause)
        writing.kube.change("nodes", "node-0", {"status": {"conditions": [bodies.condition("Ready")]}})
        reaping.look()

    reaping.counts.reaped = reaped  # type: ignore[method-assign]
    reaping.turn(after=2.0)
    for _ in range(3):
        reaping.turn(after=10.0)
    assert reaping.counts.reaps == ["shutdown"]
    assert writing.kube.counts.of("delete", "pods") == 1


@pytest.mark.parametrize("settled", [False, True])
def test_no_pod_is_deleted_by_labels_alone_while_the_job_may_become_readable(
    writing: Writing, tmp_path: Path, settled: bool
) -> None:
    other = writing.kube.put("pods", bodies.pod("w-0", owner=("MPIJob", "other", "another-uid")))
    cluster_events.fail(writing.kube, "w-0")
    verdict = Verdict(pod_view(writing.kube.get("pods", "w-0")), Grade.UNFIT, "pod has failed")
    picture = SimpleNamespace(
        selection=Selection((verdict,)),
        damping=DampingResult(DampingState(), Observation(HostSet(()))),  # by its labels it is the job's
    )
    source: Any = SimpleNamespace(evaluation=picture, nodes=None, job=None, job_settled=settled)
    settings = KubernetesSettings(job="digits", kubeconfig=writing.kube.kubeconfig(tmp_path / "of-daemon"), reap=True)
    parts = KubeParts(settings, metrics=Metrics(writing.clock), clock=writing.clock)
    parts.source = source
    made = parts.writers()
    (reaper,) = (each for each in made if isinstance(each, Reaper))
    reaper.turn()
    writing.clock.advance(60.0)
    reaper.turn()
    there = [each["metadata"]["uid"] for each in writing.kube.all("pods")]
    assert there == ([] if settled else [other["metadata"]["uid"]])
    for each in made:
        each.stop()


OVER = {
    "completionTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "Succeeded", "status": "True", "reason": "MPIJobSucceeded"}],
}


def test_failed_pods_stay_if_the_job_finished_after_it_was_read_and_it_is_read_once(writing: Writing) -> None:
    reaping = Reaping(writing, "w-0", known=True)
    writing.kube.change("mpijobs", "digits", {"status": OVER})
    asked = writing.kube.counts.of("get", "mpijobs")
    for _ in range(4):
        reaping.turn(after=5.0)
        reaping.look()
    assert reaping.names() == ["w-0"]
    assert writing.kube.counts.of("get", "mpijobs") == asked + 1
    assert writing.kube.counts.of("delete", "pods") == 0


def test_if_the_job_goes_on_failed_pods_are_deleted_after_one_read_of_it(writing: Writing) -> None:
    reaping = Reaping(writing, "w-0", "w-1", known=True)
    asked = writing.kube.counts.of("get", "mpijobs")
    reaping.turn(after=5.0)
    assert reaping.names() == []
    assert writing.kube.counts.of("get", "mpijobs") == asked + 1


@pytest.mark.parametrize("over", [False, True])
def test_the_daemon_asks_for_the_very_job_that_it_follows(writing: Writing, tmp_path: Path, over: bool) -> None:
    job = JobView(uid=OWNER[2])
    writing.kube.put("pods", bodies.pod("w-0", owner=OWNER))
    cluster_events.fail(writing.kube, "w-0")
    metadata = {"name": "digits", "uid": OWNER[2]}
    body = {**bodies.mpi_job("digits"), "metadata": metadata, **({"status": OVER} if over else {})}
    writing.kube.put("mpijobs", body)
    verdict = Verdict(pod_view(writing.kube.get("pods", "w-0")), Grade.UNFIT, "pod has failed")
    picture = SimpleNamespace(
        selection=Selection((verdict,)), damping=DampingResult(DampingState(), Observation(HostSet(())))
    )
    source: Any = SimpleNamespace(evaluation=picture, nodes=None, job=job, job_settled=True)
    kubeconfig = writing.kube.kubeconfig(tmp_path / "of-daemon")
    settings = KubernetesSettings(job="digits", kubeconfig=kubeconfig, reap=True, events=False)
    parts = KubeParts(settings, metrics=Metrics(writing.clock), clock=writing.clock)
    parts.source = source
    (reaper,) = parts.writers()
    reaper.turn()
    writing.clock.advance(5.0)
    reaper.turn()
    assert [each["metadata"]["name"] for each in writing.kube.all("pods")] == (["w-0"] if over else [])
    reaper.stop()


@pytest.mark.parametrize(("refusal", "stays"), [(403, False), (500, False), (404, True)])
def test_if_the_job_cannot_be_read_the_last_state_holds_unless_it_is_deleted(
    writing: Writing, refusal: int, stays: bool
) -> None:
    reaping = Reaping(writing, "w-0", known=True)
    writing.kube.faults.on("get", "mpijobs").answer(statuses.ApiError(statuses.status(refusal, "No", "no")))
    reaping.turn(after=5.0)
    assert reaping.names() == (["w-0"] if stays else [])


def test_a_pod_of_a_node_that_shuts_down_has_its_grace_and_the_job_is_not_read_for_it(writing: Writing) -> None:
    reaping = Reaping(writing, known=True)
    reaping.worker("w-0")
    said = {**bodies.condition("Ready", False), "message": "node is shutting down"}
    writing.kube.change("nodes", "node-0", {"status": {"conditions": [said]}})
    asked = writing.kube.counts.of("get", "mpijobs")
    reaping.look()
    reaping.turn()
    reaping.turn(after=2.0)
    assert writing.kube.get("pods", "w-0")["metadata"]["deletionGracePeriodSeconds"] == 30
    assert reaping.counts.reaps == ["shutdown"]
    assert writing.kube.counts.of("get", "mpijobs") == asked


def test_the_daemons_own_pod_is_never_deleted(writing: Writing) -> None:
    reaping = Reaping(writing, "w-0", "w-1", own=Key("default", "w-0"))
    reaping.turn(after=5.0)
    assert reaping.names() == ["w-0"]
