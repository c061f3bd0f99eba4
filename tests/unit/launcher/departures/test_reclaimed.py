"""Processes that must save their state before their host, or all hosts that training needs, are taken away."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.departures.notices import SAVE_S, reclaimed
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

A, B = ProcessId(Seat("a", 0), 1), ProcessId(Seat("b", 0), 1)


@pytest.mark.parametrize(
    ("leaves_in", "enough", "expected"),
    [
        ({}, True, set()),
        ({}, False, set()),
        ({"b": 100.0}, True, set()),
        ({"b": float("inf")}, True, set()),
        ({"b": SAVE_S}, True, {B}),
        ({"b": float("inf")}, False, {A, B}),
        ({"c": 1.0}, False, set()),
    ],
)
def test_all_are_told_where_too_few_would_be_left_else_those_whose_time_is_up(
    leaves_in: dict[str, float], enough: bool, expected: set[ProcessId]
) -> None:
    leaves_by = {host: 500.0 + seconds for host, seconds in leaves_in.items()}
    assert reclaimed([A, B], leaves_by, now=500.0, enough=enough) == expected
