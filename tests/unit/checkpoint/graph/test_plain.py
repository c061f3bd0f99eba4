"""Trees of commits as values for other programs: what is plain comes back, and what is the user's own is told."""

from __future__ import annotations

import collections
import json
from typing import Any

import pytest
import torch
from torch import nn

from hvd_elastic_ext.checkpoint import graph
from hvd_elastic_ext.checkpoint.graph.exported import FUNCTIONS, TYPES
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import tree_codec
from tests.unit.checkpoint import graph_kit
from tests.unit.checkpoint.graph_kit import (
    SPECIAL,
    Best,
    ByKeyword,
    Colour,
    Items,
    Named,
    Point,
    demand_same,
    foreign,
    log,
    recursive_tuple,
    ring,
    with_attributes,
    written,
)  # fmt: skip


def plain(value: Any) -> Any:
    data, tensors = written(value)
    return graph.plain(graph.to_json(data), lambda index, kind: tensors[index])


PLAIN = [
    "none and truth", "integers", "floats", "text", "bytes", "a dict of words of the notation",
    "a dict of fields of the notation", "keys of all kinds", "many", "one", "empty", "tuples", "containers",
    "an ordered dict with attributes", "numbers", "times", "paths", "uuids", "torch's", "arrays", "sparse tensors",
    "tuples that hold themselves",
]  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_are_what_they_were(name: str) -> None:
    demand_same(plain(SPECIAL[name]), SPECIAL[name])


def test_every_plain_name_of_the_worker_is_known() -> None:
    known = {*TYPES, *FUNCTIONS}
    missing = {name for name in tree_codec.PLAIN - known if name[0] != "pathlib._local"}
    assert missing == {graph.nodes.TENSOR}


def test_a_model_and_its_optimizer_are_their_state_dicts() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(keep_vars=True), "optimizer": {"state_dict": optimizer.state_dict()}}
    back = plain(state)
    demand_same(back, state)
    nn.Linear(2, 1).load_state_dict(back["model"])
    torch.optim.Adam(nn.Linear(2, 1).parameters()).load_state_dict(back["optimizer"]["state_dict"])


def test_one_tensor_in_two_places_is_one_and_asked_for_once() -> None:
    weight = nn.Parameter(torch.ones(1))
    asked: list[tuple[int, str]] = []
    text = graph.to_json(written([weight, {"a": weight}, torch.ones(1)])[0])
    back = graph.plain(text, lambda index, kind: asked.append((index, kind)) or [index])  # type: ignore[func-returns-value]
    assert back[0] is back[1]["a"]
    assert asked == [(0, "parameter"), (1, "")]


HERE = graph_kit.__name__
TOLD: dict[str, tuple[Any, Any]] = {
    "an object by its attributes": (Best(0.5, [1]), {f"{HERE}:Best": {"loss": 0.5, "weights": [1]}}),
    "one without any": (Items(), {f"{HERE}:Items": {}}),
    "a named tuple by what it was made of": (Point(1, (2,)), {f"{HERE}:Point": [1, (2,)]}),
    "a member of an enumeration": (Colour.BLUE, {f"{HERE}:Colour": ["b"]}),
    "names of arguments": (ByKeyword(1, unit="s"), None),
    "a list with attributes": (
        with_attributes(Items([1]), name="n"), {f"{HERE}:Items": {"append": [1], "state": {"name": "n"}}},
    ),
    "a dict of one's own": (Named(a=1), {f"{HERE}:Named": {"a": 1}}),
    "a type by its name": ([Best, int, torch.int8], [f"{HERE}:Best", int, torch.int8]),
    "as a key": ({Colour.RED: 1}, {str({f"{HERE}:Colour": [1]}): 1}),
    "in a set": ({Colour.RED}, {str({f"{HERE}:Colour": [1]})}),
    "a type that is made": (type(None), {"builtins:type": [None]}),
}  # fmt: skip


