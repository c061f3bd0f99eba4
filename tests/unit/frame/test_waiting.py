"""A failed wait_until says what it waited for."""

import pytest

from tests.support.waiting import wait_until


def test_the_first_true_value_is_returned():
    values = iter([None, 0, "there"])
    assert wait_until(lambda: next(values), what="a value") == "there"


def test_a_condition_that_never_holds_gives_what_was_awaited_and_last_seen():
    with pytest.raises(AssertionError, match=r"in vain for the third host; last seen: 0\nlog: empty"):
        wait_until(lambda: 0, what="the third host", timeout=0, show=lambda: "log: empty")
