"""Numbers of bytes as people read them."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.sizes import size_text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (2548, "2.55 kB"), (603979776, "604 MB"), (2e15, "2e+03 TB")]
)
def test_a_size_is_shown_in_the_unit_that_suits_it(count: int, text: str) -> None:
    assert size_text(count) == text
