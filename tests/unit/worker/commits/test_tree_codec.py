"""Trees as bytes: exact both ways."""

from __future__ import annotations

import collections
import datetime
import decimal
import pathlib
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import tree_codec
from tests.unit.worker import records
from tests.unit.worker.records import NOTHING, Colour, Own, Point, there_and_back

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text(max_size=5)
    | st.binary(max_size=5) | st.datetimes() | st.dates() | st.times() | st.timedeltas() | st.uuids()
    | st.decimals(allow_nan=False) | st.fractions()
)  # fmt: skip
KEYS = st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2))
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(collections.deque)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4).map(collections.OrderedDict)
        | st.dictionaries(KEYS, inner, max_size=4).map(lambda tree: collections.defaultdict(list, tree))
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda tree: types.SimpleNamespace(**tree))
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=12,
)


@given(TREES)
def test_plain_values_nested_in_any_way_come_back_exact(tree: Any) -> None:
    for admitted in (NOTHING, None):
        assert told(there_and_back(tree, admitted=admitted)) == told(tree)


def told(tree: Any) -> Any:
    """The tree in words that are equal for what is the same: NaN is like itself, a set has no order, a type counts."""
    if isinstance(tree, dict):
        return type(tree), [(told(key), told(value)) for key, value in tree.items()]
    if isinstance(tree, set | frozenset):
        return type(tree), sorted(map(repr, tree))
    if isinstance(tree, list | tuple | collections.deque):
        return type(tree), list(map(told, tree))
    return (type(tree), told(vars(tree))) if isinstance(tree, types.SimpleNamespace) else (type(tree), repr(tree))


MORE = [
    range(3, 9, 2),
    slice(1, None, 2),
    bytearray(b"xy"),
    frozenset({(1, 2)}),
    collections.Counter("abca"),
    pathlib.PurePosixPath("a/b"),
    pathlib.Path("/tmp"),
    uuid.UUID(int=2**127),
    datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
    torch.float32,
    torch.bfloat16,
    torch.device("cpu"),
    torch.Size([1, 2]),
    torch.strided,
    list,
    {"kind": dict, "type": torch.int8},
]
NUMPY = [
    numpy.arange(6).reshape(2, 3),
    numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    numpy.ones((4, 4))[::2, 1:],
    numpy.empty((0, 3)),
    numpy.array(3.5),
    numpy.array(["a", "long"]),
    numpy.array([b"x"]),
    numpy.array([1, 2], dtype=">i4"),
    numpy.array(["2020-01-01", "NaT"], dtype="datetime64[s]"),
    numpy.array([None, [1, 2], {"a": numpy.float32(1)}], dtype=object),
    numpy.array([[True, False]]),
    numpy.array([1 + 2j]),
    numpy.float32(2.5),
    numpy.float64("nan"),
    numpy.int64(-3),
    numpy.bool_(True),
    numpy.str_("x"),
    numpy.datetime64("2020-01-01"),
    numpy.dtype("float16"),
]


@pytest.mark.parametrize("value", [*MORE, *NUMPY], ids=repr)
def test_a_value_that_first_appears_on_another_rank_comes_back_exact(value: Any) -> None:
    back = there_and_back([value])[0]
    assert type(back) is type(value)
    assert repr(back) == repr(value)
    assert getattr(back, "dtype", None) == getattr(value, "dtype", None)


def test_an_array_that_came_back_is_ones_own_and_can_be_written_to() -> None:
    live = numpy.zeros(3)
    back = there_and_back(live)
    back += 1
    assert (back.tolist(), live.tolist()) == ([1, 1, 1], [0, 0, 0])


def test_what_appears_twice_is_one_thing_again() -> None:
    shared, array, tensor, weight = [1], numpy.zeros(2), torch.ones(2), nn.Parameter(torch.ones(1))
    tree: dict[str, Any] = {"a": [shared, array, tensor, weight], "b": [shared, array, tensor, weight]}
    tree["itself"] = tree
    tensors: list[Tensor] = []
    data = tree_codec.write(tree, tensors)
    assert [t is u for t, u in zip(tensors, [tensor, weight], strict=True)] == [True, True]
    back = tree_codec.read(data, lambda index, kind: tensors[index].clone(), admitted=NOTHING)
    assert [a is b for a, b in zip(back["a"], back["b"], strict=True)] == [True] * 4
    assert back["itself"] is back


