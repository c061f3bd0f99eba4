"""Which pods are worth an Event, and how seldom."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from discover.pods.operators import JobView
from discover.reap.cluster_view import ClusterView
from discover.reap.events import EventLimits, EventState, decide_event
from discover.verdicts.verdicts import Grade, Verdict
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

    def look(self, scene: ClusterView, *, after: float = 0.0) -> str:
        self.now += after
        self.told, message, self.again_at = decide_event(self.now, self.told, scene, limits=LIMITS)
        return message


@pytest.fixture
def writer() -> Teller:
    made = Teller()
    assert made.look(scene(usable("a", "b", "c", "d"))) == ""
    assert made.again_at is None
    return made


def test_a_pod_that_runs_for_long_and_is_not_a_host_is_told_once(writer: Teller) -> None:
    waiting = verdict("e")
    note = {waiting.pod.key: "e port 22: connection refused"}
    after = scene([*usable("a", "b", "c", "d"), waiting], published="abcd", notes=note)
    assert writer.look(after) == ""
    assert writer.again_at == writer.now + 302.0
    assert writer.look(after, after=300.0) == ""
    assert writer.look(after, after=2.0) == (
        "1 pod has run for 5 minutes and is not a host: e (ready; e port 22: connection refused)"
    )
    assert writer.look(after, after=3000.0) == ""
    assert writer.again_at is None


def test_a_pod_that_becomes_a_host_in_time_is_not_told(writer: Teller) -> None:
    writer.look(scene(usable("a", "b", "c", "d", "e"), published="abcd"))
    writer.look(scene(usable("a", "b", "c", "d", "e")), after=200.0)
    assert writer.look(scene(usable("a", "b", "c", "d", "e")), after=200.0) == ""
    assert writer.again_at is None


def test_pods_that_come_together_are_one_message_and_messages_have_a_distance(writer: Teller) -> None:
    everybody = usable(*(f"w-{number:03}" for number in range(300)))
    messages = []
    for started in range(1, 300):
        messages.append(writer.look(scene(everybody[:started], published=()), after=0.1))
    for _ in range(400):
        messages.append(writer.look(scene(everybody[:299], published=()), after=1.0))
    told = [each for each in messages if each]
    assert 1 < len(told) <= 3
    assert sum(int(each.partition(" ")[0]) for each in told) == 299  # nobody is left out
    assert all(each.count("(ready)") == LIMITS.names for each in told)
    assert all(" more" in each for each in told)


def test_messages_fit_into_an_event_however_long_the_reasons(writer: Teller) -> None:
    after = scene([verdict(name, Grade.UNFIT, "why " * 400) for name in "abcd"])
    writer.look(after)
    message = writer.look(after, after=302.0)
    assert len(message) <= 1000
    assert message.startswith("4 pods have run for 5 minutes and are not hosts: a (why why")
    assert message.endswith("… and 1 more")


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
        assert writer.look(after, after=200.0) == ""
