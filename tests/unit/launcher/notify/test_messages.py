"""Which events are worth a message, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvd_elastic_ext.core.journal import EVENTS
from hvd_elastic_ext.launcher.notify import messages
from hvd_elastic_ext.launcher.notify.messages import PERIOD_S, SHORT_S, TOPICS, Message, RateLimit, message_of

WORLD = {"cause": "hosts failed", "reason": "h3 is gone", "steps_lost": 0}
STRIKE = {"subject": "slot 0 of h3", "reason": "crashed: exit code 1"}


@pytest.mark.parametrize(
    ("event", "fields", "text"),
    [
        ("resized", {**WORLD, "steps_lost": 3}, "3 steps lost: h3 is gone"),
        ("resized", {**WORLD, "steps_lost": 1, "lost_because": "h3 held it"}, "1 step lost: h3 held it"),
        (
            "training_restarted",
            {"reason": "no host has a commit"},
            "training starts from scratch: no host has a commit",
        ),
        ("struck", {**STRIKE, "again": 3}, "slot 0 of h3 fails again and again: crashed: exit code 1"),
        ("stalled", {"reason": "rank 1 waits"}, "no progress: rank 1 waits"),
        ("slept", {"reason": "1 host, 2 needed"}, "sleeps: 1 host, 2 needed"),
        ("finished", {"code": 0, "reason": "training is done"}, "ended: training is done"),
        ("finished", {"code": 1, "reason": "too few hosts"}, "failed with 1: too few hosts"),
        ("finished", {"code": 130, "reason": "stopped by SIGINT"}, "stopped by SIGINT"),
        ("finished", {"code": 75, "reason": "too few"}, "asleep, and its launcher has ended: too few"),
    ],
)
def test_what_goes_wrong_or_ends_is_worth_a_message(event: str, fields: Mapping[str, Any], text: str) -> None:
    message = message_of(event, fields)
    assert message is not None
    assert message.text == text
    assert message.topic in TOPICS


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("resized", WORLD),
        ("resized", {**WORLD, "steps_lost": None}),
        ("struck", STRIKE),
        ("struck", {**STRIKE, "again": 2}),
        ("spawned", {}),
        ("stepped", {}),
    ],
)
def test_what_is_usual_or_costs_nothing_is_not(event: str, fields: Mapping[str, Any]) -> None:
    assert message_of(event, fields) is None


def test_a_message_is_of_an_event_that_the_journal_knows() -> None:
    assert messages._MADE.keys() <= EVENTS.keys()


def test_a_job_that_waits_long_for_its_minimum_is_worth_a_message() -> None:
    assert messages.waiting_message("2 hosts are missing", SHORT_S - 0.1) is None
    assert messages.waiting_message("waiting: 2 hosts are missing", 75.2) == Message(
        "waits", "", "waits for 75 s: 2 hosts are missing"
    )


def test_each_cause_passes_once_a_period_and_then_says_how_many_were_left_out() -> None:
    quota, first, other = (
        RateLimit(),
        Message("lost_steps", "crash", "3 steps lost"),
        Message("lost_steps", "notice", "2 steps lost"),
    )
    assert quota.passes(first, 5.0) == first
    assert quota.passes(first, 6.0) is None
    assert quota.passes(other, 6.0) == other
    assert quota.passes(first, 5.0 + PERIOD_S - 0.1) is None
    assert quota.passes(first, 5.0 + PERIOD_S) == first._replace(text="3 steps lost (2 more before)")
    assert quota.passes(first, 5.0 + 2 * PERIOD_S) == first
