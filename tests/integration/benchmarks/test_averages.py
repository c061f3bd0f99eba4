"""The tables of averages every H steps: they work, and little is sent."""

from __future__ import annotations

import sys

import pytest

from benchmarks.scripts import averages


def test_the_script_prints_a_row_for_each_kind_and_number_of_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seeds", "1", "--rank-steps", "8", "--every", "2", "4", "--tasks", "digits"]
    monkeypatch.setattr(sys, "argv", ["averages", *words])
    averages.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| LocalSGD", "| DiLoCo"))]
    assert [row.split(" |")[0] for row in rows] == [
        "| LocalSGD, H = 2", "| LocalSGD, H = 4", "| DiLoCo, H = 2", "| DiLoCo, H = 4"
    ]  # fmt: skip


@pytest.mark.parametrize("task", averages.TASKS)
def test_with_sixteen_steps_from_one_average_to_the_next_a_sixteenth_is_sent(task: str) -> None:
    ours, synchronous = averages.bytes_a_step(averages.TASKS[task](), 16)
    assert ours <= synchronous / 16 + 20, "and a table with a row of small numbers for each rank"
