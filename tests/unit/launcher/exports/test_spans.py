"""Spans from the lines of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.launcher.exports.spans import MAX_HOST_NAMES, Span, Spans

WALL = 1_000_000.0
"""Unix seconds at 0 of the monotonic clock."""


def line(at: float, event: str, generation: int = 1, **fields: Any) -> Record:
    return Record(WALL + at, at, generation, event, fields)


def spans(*records: Record) -> list[Span]:
    made = Spans()
    return [span for record in records for span in made.take(record)]


def told(span: Span) -> tuple[str, float, float]:
    return span.name, round(span.start - WALL, 6), round(span.end - WALL, 6)


def phases(span: Span) -> list[tuple[str, float, float]]:
    return [told(child) for child in span.children]


def start(at: float = 5.0, generation: int = 1, **fields: Any) -> Record:
    return line(at, "resized", generation, cause="start", added=["a", "b"], size=2, downtime_s=None, **fields)


BEGUN: Sequence[Record] = (
    line(0.0, "started", 0),
    line(0.5, "published", 0, added=["a", "b"]),
    line(1.0, "spawned", 0, host="a", slot=0),
    line(1.2, "spawned", 0, host="b", slot=0),
    line(4.0, "parked", 0, host="a", slot=0),
    start(),
    line(6.0, "synced"),
    line(6.5, "stepped", step=1),
)


def test_the_start_lasts_from_the_launchers_start_to_the_first_step() -> None:
    [span] = spans(*BEGUN)
    assert told(span) == ("resize", 0.0, 6.5)
    assert phases(span) == [
        ("resize.newcomers", 1.0, 4.0),
        ("resize.form", 0.0, 5.0),
        ("resize.sync", 5.0, 6.0),
        ("resize.first_step", 6.0, 6.5),
    ]


def test_a_crash_begins_the_resize_that_leaves_its_host_out_and_says_what_it_cost() -> None:
    crash = line(20.0, "exited", host="b", slot=0, cause="crashed", reason="exit code 1")
    resize = {"cause": "worker failed", "reason": "b failed", "removed": ["b"], "failed": {"b": 1}, "size": 1}
    cost = {"downtime_s": 2.5, "steps_lost": 3, "added": []}
    synced = line(22.0, "synced", 2)
    *_, span = spans(*BEGUN, crash, synced, line(21.0, "resized", 2, **resize, **cost))
    assert told(span) == ("resize", 19.5, 22.0)  # the last step came before the crash
    assert phases(span) == [
        ("resize.form", 19.5, 21.0),
        ("resize.sync", 21.0, 22.0),
        ("resize.first_step", 22.0, 22.0),
    ]
    assert span.attributes == {
        "hvd_elastic.cause": "worker failed",
        "hvd_elastic.reason": "b failed",
        "hvd_elastic.generation": 2,
        "hvd_elastic.size_before": 2,
        "hvd_elastic.size": 1,
        "hvd_elastic.downtime_s": 2.5,
        "hvd_elastic.steps_lost": 3,
        "hvd_elastic.hosts_removed": ["b"],
        "hvd_elastic.hosts_failed": ["b"],
    }


def test_newcomers_start_while_others_train_and_the_end_is_when_the_line_was_written() -> None:
    made = Spans()
    for record in (
        *BEGUN,
        line(100.0, "published", added=["c"]),
        line(101.0, "standby", host="c", slot=0),
        line(108.0, "parked", host="c", slot=0),
        line(110.2, "synced", 2),
    ):
        list(made.take(record))
    resized = line(110.0, "resized", 2, cause="hosts added", added=["c"], removed=[], size=3, downtime_s=0.25)
    [span] = made.take(resized, 110.3)
    assert told(span) == ("resize", 100.0, 110.3)
    assert phases(span) == [
        ("resize.newcomers", 101.0, 108.0),
        ("resize.form", 110.0, 110.0),
        ("resize.sync", 110.0, 110.2),
        ("resize.first_step", 110.2, 110.3),
    ]


def test_what_told_no_host_of_the_resize_does_not_begin_it() -> None:
    told_to_leave = line(20.0, "exited", host="b", slot=0, cause="told to leave")
    other = line(30.0, "published", added=["spare"])
    resized = line(50.0, "resized", 2, cause="hosts removed", added=[], removed=["b"], size=1, downtime_s=1.0)
    *_, span = spans(*BEGUN, told_to_leave, other, resized)
    assert told(span)[1] == 49.0


def test_a_start_without_a_step_ends_with_what_comes_next_and_each_start_is_told_once() -> None:
    slept, woke = line(9.0, "slept"), line(60.0, "woke", slept_s=51.0)
    again = start(64.0, 2)
    found = spans(*BEGUN[:7], slept, woke, again, line(66.0, "finished", 2, code=0))
    assert [told(span) for span in found] == [("resize", 0.0, 6.0), ("resize", 60.0, 64.0)]
    assert found[1].attributes["hvd_elastic.size_before"] == 0


def test_a_checkpoint_lasts_from_the_request_and_one_that_was_given_up_is_an_error() -> None:
    sealed = line(50.0, "sealed", step=7, bytes=100, path="/ck/7", seconds=2.0, since_asked_s=5.0)
    no_wait = line(60.0, "sealed", step=8, bytes=100, path="/ck/8", seconds=2.0)
    failed = line(70.0, "not_sealed", reason="disk full", again_s=10.0)
    first, second, third = spans(sealed, no_wait, failed)
    assert told(first) == ("checkpoint", 45.0, 50.0)
    assert phases(first) == [("checkpoint.wait", 45.0, 48.0), ("checkpoint.write", 48.0, 50.0)]
    assert first.attributes["hvd_elastic.step"] == 7
    assert phases(second) == [("checkpoint.write", 58.0, 60.0)]
    assert (told(third), third.error) == (("checkpoint", 70.0, 70.0), "disk full")


@pytest.mark.parametrize("value", [None, "x", -1, float("nan"), [], {}])
def test_a_line_of_any_content_makes_a_span_with_times_in_order(value: Any) -> None:
    keys = ("cause", "reason", "added", "removed", "failed", "size", "downtime_s", "steps_lost", "seconds", "host")
    for event in ("published", "exited", "spawned", "parked", "synced", "resized", "sealed", "not_sealed", "stepped"):
        for span in spans(*BEGUN, line(20.0, event, 2, **dict.fromkeys(keys, value)), line(30.0, "finished", 2)):
            assert all(each.start <= each.end for each in (span, *span.children))


def test_an_attribute_names_some_hosts_of_many() -> None:
    many = [f"h{number:04}" for number in range(1000)]
    *_, span = spans(*BEGUN, line(20.0, "resized", 2, cause="hosts added", added=many, size=1002, downtime_s=1.0))
    assert span.attributes["hvd_elastic.hosts_added"] == many[:MAX_HOST_NAMES]
