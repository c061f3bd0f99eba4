"""A value and its tensors are one text, and come back as they were."""

from __future__ import annotations

import collections
import json
import subprocess
import sys

import numpy
import pytest
import torch

from hvd_elastic_ext.checkpoint.values.alone import from_text, to_text
from hvd_elastic_ext.core.errors import StateError

Point = collections.namedtuple("Point", "x y")


def back(value: object) -> object:
    return from_text(to_text(value), source="a test")


@pytest.mark.parametrize(
    "value",
    [
        None,
        (1, "a", [2.5, float("inf")]),
        {1: "one", "$two": 2},
        b"bytes",
        {3, 4},
        Point(1, (2,)),
        numpy.float32(0.5),
        2**2000,
    ],
)
def test_a_value_comes_back_equal_and_of_the_same_type(value: object) -> None:
    found = back(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_a_tensor_comes_back_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    found = back({"t": tensor})["t"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found, tensor)


def test_views_parameters_and_one_tensor_in_two_places_are_what_they_were() -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    weight = torch.nn.Parameter(torch.ones(2))
    one, other, same, got = back([whole.t(), weight, weight, whole[1].requires_grad_()])
    assert torch.equal(one, whole.t())
    assert isinstance(other, torch.nn.Parameter)
    assert other is same
    assert got.requires_grad


def test_an_array_comes_back_with_its_type_and_shape() -> None:
    array = numpy.arange(6, dtype="<i2").reshape(3, 2)
    found = back([array])[0]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert (found == array).all()


def test_text_of_others_makes_nothing_but_values() -> None:
    for tensors in (["os", [1], ""], ["nn", [1], ""], ["float32", [1], "AAAAAAA="]):
        with pytest.raises(StateError):
            from_text(json.dumps({"value": '{"$tensor":0}', "tensors": [tensors]}), source="a test")


def test_plain_values_load_no_torch() -> None:
    code = (
        "import sys\nfrom hvd_elastic_ext.checkpoint.values.alone import from_text, to_text\n"
        "assert from_text(to_text({'a': [1, 'x', None, 2.5]}), source='') == {'a': [1, 'x', None, 2.5]}\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
