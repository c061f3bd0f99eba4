"""Layouts of all sorts, for properties."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.format.tensor_places import WIDTHS, Places, decode


@st.composite
def rows(draw: st.DrawFn) -> list[Any]:
    """One tensor: its dimensions lie in memory in any order."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    stride, step = [0] * len(shape), 1
    for dimension in reversed(order):
        stride[dimension] = step
        step *= max(shape[dimension], 1)
    return [draw(st.sampled_from(sorted(WIDTHS))), shape, stride, "cpu", draw(st.integers(0, 1))]


@st.composite
def large_rows(draw: st.DrawFn) -> list[Any]:
    """One of up to some megabytes, that may be cut."""
    size = draw(st.integers(0, 700_000))
    return [draw(st.sampled_from(["float32", "uint8", "float64"])), [size], [1], "cpu", draw(st.integers(0, 1))]


many_rows = st.lists(rows(), max_size=12)
layouts = st.one_of(many_rows, st.lists(st.one_of(rows(), large_rows()), max_size=6))


def encoded(found: list[Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def placed(found: list[Any]) -> Places:
    return decode(encoded(found))


def length(row: list[Any]) -> int:
    return math.prod(row[1]) * WIDTHS[row[0]]
