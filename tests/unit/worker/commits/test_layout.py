"""Places of tensors in a commit."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.format.tensor_places import ALIGNMENT
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.layout import Layout, decode, has_key, key_of, plan
from tests.unit.worker.made_commits import raw

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any type and shape: contiguous, turned, cut, spread out, in channels-last order."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    tensor = torch.randint(0, 2, shape, generator=generator).to(draw(st.sampled_from(DTYPES)))
    form = draw(st.sampled_from(["plain", "turned", "cut", "spread", "channels last"]))
    if form == "turned" and tensor.dim() > 1:
        return tensor.permute(*draw(st.permutations(range(tensor.dim()))))
    if form == "cut" and tensor.dim() and tensor.shape[-1] > 1:
        return tensor[..., ::2]
    if form == "spread" and tensor.dim():
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if form == "channels last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


@st.composite
def planned(draw: st.DrawFn) -> tuple[list[torch.Tensor], list[bool], Layout]:
    found = draw(st.lists(tensors(), max_size=7))
    firm = draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
    return found, firm, plan(found, firm)


@given(planned())
def test_places_are_aligned_apart_and_loose_before_firm(case: tuple[list[torch.Tensor], list[bool], Layout]) -> None:
    found, firm, layout = case
    taken: set[int] = set()
    for tensor, place, is_firm in zip(found, layout.places, firm, strict=True):
        assert place.offset % ALIGNMENT == 0
        assert place.length == tensor.numel() * tensor.element_size()
        here = set(range(place.offset, place.offset + place.length))
        assert not here & taken
        taken |= here
        if place.length:
            assert (place.offset >= layout.loose) is is_firm
            assert is_firm or place.offset + place.length <= layout.loose
    assert layout.loose <= layout.length
    assert max(taken, default=-1) < layout.length
    assert layout.length - len(taken) < ALIGNMENT * max(1, len(found))


@given(planned())
def test_every_tensor_comes_back_exact_in_the_form_it_had(case: tuple[list[torch.Tensor], list[bool], Layout]) -> None:
    found, _, layout = case
    data = torch.full((layout.length,), 0xAB, dtype=torch.uint8)
    views = layout.views(data)
    for view, tensor in zip(views, found, strict=True):
        view.copy_(tensor)
    for view, tensor in zip(views, found, strict=True):
        assert (view.dtype, view.shape) == (tensor.dtype, tensor.shape)
        assert raw(view) == raw(tensor)
        dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
        if tensor.numel() and (dense or tensor.is_contiguous()):
            assert [s for s, n in zip(view.stride(), view.shape, strict=True) if n > 1] == [
                s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1
            ]


@given(planned())
def test_who_did_not_see_the_tensors_reads_the_same_layout(case: tuple[list[torch.Tensor], list[bool], Layout]) -> None:
    _, _, layout = case
    read = decode(layout.encoded)
    assert (read.places, read.firm, read.loose, read.length) == (
        layout.places, layout.firm, layout.loose, layout.length,
    )  # fmt: skip
    assert read.encoded == layout.encoded


def test_a_negated_or_conjugated_view_is_kept_by_what_it_shows() -> None:
    number = torch.tensor([1 + 2j, 3 - 4j])
    shown = [number.conj(), number.conj().imag]
    layout = plan(shown, [True, True])
    views = layout.views(torch.zeros(layout.length, dtype=torch.uint8))
    for view, tensor in zip(views, shown, strict=True):
        view.copy_(tensor)
    assert views[0].tolist() == [1 - 2j, 3 + 4j]
    assert views[1].tolist() == [-2, 4]


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_elements_are_refused() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(2, 3), 1.0, 0, torch.qint8)
    for tensor, what in (
        (quantized, "quantized"),
        (torch.ones(2, 3, device="meta"), "meta"),
        (torch.empty(2, 3, dtype=torch.uint4), "uint4"),  # other processes would not know what it is
        (torch.empty(2, 3, dtype=torch.bits8), "bits8"),
    ):
        with pytest.raises(
            StateError, match=rf"a {what} tensor of shape \(2, 3\) cannot be committed; keep it outside"
        ):
            plan([torch.ones(1), tensor], [True, True])


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(2, 4), True),
        (torch.zeros(3, 2).t(), True),
        (torch.zeros(2, 3, dtype=torch.int32), True),
        (torch.zeros(2, 3, device="meta"), True),
        (torch.zeros(2, 3), False),
    ],
)
def test_a_tensor_that_needs_another_place_has_another_key(other: tuple[torch.Tensor, bool]) -> None:
    mine = key_of([torch.zeros(2, 3)], [True])
    assert has_key([torch.ones(2, 3)], [True], mine)
    assert not has_key([other[0]], [other[1]], mine)
    assert not has_key([torch.zeros(2, 3)] * 2, [True] * 2, mine)


def test_what_is_not_a_layout_is_refused_with_what_to_do() -> None:
    """What that can be: tests/unit/checkpoint/format/test_tensor_places.py."""
    with pytest.raises(StateError, match=r"layout of a commit cannot be read: .*; run the same code on every rank"):
        decode(b'[["no such type", [2, 3], [3, 1], "cpu", 1]]')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["float32", "cpu"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)


@given(st.binary(max_size=80) | JSON.map(lambda tree: json.dumps(tree).encode()))
def test_garbage_is_refused_or_is_a_layout_of_dense_tensors(garbage: bytes) -> None:
    try:
        layout = decode(garbage)
    except StateError:
        return
    if layout.length < 1 << 20:
        views = layout.views(torch.zeros(layout.length, dtype=torch.uint8))
        assert sum(view.nbytes for view in views) <= layout.length


def test_a_layout_depends_on_strides_only_where_there_are_two_dimensions_or_more() -> None:
    line, square = torch.zeros(6), torch.zeros(4, 4)
    mine = key_of([line, square], [True, True])
    assert has_key([torch.zeros(12)[::2], square], [True, True], mine)
    assert plan([torch.zeros(12)[::2]], [True]).encoded == plan([line], [True]).encoded
    assert not has_key([line, square.t()], [True, True], mine)
