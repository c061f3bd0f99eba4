"""Ranks in different calls, or with different results: all decide the same, and nobody trains a finished call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.call_results import UNEQUAL
from hvd_elastic_ext.worker.calls.meeting import EMPTY, NOTHING, REFUSED, Meeting, Row, meet

LEFT = Row(3, 2, left=7, generators=8, others=9)
"""A rank at the begin of call 3 that has just left call 2, and has the results 0 and 1."""
BOTH = frozenset((0, 1))


def test_ranks_that_come_from_the_same_call_keep_its_result() -> None:
    assert meet([LEFT, LEFT]) == Meeting(keeps=BOTH, generators=True, others=True)


def test_ranks_with_the_result_go_on_at_once() -> None:
    assert meet([Row(3, 3), Row(3, 3)]) == NOTHING


def test_outside_of_a_call_nothing_follows() -> None:
    assert meet([Row(0, 2), LEFT]) == NOTHING


def test_different_returned_values_are_not_kept() -> None:
    found = meet([LEFT, LEFT._replace(left=6)])
    assert found == Meeting(refused=UNEQUAL, generators=True, others=True)


def test_generators_are_kept_only_where_they_are_equal() -> None:
    found = meet([LEFT, LEFT._replace(generators=1)])
    assert (found.keeps, found.generators, found.others, found.differs) == (BOTH, False, True, False)


def test_a_rank_without_the_result_gets_it_from_one_that_keeps_it_now() -> None:
    found = meet([Row(3, 0), LEFT, LEFT])
    assert (found.keeps, found.sender, found.receives, found.over) == (frozenset((1, 2)), 1, frozenset((0,)), set())


def test_a_rank_in_an_earlier_call_gets_the_past_and_its_call_is_over() -> None:
    found = meet([Row(1, 0), LEFT])
    assert (found.sender, found.receives, found.over) == (1, {0}, {0})


def test_a_rank_behind_whose_call_cannot_be_skipped_is_over_without_a_sender() -> None:
    found = meet([Row(1, 0), Row(3, 1)])
    assert (found.sender, found.over) == (None, {0})
    assert meet([Row(2, 2), LEFT, LEFT._replace(left=1)]).refused == UNEQUAL


def test_if_one_rank_knows_the_result_of_this_call_it_is_over_for_all() -> None:
    found = meet([Row(1, 1), Row(1, 3), Row(1, 3)])
    assert (found.sender, found.receives, found.over) == (1, {0}, {0, 1, 2})


OWN = LEFT._replace(past=3)
"""The same after it has lost a world in call 3, so that it has added the result of call 2 alone."""


def test_a_rank_that_has_added_the_result_alone_compares_it_with_the_others() -> None:
    assert meet([OWN, OWN]) == Meeting(generators=True, others=True)
    assert meet([OWN, LEFT]) == Meeting(keeps=frozenset((1,)), generators=True, others=True)
    found = meet([Row(3, 2), OWN])
    assert (found.sender, found.receives, found.refused) == (1, {0}, "")


def test_different_values_that_ranks_have_added_alone_are_taken_away() -> None:
    other = OWN._replace(left=6)
    assert meet([OWN, other, LEFT]) == Meeting(drops=BOTH, refused=UNEQUAL, generators=True, others=True)


def test_a_result_that_another_rank_has_compared_by_now_stays() -> None:
    for rows in ([Row(3, 3), OWN, LEFT], [Row(3, 3), LEFT]):
        found = meet(rows)
        assert (found.refused, found.drops, found.keeps) == ("", frozenset(), frozenset())
        assert (found.sender, found.receives) == (0, {len(rows) - 1})


@pytest.mark.parametrize("second", [LEFT, OWN])
def test_different_values_are_refused_although_a_newcomer_has_one_of_them_from_a_rank_that_kept_its_own(
    second: Row,
) -> None:
    found = meet([OWN, second._replace(left=6), Row(3, 3)])
    assert (found.refused, found.keeps, found.sender) == (UNEQUAL, frozenset(), None)
    assert found.drops == {rank for rank, row in enumerate([OWN, second, Row(3, 3)]) if row.past == 3}


def test_that_generators_differ_is_known_to_all_whoever_keeps_the_result() -> None:
    other = OWN._replace(generators=1, begun=1)
    for rows in ([OWN, other], [Row(3, 3), OWN, other], [OWN, LEFT._replace(generators=1, begun=1)]):
        assert meet(rows).differs
    assert not meet([Row(3, 3), OWN, LEFT]).differs


def test_a_result_that_was_refused_does_not_come_back_with_a_newcomer_that_got_it_before() -> None:
    refuses = LEFT._replace(left=REFUSED)
    found = meet([refuses, refuses, Row(3, 3)])
    assert (found.refused, found.drops, found.sender, found.receives) == (UNEQUAL, {2}, None, frozenset())


ROWS = st.builds(Row, st.integers(1, 4), st.integers(0, 5), st.integers(-1, 2), st.integers(0, 2), st.integers(0, 2))


@given(st.lists(ROWS, min_size=1, max_size=6))
def test_after_a_meeting_all_who_go_on_are_in_one_call_and_have_the_past_of_it(rows: list[Row]) -> None:
    found = meet(rows)
    stay = [rank for rank in range(len(rows)) if rank not in found.over]
    assert len({rows[rank].call for rank in stay}) <= 1
    if found.sender is None:
        return
    has = {rank: rows[rank].past + (rank in found.keeps) for rank in range(len(rows))}
    assert all(rows[rank].call == max(row.call for row in rows) for rank in (found.sender, *found.keeps))
    assert has[found.sender] >= rows[found.sender].call
    for rank in found.over:
        assert max(has[rank], has[found.sender]) > rows[rank].call
    for rank in found.receives:
        assert has[rank] <= has[found.sender]


def test_ranks_that_ran_collectives_together_keep_what_these_returned_and_another_rank_gets_it_from_them() -> None:
    first, other = Row(1, 0, left=5, collectives=9), Row(1, 0, left=5)
    found = meet([other, first, first])
    assert (found.keeps, found.unequal, found.sender, found.receives) == ({1, 2}, False, 1, {0})
    nothing = first._replace(collectives=EMPTY)
    assert meet([other, nothing, nothing]).keeps == {0, 1, 2}  # there is nothing to be sent


def test_collectives_that_returned_different_things_are_kept_without_these() -> None:
    found = meet([Row(1, 0, left=5, collectives=9), Row(1, 0, left=5, collectives=8)])
    assert (found.keeps, found.unequal) == (BOTH, True)


def test_a_job_that_starts_again_replaces_what_collectives_returned_at_its_earlier_start() -> None:
    now = Row(1, 3, left=5, collectives=9, known=8)
    assert meet([now, now]).amends == BOTH
    assert meet([now, now]).over == BOTH  # it catches up as well
    assert meet([now._replace(known=9)] * 2).amends == set()


@given(st.lists(ROWS, min_size=2, max_size=5))
def test_the_order_of_ranks_changes_only_who_sends(rows: list[Row]) -> None:
    turned = rows[::-1]
    first, second = meet(rows), meet(turned)
    names = {rank: len(rows) - 1 - rank for rank in range(len(rows))}
    assert second.over == {names[rank] for rank in first.over}
    assert second.keeps == {names[rank] for rank in first.keeps}
    assert second.drops == {names[rank] for rank in first.drops}
    assert second.amends == {names[rank] for rank in first.amends}
    of_ranks = {name: frozenset[int]() for name in ("keeps", "drops", "receives", "over", "amends")}
    assert replace(first, sender=None, **of_ranks) == replace(second, sender=None, **of_ranks)


@pytest.mark.parametrize("size", [1, 2, 64])
def test_a_first_call_has_nothing_to_exchange(size: int) -> None:
    found = meet([Row(1, 0, left=5, generators=5, others=5)] * size)
    assert (found.sender, found.receives, found.over, len(found.keeps)) == (None, set(), set(), size)
