"""Trees of commits as JSON: what comes back is equal, and shared as it was."""

from __future__ import annotations

import collections
import json
import time
import types
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hvd_elastic_ext.checkpoint import graph
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import tree_codec
from hvd_elastic_ext.worker.parts import rng
from tests.unit.checkpoint.graph_kit import SPECIAL, Best, Items, Ring, demand_same, foreign, read, through, written

ATOMS = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**300), 2**300) | st.floats() | st.binary(max_size=5)
    | st.text(st.characters(exclude_categories=()), max_size=5) | st.complex_numbers() | st.datetimes()
    | st.timedeltas() | st.uuids() | st.decimals(allow_nan=False) | st.fractions()
    | st.sampled_from(["tensor", "call", "ref", "dict", "args", "state"])
)  # fmt: skip
KEYS = st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2)) | st.sampled_from(["tuple"])
TREES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=5).map(tuple)
        | st.lists(inner, max_size=4).map(lambda items: collections.deque(items, 7))
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4).map(collections.OrderedDict)
        | st.dictionaries(KEYS, inner, max_size=4).map(lambda tree: collections.defaultdict(list, tree))
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda tree: types.SimpleNamespace(**tree))
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        | st.builds(Best, inner, inner)
        | st.builds(foreign, inner)
    ),
    max_leaves=12,
)


@given(TREES)
def test_any_tree_comes_back_equal(tree: Any) -> None:
    data, tensors = written(tree)
    demand_same(read(through(data), tensors), read(data, tensors))


@pytest.mark.parametrize("name", SPECIAL)
def test_whatever_a_state_may_hold_comes_back_equal_and_shared_as_it_was(name: str) -> None:
    shared = SPECIAL[name]
    data, tensors = written({"once": shared, "again": [shared]})
    back = read(through(data), tensors)
    demand_same(back, read(data, tensors))
    assert back["once"] is back["again"][0]


KINDS = ("list", "dict", "object", "items", "ring", "tuple", "frozenset")


@st.composite
def webs(draw: st.DrawFn) -> Any:
    """Things that hold one another in any way, round and round."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8))
    # Last those that cannot change: each may hold all that came before it.
    kinds.sort(key=lambda kind: kind in ("tuple", "frozenset"))
    things: list[Any] = []
    for kind in kinds:
        chosen = draw(st.lists(st.sampled_from(things), max_size=5)) if things else []
        things.append(_thing(kind, chosen, number=len(things)))
    for thing in things:
        for chosen in draw(st.lists(st.sampled_from(things), max_size=3)):
            _put(thing, chosen)
    return things


def _thing(kind: str, parts: list[Any], *, number: int) -> Any:
    if kind == "tuple":
        return tuple(parts)
    if kind == "frozenset":
        return frozenset(part for part in parts if isinstance(part, Ring))
    kinds = {"list": list, "dict": dict, "object": lambda: Best(1), "items": Items, "ring": lambda: Ring([], number)}
    return kinds[kind]()


def _put(thing: Any, part: Any) -> None:
    if isinstance(thing, list):
        thing.append(part)
    elif isinstance(thing, dict):
        thing[len(thing)] = part
    elif isinstance(thing, Best):
        thing.loss = [part, thing.loss]
    elif isinstance(thing, Ring):
        thing.members.append(part)


@given(webs())
def test_things_that_hold_one_another_in_any_way_come_back_so(web: Any) -> None:
    data, tensors = written(web)
    demand_same(read(through(data), tensors), read(data, tensors))


def test_the_state_of_a_model_reads_as_names_and_tensors() -> None:
    data, _ = written({"model": dict(nn.Linear(2, 1).state_dict()), "epoch": 3, "lr": 0.1})
    assert json.loads(graph.to_json(data)) == {
        "graph": 1,
        "value": {"model": {"weight": {"tensor": 0}, "bias": {"tensor": 1}}, "epoch": 3, "lr": 0.1},
    }


def test_a_state_dict_of_torchs_says_its_type_and_what_belongs_to_it() -> None:
    text = graph.to_json(written(nn.Linear(2, 1, bias=False).state_dict(keep_vars=True))[0])
    assert json.loads(text)["value"] == {
        "call": "collections:OrderedDict",
        "items": {"weight": {"tensor": 0, "kind": "parameter"}},
        "state": {"_metadata": {"call": "collections:OrderedDict", "items": {"": {"version": 1}}}},
    }


def test_what_is_this_formats_own_is_named_without_a_place_in_the_program() -> None:
    data, _ = written([*SPECIAL["arrays"], *SPECIAL["uuids"], torch.eye(2).to_sparse(), torch.ones(1)])
    assert "hvd_elastic_ext" not in graph.to_json(data)


def test_the_random_states_of_all_generators_come_back() -> None:
    states = rng.capture()
    data, tensors = written(states)
    demand_same(read(through(data), tensors), states)


def test_text_on_storage_is_text_whatever_is_in_it() -> None:
    data, tensors = written(SPECIAL["text"])
    text = graph.to_json(data).encode().decode()
    assert read(graph.from_json(text), tensors) == SPECIAL["text"]


def test_ten_thousand_entries_are_a_matter_of_a_fraction_of_a_second() -> None:
    data, _ = written({f"layer{index}.weight": torch.zeros(1) for index in range(10_000)})
    start = time.process_time()
    graph.from_json(graph.to_json(data))
    assert time.process_time() - start < 2  # some 0.4 s are usual


def nested(levels: int) -> bytes:
    return b"\x80\x05" + b"]" * levels + b"a" * (levels - 1) + b"."


def depth(value: Any) -> int:
    levels = 1
    while value:
        (value,) = value
        levels += 1
    return levels


@pytest.mark.parametrize("levels", [1, 40, 41, 42, 900, 9_000])
def test_what_lies_deep_is_written_flat(levels: int) -> None:
    text = graph.to_json(nested(levels))
    assert max(_levels(text)) < 200
    back = through(nested(levels))
    assert depth(tree_codec.read(back, lambda index, kind: None, admitted=frozenset())) == levels


def _levels(text: str) -> list[int]:
    level, levels = 0, [0]
    for character in text:
        level += (character in "[{") - (character in "]}")
        levels.append(level)
    return levels


def test_what_lies_deeper_than_any_reader_would_take_is_refused_before_it_is_stored() -> None:
    with pytest.raises(Permanent, match="nested more than 10000 levels deep"):
        graph.to_json(nested(20_000))


def test_a_linked_list_of_objects_comes_back_whole() -> None:
    chain: Any = None
    for _ in range(200):
        chain = Best(chain)
    data, tensors = written(chain)
    back, length = read(through(data), tensors), 0
    while back is not None:
        back, length = back.loss, length + 1
    assert length == 200


def test_with_what_anything_could_be_run_is_not_stored_at_all() -> None:
    for held in ([].append, eval, getattr):
        with pytest.raises(Permanent, match=r"the State holds builtins\.\w+, .* keep it out of the State"):
            graph.to_json(written([held])[0])
    with pytest.raises(Permanent, match="stands for tensors"):
        graph.to_json(written([tree_codec.tensor_at])[0])
