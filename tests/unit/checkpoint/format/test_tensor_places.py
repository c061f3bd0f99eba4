"""Where tensors lie is read from a commit's layout, for everything that can be one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given

from hvd_elastic_ext.checkpoint.format import tensor_places
from hvd_elastic_ext.core.errors import Permanent
from tests.unit.checkpoint.layouts import layouts, placed


def test_every_plain_type_of_torch_has_a_width() -> None:
    plain = {str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    unusual = {
        name for name in plain if name.startswith(("q", "bits", "int", "uint")) and name not in tensor_places.WIDTHS
    }
    assert plain - tensor_places.WIDTHS.keys() == unusual


@given(layouts)
def test_the_order_of_dimensions_is_that_of_memory(rows: list[Any]) -> None:
    for place in placed(rows).all:
        if place.length:
            across = torch.empty(0, dtype=torch.uint8).set_(
                torch.empty(place.length, dtype=torch.uint8).untyped_storage(), 0, place.shape, place.stride
            )
            assert across.permute(place.order).is_contiguous()


@given(layouts)
def test_tensors_and_gaps_are_all_there_is(rows: list[Any]) -> None:
    found = placed(rows)
    spans = [(place.offset, place.offset + place.length) for place in found.all if place.length] + list(found.gaps)
    at = 0
    for start, end in sorted(spans):
        assert start == at
        at = end
    assert at == found.length
    assert all(0 < end - start < tensor_places.ALIGNMENT for start, end in found.gaps)


ROW: list[Any] = ["float32", [2, 3], [3, 1], "cpu", 1]


@pytest.mark.parametrize(
    "layout",
    [
        b"", b"{}x", b"[[]]", b"7", b"null", b"\xff", b"[" * 100_000, json.dumps([["quint8", *ROW[1:]]]),
        json.dumps([["float32", [2], [3], "cpu", 1]]), json.dumps([["float32", [2, 3], [1], "cpu", 1]]),
        json.dumps([["float32", [-2], [1], "cpu", 1]]), json.dumps([["float32", [2.0], [1], "cpu", 1]]),
        json.dumps([["float32", [True], [1], "cpu", 1]]), json.dumps([["float32", [1 << 63], [1], "cpu", 1]]),
        json.dumps([["float32", [1 << 61], [1], "cpu", 1]] * 8), json.dumps([["float32", [2], [1], 3, 1]]),
        json.dumps([["float32", [2], [1], "cpu", 2]]), json.dumps([["float32", [1] * 65, [1] * 65, "cpu", 1]]),
        json.dumps([["float32", "23", [1, 1], "cpu", 1]]), json.dumps([["float32", 2, 1, "cpu", 1]]),
        json.dumps([["float32", [1], [-3], "cpu", 1]]), json.dumps([["float32", [2, 3], [0, 0], "cpu", 1]]),
        json.dumps([["float32", [1e999], [1], "cpu", 1]]), json.dumps([["__dict__", *ROW[1:]]]),
        json.dumps([[["float32"], [2], [1], "cpu", 1]]), json.dumps([[*ROW, 1]]), "[[" + "9" * 5000 + "]]",
    ],
)  # fmt: skip
def test_what_is_no_layout_is_told_in_one_line(layout: str | bytes) -> None:
    with pytest.raises(Permanent, match="the layout of a commit cannot be read") as failed:
        tensor_places.decode(layout if isinstance(layout, bytes) else layout.encode())
    assert "\n" not in str(failed.value)
