"""Tensors in pieces, and in types that a library can sum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Finished, copy_back, pieces, reducible
from hvd_elastic_ext.worker.comms.torch_distributed import exit_message
from hvd_elastic_ext.worker.optim.averaging import buckets

NATIVE = (torch.float32, torch.int64)


@given(st.integers(0, 40), st.integers(1, 50))
def test_pieces_are_views_that_cover_the_data_in_order(length, longest):
    data = torch.arange(length).to(torch.uint8)
    found = list(pieces(data, longest))
    assert [value for piece in found for value in piece.tolist()] == data.tolist()
    assert all(0 < len(piece) <= longest for piece in found)
    for piece in found:
        piece.fill_(255)
    assert data.tolist() == [255] * length


@pytest.mark.parametrize(
    "data", [torch.zeros(3), torch.zeros(2, 2, dtype=torch.uint8), torch.zeros(6, dtype=torch.uint8)[::2]]
)
def test_only_flat_bytes_are_accepted(data):
    with pytest.raises(UsageError, match="flat, contiguous uint8"):
        list(pieces(data, 10))


def test_a_tensor_of_a_native_type_is_not_copied():
    data = torch.ones(4, requires_grad=True)
    assert reducible(data, NATIVE).data_ptr() == data.data_ptr()


@pytest.mark.parametrize(
    ("kind", "carried"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.uint8, torch.int64),
        (torch.int16, torch.int64),
        (torch.complex64, torch.float32),
    ],
)
def test_other_types_are_summed_in_a_wider_one_and_copied_back(kind, carried):
    data = torch.tensor([[1, 2], [3, 4]]).to(kind).t()
    load = reducible(data, NATIVE)
    assert load.dtype == carried
    assert load.is_contiguous()
    load.mul_(3)
    copy_back(load, data)
    assert data.equal(torch.tensor([[3, 9], [6, 12]]).to(kind))


def test_a_finished_result_does_not_wait():
    assert Finished(7).wait() == 7


def test_buckets_keep_types_apart_and_large_ones_alone():
    small, more, wide, large = torch.zeros(3), torch.zeros(4), torch.zeros(2, dtype=torch.float64), torch.zeros(8)
    found = list(buckets([small, wide, large, more, small], 32))
    assert [[tensor.numel() for tensor in bucket] for bucket in found] == [[8], [3, 4], [2], [3]]


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(NATIVE))), st.integers(8, 64))
def test_every_gradient_is_in_one_bucket_that_is_not_too_large(shapes, limit):
    gradients = [torch.zeros(length, dtype=kind) for length, kind in shapes]
    found = list(buckets(gradients, limit))
    assert sorted(map(id, gradients)) == sorted(id(one) for bucket in found for one in bucket)
    for bucket in found:
        assert len({one.dtype for one in bucket}) == 1
        assert len(bucket) == 1 or sum(one.numel() * one.element_size() for one in bucket) <= limit


@pytest.mark.parametrize(
    ("count", "most", "says"),
    [
        ("0", "3", "restart 1 of 3"),
        ("3", "3", "no restart left (--max-restarts 3)"),
        (None, None, "start the workers again"),
    ],
)
def test_the_exit_message_says_what_follows(count, most, says):
    given = {"TORCHELASTIC_RESTART_COUNT": count, "TORCHELASTIC_MAX_RESTARTS": most} if count else {}
    line = exit_message("this world is over", given)
    assert line.startswith("hvd-elastic: this world is over; ")
    assert says in line
    assert line.count("\n") == 1