@pytest.mark.parametrize("how", TOLD)
def test_what_is_the_users_own_is_told_by_its_name_and_content(how: str) -> None:
    value, told = TOLD[how]
    expected = told or {f"{HERE}:ByKeyword": {"args": [1], "kwargs": {"unit": "s"}, "state": vars(value)}}
    assert plain(value) == expected


def test_what_is_filled_in_every_way_is_told_with_all_of_it() -> None:
    back = plain(log())
    told = back[f"{HERE}:Log"]
    assert (told["args"], told["items"]) == ([1, "two"], {"a": 4, (1, 2): 5})
    assert told["append"][0] is back


def test_what_refers_to_itself_does_so_when_it_is_told_too() -> None:
    back = plain(foreign(7))
    assert back[f"{HERE}:Foreign"] == {"itself": back, "value": 7} or back[f"{HERE}:Foreign"]["itself"] is back
    round_and_round = plain(ring())
    assert round_and_round[f"{HERE}:Ring"][0][0] is round_and_round
    inner = plain(recursive_tuple(6))
    assert inner[0][0] is inner


def test_a_callable_that_is_made_is_told_by_what_makes_it() -> None:
    text = json.dumps({"graph": 1, "value": {"call": {"call": "a:factory", "args": [1]}, "args": [2]}})
    assert graph.plain(text, lambda index, kind: index) == {"{'a:factory': [1]}": [2]}


HARMFUL: dict[str, dict[str, Any]] = {
    "a list of any length": {"call": "builtins:list", "args": [{"call": "builtins:range", "args": [10**15]}]},
    "a queue of any length": {"new": "collections:deque", "args": [{"call": "builtins:range", "args": [10**15]}]},
    "a size of any length": {"call": "torch:Size", "args": [{"call": "builtins:range", "args": [10**15]}]},
    "bytes of any length": {"call": "builtins:bytearray", "args": [1000]},
    "a number of any length": {
        "call": "builtins:int", "args": [{"call": "decimal:Decimal", "args": ["1e999999999"]}],
    },
    "a fraction of any length": {"call": "fractions:Fraction", "args": ["1e999999999"]},
    "an array of any length": {"call": "array", "args": ["<f8", [10**12], "C", {"bytes": "YQ=="}]},
    "an array of pointers": {"call": "array", "args": ["O", [1], "C", {"bytes": "YWFhYWFhYWE="}]},
    "an array of records": {"call": "dtype", "args": ["i4,O"]},
    "a sparse tensor of nothing": {"call": "sparse", "args": [1, 2, [3]]},
    "a layout that is none": {"call": "torch.serialization:_get_layout", "args": ["torch.load"]},
    "a device that is none": {"call": "torch:device", "args": ["nowhere"]},
    "a state for what has none": {"call": "collections:deque", "state": {"a": 1}},
    "a state that is none": {"call": "types:SimpleNamespace", "state": [1]},
    "items for what takes none": {"call": "builtins:object", "items": {"a": 1}},
    "a date that is none": {"call": "datetime:date", "args": ["x"]},
}  # fmt: skip


@pytest.mark.parametrize("how", HARMFUL)
def test_what_cannot_be_made_or_would_be_of_any_size_is_refused(how: str) -> None:
    with pytest.raises(Permanent, match="the checkpoint holds what cannot be made") as refusal:
        graph.plain(json.dumps({"graph": 1, "value": HARMFUL[how]}), lambda index, kind: index)
    assert "\n" not in str(refusal.value)


def test_what_a_class_makes_without_its_init_is_made_so() -> None:
    text = json.dumps({"graph": 1, "value": {"new": "builtins:list", "args": [[1]]}})
    assert graph.plain(text, lambda index, kind: index) == []


def test_an_ordered_dict_stays_one() -> None:
    back = plain(collections.OrderedDict(b=1, a=2))
    assert type(back) is collections.OrderedDict
    assert list(back) == ["b", "a"]
