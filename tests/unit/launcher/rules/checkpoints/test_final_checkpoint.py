"""How long agents stay for the last checkpoint of a job that has succeeded."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.rules.checkpoints.final_checkpoint import ANSWER_S, DURATION_FACTOR, RETRY_S, decide


@pytest.mark.parametrize(
    ("waited_s", "saved", "answered", "durable_s", "waits", "why"),
    [
        (0.0, True, False, 5.0, False, ""),
        (RETRY_S - 1.0, False, True, 5.0, True, "the end of training is made durable"),
        (RETRY_S, False, True, 5.0, False, "it could not be written for 20 s"),
        (RETRY_S, False, False, 5.0, True, "the end of training is made durable"),
        (ANSWER_S, False, False, 5.0, False, "storage gave no answer for 300 s"),
        (ANSWER_S, False, False, ANSWER_S, True, "the end of training is made durable"),
        (DURATION_FACTOR * ANSWER_S, False, False, ANSWER_S, False, "storage gave no answer for 1200 s"),
    ],
)
def test_agents_stay_as_long_as_storage_may_still_take_it(
    waited_s: float, durable_s: float, why: str, *, saved: bool, answered: bool, waits: bool
) -> None:
    assert decide(waited_s, saved=saved, answered=answered, durable_s=durable_s) == (waits, why)
