"""How often a wait is told."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hvd_elastic_ext.core.pace import GAP_S, Lines, is_due, next_at, reason_of


def told(seconds: int, *texts: str, most_s: float = 60.0, first_s: float = 4.0) -> list[int]:
    """When lines come in a wait with a look each second, for each of ``texts`` in turn."""
    lines = Lines(0.0, first_s=first_s)
    return [now for now in range(seconds + 1) if lines.due(float(now), texts[now % len(texts)], most_s=most_s)]


def test_a_wait_of_ten_minutes_gives_thirteen_lines() -> None:
    assert told(600, "for a host") == [4, 10, 30, 60, *range(120, 601, 60)]


def test_lines_that_come_late_do_not_shift_those_after_them() -> None:
    assert next_at(100.0, None) == 104.0
    assert next_at(100.0, 105.5) == 110.0
    assert next_at(100.0, 111.9) == 130.0
    assert next_at(100.0, 161.0) == 220.0
    assert not is_due(100.0, 161.0, 219.9)
    assert is_due(100.0, 161.0, 220.0)


def test_a_line_shortly_before_another_one_replaces_it() -> None:
    assert next_at(0.0, 28.0) == 60.0
    assert next_at(0.0, 118.0) == 180.0


@pytest.mark.parametrize(("most_s", "number"), [(4.0, 150), (20.0, 32), (60.0, 13), (300.0, 7)])
def test_the_longest_time_between_two_lines_can_be_chosen(most_s: float, number: int) -> None:
    found = told(600, "for a host", most_s=most_s)
    assert len(found) == number
    assert max(later - one for one, later in pairwise(found)) <= most_s


def test_a_wait_for_another_reason_is_told_at_once() -> None:
    lines = Lines(0.0)
    assert lines.due(4.0, "for a host")
    assert not lines.due(15.0 - GAP_S - 2.0, "for a host")
    assert not lines.due(15.0, "the list is refused: hosts:2: no number")
    assert lines.due(16.0, "the list is refused: hosts:2: no number")
    assert [now for now in range(17, 80) if lines.due(now, "the list is refused: hosts:2: no number")] == [22, 42, 72]


def test_a_reason_that_lasts_only_for_a_moment_before_the_wait_ends_is_not_told() -> None:
    lines = Lines(0.0)
    assert lines.due(30.0, "for processes that import")
    assert not lines.due(36.0, "for the world")
    assert not lines.due(36.9, "for the world")


def test_a_wait_that_changes_back_and_forth_gives_no_line_for_each_change() -> None:
    assert len(told(600, "for a host", "the list is refused: x")) <= 2 * 13
    assert len(told(600, *(f"for {'x' * number}" for number in range(100)))) <= 600 / GAP_S


def test_numbers_and_names_that_change_are_not_another_reason() -> None:
    text = "world {} forms: not there yet: a[{}]; at most {} s more"
    assert reason_of(text.format(1, 0, 12.5)) == reason_of(text.format(1, 3, 8))
    lacks = "processes ready: {}, needed: 2; the agent has not connected yet: {} (at most {} s more); -np (slots: {})"
    assert reason_of(lacks.format(1, "b, c", 53, 1)) == reason_of(lacks.format(0, "b, c, d, e and 3 more", 12, 2))
    writes = "for the checkpoint before the job sleeps: {}"
    assert reason_of(writes.format("step 10 is written by a, b")) != reason_of(writes.format("no answer yet from a, b"))
    assert reason_of("blocked: b (for 9 s more: b: crashed (2 strikes))") == reason_of("blocked: b (x)")
    assert reason_of("world 1 forms: not there yet: a[0]") != reason_of("for the first step of world 1")
    first = "for the first step of world 1: not connected to the others yet: a[0]"
    assert reason_of(first) != reason_of("for the first step of world 1: no agreement on the state yet: a[0]")
