"""What is worth an Event, and how seldom."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from discover.actions.cluster_view import ClusterView
from discover.actions.event_policy import EventLimits, EventState, Message, PodNote, Reason, decide_events
from discover.selection.operators import JobView
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.hosts import Host
from tests.unit.discover import pod_and_node_views

LIMITS = EventLimits(gather=2.0, pause=30.0, long=300.0, names=3)


def verdict(name: str, grade: Grade = Grade.USABLE, reason: str = "ready", **more: object) -> Verdict:
    pod = pod_and_node_views.pod(name, **more)  # type: ignore[arg-type]
    return Verdict(pod, grade, reason, Host(name, 1, pod.uid))


def scene(verdicts: Iterable[Verdict], *, published: Iterable[str] | None = None, **more: object) -> ClusterView:
    """``published``: names of pods; by default all that are usable."""
    verdicts = tuple(verdicts)
    names = {each.pod.key.name for each in verdicts if each.grade is Grade.USABLE} if published is None else published
    hosts = {f"uid-{name}": Host(name, 1, f"uid-{name}") for name in names}
    return ClusterView(verdicts, hosts, **more)  # type: ignore[arg-type]


def usable(*names: str) -> list[Verdict]:
    return [verdict(name) for name in names]


class Teller:
    """Remembers from look to look, in virtual time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.told = EventState()
        self.again_at: float | None = None

    def look(self, scene: ClusterView, *, after: float = 0.0, reaped: Iterable[PodNote] = ()) -> list[Message]:
        self.now += after
        self.told, messages, self.again_at = decide_events(self.now, self.told, scene, reaped=reaped, limits=LIMITS)
        return list(messages)


@pytest.fixture
def writer() -> Teller:
    made = Teller()
    assert made.look(scene(usable("a", "b", "c", "d"))) == []
    return made


def test_the_first_look_tells_nothing() -> None:
    gone = verdict("a", Grade.LEAVING, "pod is being deleted")
    writer = Teller()
    assert writer.look(scene([gone, *usable("b")])) == []
    assert writer.look(scene([gone, *usable("b")]), after=60.0) == []


def test_hosts_that_leave_are_told_together_with_their_reasons(writer: Teller) -> None:
    leaving = [verdict(name, Grade.LEAVING, f"node of {name} is shutting down") for name in "ab"]
    assert writer.look(scene([leaving[0], *usable("b", "c", "d")])) == []
    assert writer.again_at == writer.now + 2.0
    assert writer.look(scene([*leaving, *usable("c", "d")]), after=1.0) == []
    (message,) = writer.look(scene([*leaving, *usable("c", "d")]), after=1.0)
    assert message.kind is Reason.LEAVING
    assert message.kind.type == "Normal"
    assert message.text == (
        "2 hosts are leaving, 2 left: a (node of a is shutting down), b (node of b is shutting down)"
    )


def test_hosts_that_are_lost_without_a_notice_are_a_warning(writer: Teller) -> None:
    silent = verdict("a", Grade.ABSENT, "node n sends no status")
    failed = verdict("b", Grade.UNFIT, "pod has failed (main: exit code 137)")
    writer.look(scene([silent, failed, *usable("d")]))  # and c's pod is not there any more
    (message,) = writer.look(scene([silent, failed, *usable("d")]), after=2.0)
    assert (message.kind, message.kind.type) == (Reason.LOST, "Warning")
    assert message.text.startswith("3 hosts are lost, 1 left: a (node n sends no status), b (pod has failed")
    assert message.text.endswith(", c (its pod is gone)")


def test_a_host_that_is_back_before_its_event_is_not_reported(writer: Teller) -> None:
    writer.look(scene([verdict("a", Grade.ABSENT, "node n sends no status"), *usable("b", "c", "d")]))
    assert writer.look(scene(usable("a", "b", "c", "d")), after=1.0) == []
    assert writer.look(scene(usable("a", "b", "c", "d")), after=60.0) == []


