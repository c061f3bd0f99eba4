"""What is said about each event: the one place where it is compared word by word."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hvd_elastic_ext.core.events import (
    BAD,
    DONE,
    EVENTS,
    FAILED,
    INFO,
    OF_PROCESSES,
    OK,
    RESIZES,
    SLEEPS,
    STOPPED,
    WARN,
    EventKind,
    end_of,
)
from hvd_elastic_ext.launcher.health.causes import Cause

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
        (
            "shares",
            {"rows": [64, 32], "rows_before": [48, 48], "sample_s": [0.01, 0.02], "reason": "it is faster"},
            "shares of the global batch: 64 32 samples by rank, before 48 48: it is faster",
        ),
        (
            "shares",
            {"rows": list(range(10)), "reason": "x"},
            "shares of the global batch: 0 1 2 3 4 5 6 7 … samples by rank: x",
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
        ("fenced", {"host": "b", "reason": "nothing was heard"}, "b is cut off: nothing was heard"),
        ("fenced", {"host": "b", "slot": 0, "reason": "its process was silent"}, ""),  # the line of its end says that
        (
            "isolated",
            {"reason": "is this machine's link down?"},
            "is this machine's link down? No host is cut off for now",
        ),
        (
            "straggler",
            {"rank": 2, "reason": "2 s a step", "drained": True},
            "straggler: rank 2, 2 s a step; its slot is drained",
        ),
        (
            "training_restarted",
            {"number": 1, "reason": "no host has a commit"},
            "training starts from the beginning (time 1): no host has a commit",
        ),
        ("not_resized", {"cause": "hosts added", "reason": "no loop"}, "no loop"),
        ("checkpoint_skipped", {"host": "b", "reason": "a checksum"}, "b: skipped a checkpoint: a checksum"),
        (
            "resumed",
            {"step": 30, "call": 2, "path": "/x"},
            "training goes on after step 30, in call 2, with the checkpoint /x",
        ),
        (
            "resumed",
            {"step": 30, "call": None, "path": "/x"},
            "training goes on after step 30, with the checkpoint /x",
        ),
        (
            "sent",
            {"source": "a", "host": "b", "slot": 1, "step": 9, "reason": "only a[0] held it"},
            "step 9 went from a to b slot 1: only a[0] held it",
        ),
        ("woke", {"slept_s": 5.04, "reason": "3 slots may work"}, "awake again after 5.0 s: 3 slots may work"),
        ("finished", {"code": 0, "reason": "training is done"}, "the job ends: training is done"),
        ("finished", {"code": 1, "reason": "told as the error"}, ""),
        ("stepped", {"step": 3}, ""),
    ],
)
def test_the_terminal_has_one_line_about_an_event(event: str, fields: dict[str, Any], line: str) -> None:
    assert EVENTS[event].line({**fields, "generation": 7}) == line


def test_a_host_that_fails_for_the_same_reason_as_before_gets_a_line_with_the_count_only() -> None:
    words = "unreachable: ssh: connect to host b port 22: No route to host"
    fields = {"subject": "host b", "cause": "unreachable", "cooldown_s": 20.0, "host": "b", "reason": words}
    blocked = {"host_blocked": f"host b: {words} (2 strikes)", "host_blocked_s": 20.0}
    of_a_slot = {"subject": "slot 1 of b", "cause": "crashed", "host_blocked": None, "again": 3}
    assert [EVENTS["struck"].line({**fields, **more}) for more in ({**blocked, "again": 2}, of_a_slot)] == [
        "b is blocked for 20 s: unreachable, as before (2 strikes)",
        "slot 1 of b is blocked for 20 s: crashed, as before (3 strikes)",
    ]


LOST = {"cause": "worker failed", "reason": "h3 is gone", "steps_lost": 0}
STRIKE = {"subject": "slot 0 of h3", "reason": "crashed: exit code 1"}


@pytest.mark.parametrize(
    ("event", "fields", "text"),
    [
        ("resized", {**LOST, "steps_lost": 3}, "3 steps lost: h3 is gone"),
        ("resized", {**LOST, "steps_lost": 1, "lost_because": "h3 held it"}, "1 step lost: h3 held it"),
        ("resized", LOST, ""),
        ("resized", {**LOST, "steps_lost": None}, ""),
        (
            "training_restarted",
            {"reason": "no host has a commit"},
            "training starts from the beginning: no host has a commit",
        ),
        ("struck", {**STRIKE, "again": 3}, "slot 0 of h3 fails again and again: crashed: exit code 1"),
        ("struck", {**STRIKE, "again": 2}, ""),
        ("struck", STRIKE, ""),
        ("stalled", {"reason": "rank 1 waits"}, "no progress: rank 1 waits"),
        ("slept", {"reason": "1 host, 2 needed"}, "sleeps: 1 host, 2 needed"),
        ("finished", {"code": 0, "reason": "training is done"}, "ended: training is done"),
        ("finished", {"code": 1, "reason": "too few hosts"}, "failed with 1: too few hosts"),
        ("finished", {"code": 130, "reason": "stopped by SIGINT"}, "stopped by SIGINT"),
        ("finished", {"code": 75, "reason": "too few"}, "asleep, and its launcher has ended: too few"),
    ],
)
def test_what_goes_wrong_or_ends_is_worth_a_message_and_what_costs_nothing_is_not(
    event: str, fields: dict[str, Any], text: str
) -> None:
    notify = EVENTS[event].notify
    assert notify is not None
    assert notify.text(fields) == text


def test_no_two_events_have_one_title_and_no_two_counters_one_name() -> None:
    titles = [kind.title for kind in (*EVENTS.values(), *RESIZES.values())]
    counters = [count.name for kind in EVENTS.values() for count in kind.counts]
    assert len(set(titles)) == len(titles)
    assert len(set(counters)) == len(counters)


@pytest.mark.parametrize("kind", [*EVENTS.values(), *RESIZES.values()], ids=lambda kind: kind.name)
def test_an_entry_is_complete(kind: EventKind) -> None:
    assert kind.meaning[0].islower()
    assert not kind.meaning.endswith(".")
    assert kind.level in (OK, INFO, WARN, BAD)
    assert kind.level == WARN or not kind.attention
    assert kind.has_rows or kind.name in RESIZES or not kind.remedies
    fields = re.findall(r"\w+", kind.fields)
    assert {count.field for count in kind.counts} - {None} <= set(fields)
    assert kind.hosts == ("host",) or set(kind.hosts) <= set(fields)


def test_the_causes_that_a_line_leaves_out_are_those_of_the_launcher() -> None:
    assert {str(cause) for cause in Cause} >= OF_PROCESSES


def test_signals_that_stop_a_job_are_no_failure() -> None:
    assert [end_of(code) for code in (0, 75, 129, 130, 143, 1, 137, None)] == [
        *(DONE, SLEEPS, STOPPED, STOPPED, STOPPED),
        *(FAILED, FAILED, FAILED),
    ]
