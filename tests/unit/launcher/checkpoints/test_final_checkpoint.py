"""How long agents stay for the last checkpoint of a job that has succeeded."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.checkpoints.save_then_stop import (
    DURATION_FACTOR,
    STORAGE_ANSWER_S,
    WRITE_TRIES_S,
    agents_needed,
)


@pytest.mark.parametrize(
    ("waited_s", "saved", "answered", "durable_s", "waits", "why"),
    [
        (0.0, True, False, 5.0, False, ""),
        (WRITE_TRIES_S - 1.0, False, True, 5.0, True, "the end of training is made durable"),
        (WRITE_TRIES_S, False, True, 5.0, False, "it could not be written for 20 s"),
        (WRITE_TRIES_S, False, False, 5.0, True, "the end of training is made durable"),
        (STORAGE_ANSWER_S, False, False, 5.0, False, "storage did not answer for 300 s"),
        (STORAGE_ANSWER_S, False, False, STORAGE_ANSWER_S, True, "the end of training is made durable"),
        (
            DURATION_FACTOR * STORAGE_ANSWER_S,
            False,
            False,
            STORAGE_ANSWER_S,
            False,
            "storage did not answer for 1200 s",
        ),
    ],
)
def test_agents_stay_as_long_as_storage_may_still_take_it(
    waited_s: float, durable_s: float, why: str, *, saved: bool, answered: bool, waits: bool
) -> None:
    assert agents_needed(waited_s, saved=saved, answered=answered, durable_s=durable_s) == (waits, why)
