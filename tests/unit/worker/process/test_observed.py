"""What a script observes for ``--autoscale``."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.process.link import MAX_OBSERVED, Status


def test_values_stay_until_they_are_told_again() -> None:
    status = Status()
    status.observe({"queue": 3, "noise_scale": 1.5})
    status.observe({"queue": 4})
    assert status.observed == {"queue": 4.0, "noise_scale": 1.5}


@pytest.mark.parametrize("value", [math.nan, math.inf, "many", None, []])
def test_what_is_not_a_finite_number_is_refused_and_nothing_changes(value: Any) -> None:
    status = Status()
    status.observe({"queue": 3})
    with pytest.raises(UsageError, match="give a finite number"):
        status.observe({"queue": value})
    assert status.observed == {"queue": 3.0}


def test_there_is_a_limit_to_what_each_heartbeat_carries() -> None:
    status = Status()
    status.observe({f"name{number}": 0.0 for number in range(MAX_OBSERVED)})
    with pytest.raises(UsageError, match="too many"):
        status.observe({"one_more": 0.0})