def test_tensors_are_taken_out_uncopied_in_the_order_of_the_tree_and_told_apart_by_kind() -> None:
    weight, frozen = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2), requires_grad=False)
    leaf, plain = torch.ones(3, requires_grad=True), torch.ones(4)
    result = leaf * 2
    tensors: list[Tensor] = []
    data = tree_codec.write([weight, frozen, leaf, plain, result], tensors)
    assert [id(tensor) for tensor in tensors] == [id(weight), id(frozen), id(leaf), id(plain), id(result)]
    told: list[tuple[int, str]] = []
    back = tree_codec.read(data, lambda index, kind: told.append((index, kind)) or index, admitted=NOTHING)  # type: ignore[func-returns-value]
    assert back == [0, 1, 2, 3, 4]
    assert told == [(0, "parameter"), (1, "frozen"), (2, "leaf"), (3, ""), (4, "")]
    assert len(data) < 300


def test_a_second_tree_goes_on_counting_where_the_first_one_ended() -> None:
    tensors: list[Tensor] = []
    tree_codec.write_one("model", [torch.zeros(1)], tensors)
    data = tree_codec.write_one("optimizer", [torch.ones(1)], tensors)
    back = tree_codec.read(data, lambda index, kind: tensors[index], admitted=NOTHING)
    assert back[0] is tensors[1]


@pytest.mark.parametrize("dense", [torch.eye(3), torch.zeros(2, 2), torch.tensor([[0, 1 + 1j]])])
def test_sparse_tensors_come_back_exact_and_coalesced(dense: Tensor) -> None:
    sparse = dense.to_sparse()
    back = there_and_back([sparse])[0]
    assert torch.equal(back.to_dense(), dense)
    assert back.is_coalesced()
    doubled = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    assert there_and_back([doubled])[0].to_dense().tolist() == [3, 0, 0]


UNWRITABLE: dict[str, Callable[[], Any]] = {
    "generator": lambda: (i for i in range(3)),
    "Can't (pickle|get local)": lambda: lambda: 1,
    "StringIO|pickle": lambda: sys.stdout,
    "sparse_csr": lambda: torch.eye(2).to_sparse_csr(),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
}


@pytest.mark.parametrize("why", UNWRITABLE)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_written_is_named_with_the_way_out(why: str) -> None:
    fine, value = torch.ones(1), UNWRITABLE[why]()
    for write in (
        lambda tensors: tree_codec.write_one("odd", value, tensors),
        lambda tensors: tree_codec.write_named({"fine": [fine], "odd": value}, tensors),
    ):
        tensors = [fine]
        with pytest.raises(
            Permanent, match=rf"state\.odd \(\w+\) cannot be committed: .*({why}).*; give it"
        ) as failure:
            write(tensors)
        assert "\n" not in str(failure.value)
    assert not tree_codec.is_writable(value)


def test_a_type_that_must_not_be_there_makes_a_value_unwritable_however_deep_it_lies() -> None:
    assert tree_codec.is_writable({"a": [1]}, without=(nn.Module,))
    assert not tree_codec.is_writable({"a": [nn.Linear(1, 1)]}, without=(nn.Module,))


def test_names_in_a_tree_are_found_without_making_anything_of_it() -> None:
    made: list[int] = []

    class Noisy:
        def __setstate__(self, state: Any) -> None:
            made.append(1)

    Noisy.__qualname__ = "Noisy"
    globals()["Noisy"] = Noisy
    try:
        noisy = Noisy()
        noisy.value = torch.eye(2).to_sparse()  # type: ignore[attr-defined]
        counter = collections.Counter("ab")
        tree = [noisy, counter, {Colour.RED: 1}, collections.deque([1]), numpy.float32(1), Point(1, 2), {1}]
        names = tree_codec.names_in(tree_codec.write(tree, []))
    finally:
        del globals()["Noisy"]
    mine = {(__name__, "Noisy"), (records.__name__, "Colour"), (records.__name__, "Point")}
    assert names - tree_codec.PLAIN == mine
    assert ("collections", "Counter") in names
    assert made == []


def test_types_are_named_as_they_are_found() -> None:
    assert tree_codec.names_of([Own, decimal.Decimal]) == {(records.__name__, "Own"), ("decimal", "Decimal")}
