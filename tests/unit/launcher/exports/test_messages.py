"""Which events are worth a message, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvd_elastic_ext.launcher.exports import webhook
from hvd_elastic_ext.launcher.exports.webhook import PERIOD_S, SHORT_S, Message, RateLimit, message_of

WORLD = {"cause": "worker failed", "reason": "h3 is gone", "steps_lost": 0}


@pytest.mark.parametrize(
    ("event", "fields", "message"),
    [
        ("resized", {**WORLD, "steps_lost": 3}, Message("lost_steps", "worker failed", "3 steps lost: h3 is gone")),
        ("resized", WORLD, None),
        ("stepped", {}, None),
    ],
)
def test_what_costs_something_is_worth_a_message(
    event: str, fields: Mapping[str, Any], message: Message | None
) -> None:
    assert message_of(event, fields) == message


def test_a_job_that_waits_long_for_its_minimum_is_worth_a_message() -> None:
    assert webhook.waiting_message("2 hosts are missing", SHORT_S - 0.1) is None
    assert webhook.waiting_message("waiting: 2 hosts are missing", 75.2) == Message(
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