def test_many_losses_are_few_messages_that_name_a_few(writer: Teller) -> None:
    everybody = usable(*(f"w-{number:04}" for number in range(300)))
    for _ in range(2):
        writer.look(scene(everybody), after=60.0)
    messages = []
    for gone in range(1, 300):
        messages += writer.look(scene(everybody[gone:]), after=0.1)
    messages += writer.look(scene(everybody[-1:]), after=60.0)
    assert len(messages) <= 1 + 30 / LIMITS.pause + 1
    counts = [int(each.text.partition(" ")[0]) for each in messages]
    assert sum(counts) == 299  # nobody is left out
    assert all(each.text.count("(its pod is gone)") <= 3 for each in messages)
    assert " and " in messages[-1].text
    assert messages[-1].text.endswith(" more")


def test_messages_fit_into_an_event_however_long_the_reasons(writer: Teller) -> None:
    after = scene([verdict(name, Grade.LEAVING, "why " * 400) for name in "abcd"])
    writer.look(after)
    (message,) = writer.look(after, after=2.0)
    assert len(message.text) <= 1000
    assert message.text.endswith("… and 1 more")


# Pods that run and are not hosts


def test_a_pod_that_runs_for_long_and_is_no_host_is_told_once(writer: Teller) -> None:
    waiting = verdict("e")
    note = {waiting.pod.key: "e port 22: connection refused"}
    after = scene([*usable("a", "b", "c", "d"), waiting], published="abcd", notes=note)
    assert writer.look(after) == []
    assert writer.again_at == writer.now + 300.0
    assert writer.look(after, after=299.0) == []
    assert writer.look(after, after=1.0) == []
    (message,) = writer.look(after, after=2.0)
    assert (message.kind, message.kind.type) == (Reason.EXCLUDED, "Warning")
    assert message.text == "1 pod has run for 5 minutes and is not a host: e (ready; e port 22: connection refused)"
    assert writer.look(after, after=3000.0) == []
    assert writer.again_at is None


def test_a_pod_that_becomes_a_host_in_time_is_not_told(writer: Teller) -> None:
    writer.look(scene(usable("a", "b", "c", "d", "e"), published="abcd"))
    writer.look(scene(usable("a", "b", "c", "d", "e")), after=200.0)
    assert writer.look(scene(usable("a", "b", "c", "d", "e")), after=200.0) == []
    assert writer.again_at is None


@pytest.mark.parametrize(
    "excluded",
    [
        verdict("e", Grade.UNFIT, "pod waits for a node", phase="Pending", node=""),
        verdict("e", Grade.UNFIT, "pod has failed", phase="Failed"),
        verdict("e", Grade.UNFIT, "pod has ended", phase="Succeeded"),
        verdict("e", Grade.LEAVING, "node n has a spot interruption notice"),
        verdict("e", Grade.UNFIT, "pod is not this job's", owner=("MPIJob", "other", "another-uid")),
    ],
    ids=lambda each: each.reason,
)
def test_pods_that_do_not_run_leave_or_are_not_the_jobs_are_not_reported(excluded: Verdict) -> None:
    ours = [verdict(name, owner=("MPIJob", "job", "job-uid")) for name in "ab"]
    after = scene([*ours, excluded], job=JobView(uid="job-uid"))
    writer = Teller()
    for _ in range(4):
        assert writer.look(after, after=200.0) == []


def test_reaped_pods_are_told_with_their_causes(writer: Teller) -> None:
    after = scene(usable("a", "b", "c", "d"))
    assert writer.look(after, reaped=[PodNote("uid-x", "x", "pod was evicted")]) == []
    (message,) = writer.look(after, reaped=[PodNote("uid-y", "y", "pod has failed")], after=2.0)
    assert message.kind is Reason.REAPED
    assert message.text == (
        "deleted 2 pods, so that the job's controller makes new ones: x (pod was evicted), y (pod has failed)"
    )
