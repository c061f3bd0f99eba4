"""Where two sequences differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core import sequences
from hvd_elastic_ext.core.sequences import common_ends

LETTERS = st.lists(st.sampled_from("abc"), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "BLOCK", 3)
        yield


@given(LETTERS, LETTERS, LETTERS, LETTERS)
def test_what_lies_between_the_common_ends_is_all_that_differs(first, old, new, last):
    one, other = tuple(first + old + last), tuple(first + new + last)
    start, end = common_ends(one, other)
    assert start + end <= min(len(one), len(other))
    assert one[:start] == other[:start]
    assert one[len(one) - end :] == other[len(other) - end :]
    between = one[start : len(one) - end], other[start : len(other) - end]
    assert not all(between) or (between[0][0] != between[1][0] and between[0][-1] != between[1][-1])


def test_all_of_a_sequence_is_the_same_as_itself():
    one = tuple("abcdefgh")
    assert common_ends(one, one) == (8, 0)
    assert common_ends(one, tuple(iter(one))) == (8, 0)
    assert common_ends(one, one[:5]) == (5, 0)
    assert common_ends((), one) == (0, 0)
