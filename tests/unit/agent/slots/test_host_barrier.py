"""Processes of a host that come later wait for one another in a barrier, and for nobody else."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.agent.slots.worker_link import Standing, released


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([], []),
        ([Standing(0, (0, 1), waits=True)], [0]),
        ([Standing(0, (0, 0)), Standing(1, (0, 1), waits=True)], []),
        ([Standing(0, (0, 1), waits=True), Standing(1, (0, 1), waits=True)], [0, 1]),
        ([Standing(0, (0, 2), waits=True), Standing(1, (0, 1), waits=True)], [1]),
        ([Standing(0, (0, 1), waits=True), Standing(1, (1, 0))], [0]),
        ([Standing(0, (1, 1), waits=True), Standing(1, (0, 5))], []),
        ([Standing(0, (0, 0)), Standing(1, (0, 0))], []),
    ],
)
def test_one_passes_when_all_that_come_later_have_come_so_far(processes: list[Standing], expected: list[int]) -> None:
    assert released(processes) == expected
