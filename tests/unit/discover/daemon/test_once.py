"""One look: how long it waits for what, and what it prints."""

import json

import pytest

from discover.daemon.once import OnceLimits, OnceResult, Row, observe_once, render
from discover.sources import Observation, Unsettled
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Departure, Publication, from_json
from tests.support.clock import ManualClock

A = Observation(HostSet.of({"a": 1}))
AB = Observation(HostSet.of({"a": 1, "b": 2}), (Departure("c", "drained", 30.0),))
NOT_YET = Unsettled("pods", "not listed yet")
SHORT = OnceLimits(settle=0.2, listed=0.2, probes=0.2)


class Plain:
    """A source that shows one thing after the other, the last one for ever."""

    def __init__(self, *shows: object) -> None:
        self.shows = list(shows)
        self.started = self.stopped = 0

    def start(self, changed):
        self.started += 1

    def read(self):
        show = self.shows.pop(0) if len(self.shows) > 1 else self.shows[0]
        if isinstance(show, Exception):
            raise show
        return show

    def stop(self):
        self.stopped += 1


def row(what: str) -> Row:
    return Row("ns/w-0", what, "because", published=what == "usable")


class OfPods(Plain):
    """The same with pods; each look makes the next word of ``words`` true of the only one."""

    def __init__(self, *shows: object, words: tuple[str, ...] = ("usable",)) -> None:
        super().__init__(*shows)
        self.words = list(words)

    def start(self, changed):
        super().start(changed)
        self.changed = changed

    def read(self):
        assert self.started == 1, "it sees nothing before it was started"
        return super().read()

    def explain(self):
        self.changed()
        return (row(self.words.pop(0) if len(self.words) > 1 else self.words[0]),)


def look(source: Plain, **how: object) -> OnceResult:
    return observe_once(source, explain=getattr(source, "explain", None), **how)


def test_a_plain_source_is_looked_at_without_watching_it():
    source = Plain(NOT_YET, NOT_YET, A)
    assert look(source, clock=SystemClock()) == OnceResult(A)
    assert (source.started, source.stopped) == (0, 0)


def test_a_source_that_does_not_settle_is_given_up_with_its_reason():
    with pytest.raises(SourceUnavailable, match="pods: not listed yet"):
        look(Plain(NOT_YET), clock=SystemClock(), limits=SHORT)


@pytest.mark.parametrize("shows", [[A], [NOT_YET, A], [NOT_YET], [SourceUnavailable("pods", "refused")]])
def test_a_source_of_pods_is_stopped_whatever_it_saw(shows):
    source = OfPods(*shows)
    try:
        look(source, clock=SystemClock(), limits=SHORT)
    except SourceUnavailable:
        assert shows != [A]
    assert (source.started, source.stopped) == (1, 1)


def test_pods_that_wait_are_waited_for_and_then_seen():
    source = OfPods(A, A, AB, words=("waiting", "waiting", "usable"))
    seen = look(source, clock=ManualClock())  # its time stands still, so nothing but news can end this
    assert seen == OnceResult(AB, (row("usable"),))


def test_pods_that_go_on_waiting_are_shown_so():
    assert look(OfPods(A, words=("waiting",)), clock=SystemClock(), limits=SHORT) == OnceResult(A, (row("waiting"),))


def test_an_unsettled_source_does_not_undo_what_was_seen():
    source = OfPods(A, NOT_YET, words=("waiting", "usable"))
    assert look(source, clock=ManualClock()).observation == A


PUBLICATION = Publication("life", 1, AB.hosts, AB.departing)


def test_a_plain_source_prints_what_it_always_did():
    assert render(PUBLICATION, None, output="table", wall=0.0) == (
        "HOST  SLOTS\na         1\nb         2\ndeparting: c (drained)\n"
    )
    assert from_json(render(PUBLICATION, None, output="json", wall=0.0), where="out") == PUBLICATION
    assert "pods" not in json.loads(render(PUBLICATION, None, output="json", wall=0.0))


def test_pods_are_printed_with_the_publication_that_readers_know():
    text = render(PUBLICATION, (row("usable"),), output="json", wall=0.0)
    assert text.count("\n") == 1
    assert from_json(text, where="out") == PUBLICATION
    assert [pod["verdict"] for pod in json.loads(text)["pods"]] == ["usable"]
    assert "because" in render(PUBLICATION, (row("usable"),), output="table", wall=0.0)


def test_no_pods_at_all_are_said_to_be_none():
    assert render(PUBLICATION, (), output="table", wall=0.0) == "no pods match\n"
    assert json.loads(render(PUBLICATION, (), output="json", wall=0.0))["pods"] == []
