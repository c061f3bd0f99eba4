"""The terminal's line for each event."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.journal import EVENTS, Journal
from hvd_elastic_ext.launcher.cli.announcements import INFO_EVENTS, LINES, announce

WORLD = {"cause": "worker failed", "added": ["c"], "removed": ["b"], "size": 3, "hosts": {"a": 2, "c": 1}}
LISTED = {"number": 2, "hosts": {"a": 2, "b": 1}, "added": ["b"], "removed": ["c"], "grown": [], "shrunk": ["a"]}
ENDED = {"host": "b", "slot": 1, "code": 3, "reason": "crashed: exit code 3", "cause": "crashed"}
STRUCK = {"subject": "slot 1 of b", "host": "b", "reason": "crashed: exit code 3", "cause": "crashed"}
COOLS = {**STRUCK, "cooldown_s": 20.0, "host_blocked_s": 20.0}


@pytest.mark.parametrize(
    ("event", "fields", "line"),
    [
        ("published", {**LISTED, "number": 1}, "hosts: a:2, b:1"),
        ("published", LISTED, "hosts: a:2, b:1 (+b, -c, fewer slots: a)"),
        ("published", {**LISTED, "hosts": {}, "added": [], "shrunk": []}, ""),  # the driver reports if they are kept
        (
            "published",
            {**LISTED, "hosts": {}, "added": [], "shrunk": [], "departing": ["c"]},
            "hosts: none (-c)",
        ),
        ("published", {**LISTED, "added": ["a", "b"], "removed": [], "shrunk": []}, "hosts: a:2, b:1"),
        ("refused", {"reason": "hosts:1: no"}, "the host list is refused: hosts:1: no"),
        *(
            (
                "refused",
                {"reason": reason, "kept": True},
                "the host list is refused: hosts:1: no; keeping the hosts known so far until a list is accepted",
            )
            for reason in ("hosts:1: no", "hosts:1: no; keeping the hosts known so far")
        ),
        (
            "resized",
            {**WORLD, "downtime_s": 2.04, "steps_lost": 1},
            "world 7: size 3 (a:2, c:1); worker failed: +c -b; downtime 2.0 s; steps lost: 1",
        ),
        (
            "resized",
            {**WORLD, "cause": "start", "downtime_s": None, "steps_lost": None},
            "world 7: size 3 (a:2, c:1); start",
        ),
        (
            "resized",
            {**WORLD, "removed": ["a", "b"], "slots_before": {"a": 4}, "downtime_s": 2.04, "steps_lost": None},
            "world 7: size 3 (a:2, c:1); worker failed: +c -b, a: 4 to 2 slots; downtime 2.0 s",
        ),
        (
            "resized",
            {
                **WORLD,
                "cause": "hosts added",
                "hosts": {"a": 3},
                "added": ["a"],
                "removed": [],
                "slots_before": {"a": 2},
                "downtime_s": 0.04,
                "steps_lost": 0,
            },
            "world 7: size 3 (a:3); hosts added: a: 2 to 3 slots; downtime 0.0 s; steps lost: 0",
        ),
        (
            "resized",
            {**WORLD, "downtime_s": None, "steps_lost": 9, "lost_because": "d held step 9 and is gone"},
            "world 7: size 3 (a:2, c:1); worker failed: +c -b; downtime unknown; steps lost: 9; "
            "d held step 9 and is gone",
        ),
        (
            "resized",
            {
                **WORLD,
                "cause": "start",
                "downtime_s": None,
                "steps_lost": None,
                "without": ["b (blocked for 9 s more: x)"],
            },
            "world 7: size 3 (a:2, c:1); start; --min-np lets it start without b (blocked for 9 s more: x)",
        ),
        ("standby", {"host": "b", "slot": 1}, "b slot 1 starts a process beside the training"),
        ("standby", {"host": "b", "slot": 1, "trains": False}, "b slot 1 starts a process"),
        ("exited", {**ENDED, "rank": 2}, "rank 2 (b slot 1) has ended: crashed: exit code 3"),
        ("exited", ENDED, "b slot 1 has ended: crashed: exit code 3"),
        ("exited", {**ENDED, "code": 0, "cause": "done"}, ""),
        ("struck", {**STRUCK, "cooldown_s": 20.0}, "slot 1 of b is blocked for 20 s: crashed"),
        (
            "struck",
            {**COOLS, "host_blocked": "slot 1 of b: crashed: exit code 3"},
            "b is blocked for 20 s: slot 1 of b: crashed",
        ),
        (
            "struck",
            {
                **COOLS,
                "host_blocked": "host b: crashed: 2 slots failed within 30 s, the last: slot 1 of b: exit code 3",
            },
            "b is blocked for 20 s: crashed: 2 slots failed within 30 s, the last: slot 1 of b",
        ),
        (
            "struck",
            {**STRUCK, "cause": "never ready", "reason": "b[1] did not get ready in time", "cooldown_s": 20.0},
            "slot 1 of b is blocked for 20 s: b[1] did not get ready in time",
        ),
        ("struck", {**STRUCK, "cooldown_s": None}, ""),
        (
            "struck",
            {**STRUCK, "cooldown_s": None, "waived": "no other host may work, and b holds the newest commit"},
            "slot 1 of b is used again at once: no other host may work, and b holds the newest commit",
        ),
        ("cleared", {"host": "b", "reason": "by hand"}, "b may work again: by hand"),
        (
            "scaled",
            {"hosts": 1, "before": 2, "leaving": ["b"], "reason": "host 2 adds 30%"},
            "asks for 1 host instead of 2 (--autoscale): host 2 adds 30%; b may go",
        ),
        ("scale_recommended", {"hosts": 4, "reason": "because"}, "4 hosts recommended (--autoscale): because"),
        (
            "not_scaled",
            {"hosts": 4, "reason": "no answer"},
            "4 hosts cannot be requested now; the request is repeated: no answer",
        ),
        (
            "cleared",
            {"host": "b", "reason": "no other host may work, and b has the fewest strikes", "waived": True},
            "b is used again before its time is over: no other host may work, and b has the fewest strikes",
        ),
        (
            "struck",
            {
                **COOLS,
                "cause": "unreachable",
                "reason": "unreachable: no route",
                "host_blocked": "host b: unreachable: no route",
            },
            "b is blocked for 20 s: unreachable: no route",
        ),
        (
            "struck",  # slot 0 may work again earlier
            {**STRUCK, "cooldown_s": 20.0, "host_blocked": "each of its 2 slots is blocked", "host_blocked_s": 4.0},
            "b is blocked for 4 s: each of its 2 slots is blocked",
        ),
        (
            "blocked",
            {"host": "b", "for_s": None, "reason": "by hand"},
            "b is blocked until it is cleared: by hand",
        ),
        (
            "blocked",
            {"host": "b", "for_s": 600, "reason": "by hand"},
            "b is blocked for 600 s: by hand",
        ),
        ("finished", {"code": 0, "reason": "training is done"}, "the job ends: training is done"),
        ("finished", {"code": 1, "reason": "told as the error"}, ""),
        ("stepped", {"step": 3}, ""),
    ],
)
def test_an_event_is_announced_in_one_line(
    event: str, fields: dict[str, Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        Journal(io.StringIO(), SystemClock(), announce).record(event, generation=7, **fields)
    assert [record.getMessage() for record in caplog.records] == ([line] if line else [])


def test_what_somebody_may_have_to_act_on_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    announce("exited", 7, ENDED)
    announce("published", 7, LISTED)
    assert [record.levelname for record in caplog.records if record.name.endswith("announcements")][:1] == ["WARNING"]


def test_only_known_events_have_lines() -> None:
    assert INFO_EVENTS <= LINES.keys() <= EVENTS.keys()


def test_a_host_that_fails_for_the_same_reason_as_before_gets_a_line_with_the_count_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    words = "unreachable: ssh: connect to host b port 22: No route to host"
    fields = {"subject": "host b", "cause": "unreachable", "cooldown_s": 20.0, "host": "b", "reason": words}
    blocked = {"host_blocked": f"host b: {words} (2 strikes)", "host_blocked_s": 20.0}
    announce("struck", 0, {**fields, **blocked, "again": 2})
    announce("struck", 0, {**fields, "subject": "slot 1 of b", "cause": "crashed", "host_blocked": None, "again": 3})
    assert [record.getMessage() for record in caplog.records] == [
        "b is blocked for 20 s: unreachable, as before (2 strikes)",
        "slot 1 of b is blocked for 20 s: crashed, as before (3 strikes)",
    ]
