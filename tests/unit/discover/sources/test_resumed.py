"""A source that shows nothing before it is known what was published earlier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from discover.app.decide import DaemonState, decide
from discover.common.source import Observation, Unsettled
from discover.selection.explain import Row
from discover.sources.resumed import ResumedSource
from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.core.hosts import Host, HostSet

SIGHT = Observation(HostSet.of({"a": 1, "b": 1, "c": 1}))


class Pods:
    """A source that shows one thing after the other, and notes what it is told before its first look."""

    def __init__(self, *shows: Observation | Unsettled | Exception) -> None:
        self.shows = list(shows)
        self.told: list[object] = []

    def start(self, changed: Callable[[], None]) -> None:
        self.told.append("start")

    def resume(self, earlier: HostSet) -> None:
        self.told.append(earlier.names)

    def read(self) -> Observation | Unsettled:
        self.told.append("read")
        show = self.shows.pop(0) if len(self.shows) > 1 else self.shows[0]
        if isinstance(show, Exception):
            raise show
        return show

    def explain(self) -> Sequence[Row]:
        return ()

    def still_there(self, host: Host) -> bool:
        return True

    def stop(self) -> None:
        self.told.append("stop")


class Memory:
    where = "configmap n/c"

    def __init__(self) -> None:
        self.problem = ""
        self.earlier: HostSet | None = None
        self.told: Callable[[], None] | None = None

    def recall(self, told: Callable[[], None]) -> None:
        self.told = told


def nothing() -> None:
    """Nothing."""


def test_before_it_is_known_what_was_published_the_source_is_not_read() -> None:
    pods, memory = Pods(SIGHT), Memory()
    source = ResumedSource(pods, memory)
    source.start(nothing)
    assert memory.told is nothing
    assert source.read() == Unsettled("configmap n/c", "what was published before is not known yet")
    memory.problem = "connection refused"
    assert source.read() == Unsettled("configmap n/c", "what was published before is not known yet: connection refused")
    assert pods.told == ["start"]
    source.stop()
    assert pods.told == ["start", "stop"]


def test_earlier_hosts_are_passed_on_once_before_the_first_look() -> None:
    pods, memory = Pods(SIGHT), Memory()
    source = ResumedSource(pods, memory)
    source.start(nothing)
    memory.earlier = HostSet.of({"c": 1, "a": 1})
    source.read()
    source.read()
    assert pods.told == ["start", ("c", "a"), "read", "read"]


@pytest.mark.parametrize("early", [Unsettled("there", "listing"), SourceUnavailable("there", "refused")])
def test_the_first_publication_has_the_order_of_the_earlier_run(early: Unsettled | SourceUnavailable) -> None:
    pods, memory = Pods(early, SIGHT), Memory()
    source = ResumedSource(pods, memory)
    memory.earlier = HostSet.of({"c": 1, "a": 1})
    if isinstance(early, SourceUnavailable):
        with pytest.raises(SourceUnavailable):
            source.read()
    else:
        assert source.read() is early
    decision, _ = decide(0.0, DaemonState("life"), source.read())
    assert decision.state.last is not None
    assert decision.state.last.hosts.names == ("c", "a", "b")
    assert source.read() is SIGHT


def test_hosts_of_an_earlier_run_do_not_count_after_the_first_publication() -> None:
    decision, _ = decide(0.0, DaemonState("life"), Observation(HostSet.of({"a": 1, "b": 1})))
    late = Observation(HostSet.of({"a": 1, "b": 1, "c": 1}), earlier=HostSet.of({"b": 1, "a": 1}))
    decision, _ = decide(1.0, decision.state, late)
    assert decision.state.last is not None
    assert decision.state.last.hosts.names == ("a", "b", "c")
