"""An error with the same text on every rank is shown once; all other lines pass at once."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.launcher.job.output import MAX_HELD_LINES, Console, Outlets, Repeats
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

NAME = f"{StateError.__module__}.{StateError.__qualname__}"
SWAPPED = [
    "Traceback (most recent call last):\n",
    '  File "train.py", line 5, in <module>\n',
    "    state = elastic.TorchState(o, m)\n",
    f"{NAME}: TorchState(…): model and optimizer are swapped\n",
]
THEIRS = [*SWAPPED[:-1], "ValueError: no such file\n"]


def process(slot: int, life: int = 1) -> ProcessId:
    return ProcessId(Seat("a", slot), life)


def shown(repeats: Repeats, life: ProcessId, lines: list[str]) -> list[str]:
    return [each for line in lines for each in repeats.next(life, line)]


@pytest.mark.parametrize("lines", [SWAPPED, SWAPPED[-1:]], ids=["with the script's line", "in one line"])
def test_the_same_mistake_on_eight_ranks_is_shown_once(lines: list[str]) -> None:
    repeats = Repeats()
    assert shown(repeats, process(0), lines) == lines
    for slot in range(1, 8):
        assert shown(repeats, process(slot), lines) == []


def test_ranks_that_write_at_the_same_time_are_told_apart() -> None:
    repeats = Repeats()
    found = [each for line in SWAPPED for slot in range(3) for each in repeats.next(process(slot), line)]
    assert found == SWAPPED


def test_after_a_restart_it_is_shown_again_by_whoever_comes_first() -> None:
    repeats = Repeats()
    for life in (1, 2, 3):
        found = [shown(repeats, process(slot, life), SWAPPED) for slot in ((life + n) % 3 for n in range(3))]
        assert found == [SWAPPED, [], []]


def test_errors_that_are_not_ours_and_other_words_are_shown_for_each_rank() -> None:
    repeats = Repeats()
    for slot in range(3):
        own = [*SWAPPED[:-1], f"{NAME}: rank {slot} differs\n"]
        assert shown(repeats, process(slot), THEIRS) == THEIRS
        assert shown(repeats, process(slot), own) == own


def test_a_traceback_that_is_cut_off_or_very_long_is_shown() -> None:
    repeats = Repeats()
    assert shown(repeats, process(0), SWAPPED[:2]) == []
    assert repeats.rest(process(0)) == SWAPPED[:2]
    assert shown(repeats, process(0), [*SWAPPED[:2], *SWAPPED]) == [*SWAPPED[:2], *SWAPPED]
    long = [SWAPPED[0], *["  frame\n"] * (3 * MAX_HELD_LINES)]
    assert shown(repeats, process(1), long) == long


def test_the_terminal_has_it_once_and_the_files_of_all_ranks_have_it(tmp_path: Path) -> None:
    terminal = io.StringIO()
    with Outlets(io.StringIO(), terminal) as outlets:
        console = Console(outlets, tmp_path, timestamps=False, rank=lambda life: life.seat.slot)
        for slot in range(3):
            console.take(process(slot), "stderr", "".join(SWAPPED))
        console.take(process(1), "stderr", SWAPPED[0])
        console.close()
    assert terminal.getvalue() == "".join(f"[0]<stderr>:{line}" for line in SWAPPED) + f"[1]<stderr>:{SWAPPED[0]}"
    for slot in range(3):
        assert (tmp_path / f"rank.{slot}" / "stderr").read_text().startswith("".join(SWAPPED))
