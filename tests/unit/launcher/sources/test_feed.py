"""The newest accepted host list."""

import io
import json
import logging
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import HOSTS_KEPT, BadHosts, SourceUnavailable
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Departure, Publication
from hvd_elastic_ext.launcher.sources.hosts import HostFeed
from tests.support.clock import ManualClock


def make() -> tuple[HostFeed, io.StringIO]:
    sink = io.StringIO()
    return HostFeed(Journal(sink, ManualClock())), sink


def lines(sink: io.StringIO, event: str) -> list[dict[str, Any]]:
    return [entry for entry in map(json.loads, sink.getvalue().splitlines()) if entry["event"] == event]


def publication(sequence: int, source: str = "file", **slots: int) -> Publication:
    return Publication(source, sequence, HostSet.of(slots))


def test_a_late_publication_changes_nothing() -> None:
    feed, sink = make()
    feed.offer(publication(2, a=1))
    feed.listener = lambda: pytest.fail("it is not news")
    feed.offer(publication(1, a=1, b=1))
    assert feed.hosts().names == ("a",)
    assert len(lines(sink, "published")) == 1


def test_a_new_life_of_the_source_wins_with_a_lower_sequence() -> None:
    feed, _ = make()
    feed.offer(publication(9, a=1))
    feed.offer(publication(1, "file, restarted", a=1, b=1))
    assert feed.hosts().names == ("a", "b")


def test_hosts_keep_their_seniority_whatever_order_they_are_published_in() -> None:
    feed, _ = make()
    feed.offer(publication(1, m=1, z=1))
    feed.offer(publication(2, b=1, a=1, z=1, m=1))
    assert feed.hosts().names == ("m", "z", "b", "a")


def test_hosts_that_come_together_stand_in_the_order_of_their_list() -> None:
    feed, _ = make()
    feed.offer(publication(1, b=1, a=1))
    assert feed.hosts().names == ("b", "a")


def test_a_repeated_list_is_not_news() -> None:
    feed, sink = make()
    feed.offer(publication(1, a=1))
    feed.listener = lambda: pytest.fail("it is not news")
    feed.offer(publication(2, a=1))
    assert len(lines(sink, "published")) == 1


def test_a_new_price_alone_is_passed_on_without_a_line_in_the_journal() -> None:
    feed, sink = make()
    feed.offer(Publication("k8s", 1, HostSet((Host("a", 1, price="1"),))))
    heard: list[list[str]] = []
    feed.listener = lambda: heard.append([host.price for host in feed.hosts()])
    feed.offer(Publication("k8s", 2, HostSet((Host("a", 1, price="2.5"),))))
    assert heard == [["2.5"]]
    assert len(lines(sink, "published")) == 1


def test_a_refused_list_takes_no_host_away_and_is_journalled_once() -> None:
    feed, sink = make()
    feed.offer(publication(1, a=1))
    for _ in range(3):
        feed.refuse(BadHosts("hosts", 2, "host 'b' has 0 slots"))
    assert feed.hosts().names == ("a",)
    assert feed.reason == "hosts:2: host 'b' has 0 slots"
    assert [entry["reason"] for entry in lines(sink, "refused")] == ["hosts:2: host 'b' has 0 slots"]


def test_a_good_list_ends_a_refusal_and_the_same_fault_is_then_news_again() -> None:
    feed, sink = make()
    for sequence in (1, 2):
        feed.refuse(BadHosts("hosts", 1, "bad"))
        feed.offer(publication(sequence, a=sequence))
        assert feed.reason is None
    assert len(lines(sink, "refused")) == 2


def test_after_a_refusal_a_list_of_the_same_hosts_is_told_to_be_accepted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    feed, sink = make()
    for sequence in (1, 2):
        feed.offer(publication(sequence, a=1))
    assert caplog.messages == []
    feed.refuse(BadHosts("hosts", 1, "bad"))
    heard: list[str | None] = []
    feed.listener = lambda: heard.append(feed.reason)
    for sequence in (3, 4):
        feed.offer(publication(sequence, a=1))
    assert heard == [None]
    assert caplog.messages == ["the host list is accepted again; it names the same hosts as before"]
    assert lines(sink, "refused")[-1]["kept"] is True


def test_a_recreated_host_is_removed_and_added_at_once() -> None:
    feed, sink = make()
    feed.offer(Publication("k8s", 1, HostSet((Host("a", 1, uid="1"),))))
    feed.offer(Publication("k8s", 2, HostSet((Host("a", 1, uid="2"),))))
    entry = lines(sink, "published")[-1]
    assert (entry["added"], entry["removed"]) == (["a"], ["a"])


def test_a_departure_alone_is_news() -> None:
    feed, sink = make()
    feed.offer(publication(1, a=1, b=1))
    feed.offer(Publication("file", 2, HostSet.of({"a": 1}), (Departure("b", "spot notice", 1.0),)))
    assert lines(sink, "published")[-1]["departing"] == ["b"]


def test_only_where_hosts_are_known_a_source_that_fails_leaves_them() -> None:
    feed, sink = make()
    feed.refuse(SourceUnavailable("here", "no answer"))
    assert feed.reason == "here: no answer"
    feed.offer(publication(1, a=1))
    feed.refuse(SourceUnavailable("here", "no answer"))
    assert feed.reason == f"here: no answer{HOSTS_KEPT}"
    assert [line["reason"] for line in lines(sink, "refused")][-1] == feed.reason


@pytest.mark.parametrize("keeps", [True, False])
def test_a_refusal_after_an_empty_list_says_whether_earlier_hosts_stay_in_use(keeps: bool) -> None:
    feed, sink = make()
    feed.keeps = keeps
    feed.offer(publication(1, a=1))
    feed.offer(publication(2))
    feed.refuse(SourceUnavailable("hosts", "does not exist"))
    assert feed.reason == "hosts: does not exist" + (HOSTS_KEPT if keeps else "")
    assert lines(sink, "refused")[-1].get("kept", False) is keeps
