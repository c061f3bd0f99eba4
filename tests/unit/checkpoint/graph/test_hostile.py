"""Text that somebody else has written is read as a graph or refused, and nothing else happens."""

from __future__ import annotations

import builtins
import contextlib
import copy
import json
import random
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint import graph
from hvd_elastic_ext.checkpoint.graph import nodes
from hvd_elastic_ext.checkpoint.graph.notation import TAGS
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import guard, tree_codec
from tests.unit.checkpoint.graph_kit import SPECIAL, written


def document(value: Any, *shared: Any) -> str:
    return json.dumps({"graph": 1, "value": value} | ({"shared": shared} if shared else {}))


ODD: dict[str, tuple[str, str]] = {
    "no text of JSON": ("{", "Expecting"),
    "nothing": ("", "Expecting value"),
    "no object": ("[1]", "not an object of graph, value"),
    "of another version": ('{"graph": 2, "value": 1}', "version 2"),
    "of no version": ('{"graph": true, "value": 1}', "version True"),
    "with more than there is": ('{"graph": 1, "value": 1, "code": 2}', "not an object"),
    "nested without end": ('{"graph": 1, "value": ' + "[" * 100_000, "is damaged"),
    "nested deep": (document(json.loads("[" * 150 + "]" * 150)), "nested too deep"),
    "a key twice": ('{"graph": 1, "value": {"a": 1, "a": 2}}', "a key appears twice"),
    "NaN": ('{"graph": 1, "value": NaN}', "NaN is no number"),
    "a number beyond all": ('{"graph": 1, "value": 1e999}', "too large for a float"),
    "digits without end": ('{"graph": 1, "value": ' + "9" * 10_000 + "}", "too long"),
    "two words": (document({"tuple": [], "set": []}), "both set and tuple"),
    "a word with more": (document({"tuple": [], "x": 1}), "not an object of tuple"),
    "a tuple of no list": (document({"tuple": {"a": 1}}), "a list is expected"),
    "half a pair": (document({"dict": [[1]]}), "a pair that is none"),
    "pairs that are none": (document({"dict": 1}), "a list is expected"),
    "an integer in digits": (document({"int": "12"}), "an integer that is none"),
    "an integer of no digits": (document({"int": "0xg"}), "invalid literal"),
    "an integer that is none": (document({"int": 12}), "int is no text"),
    "a float in words": (document({"float": "1.0"}), "a float that is none"),
    "a float with spaces": (document({"float": "7ff8 00000000 00"}), "a float that is none"),
    "a float in hex that is a number": (document({"float": "3ff0000000000000"}), "a float that is none"),
    "bytes that are none": (document({"bytes": "a!b="}), "base64|Only"),
    "text that is none": (document({"str": "/w=="}), "utf-8"),
    "no tensor": (document({"tensor": -1}), "without its place"),
    "a truth for a tensor": (document({"tensor": True}), "without its place"),
    "a tensor of another kind": (document({"tensor": 1, "kind": "sharp"}), "without its place"),
    "a tensor by its function": (document({"call": ":".join(nodes.TENSOR), "args": [[]]}), "without its place"),
    "a place that is not there": (document({"ref": 0}), "there is no place 0"),
    "a place below": (document([{"ref": -1}, {"ref": 0}], []), "there is no place -1"),
    "a place by name": (document({"ref": "0"}, []), "there is no place 0"),
    "a place that refers to itself": (document({"ref": 0}, {"ref": 0}), "only refers to another"),
    "a number that is shared": (document({"ref": 0}, 5), "cannot be shared"),
    "a name that is shared": (document({"ref": 0}, {"name": "a:b"}), "cannot be shared"),
    "shared with nothing": (document(1, []), "shared with nothing"),
    "shared is no list": ('{"graph": 1, "value": 1, "shared": {"0": []}}', "a list is expected"),
    "a call of a number": (document({"call": 1}), "a call of what cannot be called"),
    "a call of a list": (document({"call": []}), "a call of what cannot be called"),
    "a call of text in disguise": (document({"call": {"str": "YTpi"}}), "a call of what cannot be called"),
    "arguments that are no list": (document({"call": "a:b", "args": {}}), "a list is expected"),
    "arguments by name for a call": (document({"call": "a:b", "kwargs": {"a": 1}}), "not an object"),
    "arguments by name without": (document({"new": "a:b", "kwargs": [1]}), "without names"),
    "a setter without a state": (document({"call": "a:b", "setter": "a:b"}), "a setter without a state"),
    "a name without a module": (document({"name": "eval"}), "no name of anything"),
    "a name of two colons": (document({"name": "a:b:c"}), "no name of anything"),
    "a name with a space": (document({"name": "a:b c"}), "no name of anything"),
    "a module with a slash": (document({"name": "../a:b"}), "no name of anything"),
    "a name with a line": (document({"name": "a:b\n"}), "no name of anything"),
    "a name without end": (document({"name": "a:" + "b" * 5000}), "no name of anything"),
    "a name that is none": (document({"name": 1}), "name is no text"),
    "made of itself": (document({"ref": 0}, {"tuple": [{"ref": 0}]}), "made of itself"),
    "called with itself": (document({"ref": 0}, {"call": "a:b", "args": [{"ref": 0}]}), "made of itself"),
    "called by itself": (document({"ref": 0}, {"call": {"ref": 0}}), "made of itself"),
    "made of one another": (
        document({"ref": 0}, {"frozenset": [{"ref": 1}]}, {"tuple": [{"ref": 0}]}), "made of itself",
    ),
    "deeper than it looks": (
        document({"ref": 0}, *([{"ref": place + 1}] for place in range(20_000)), []), "10000 levels deep",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ODD)
def test_text_that_is_not_of_the_notation_is_refused_in_one_line_that_says_why(how: str) -> None:
    text, why = ODD[how]
    with pytest.raises(Permanent, match=why) as refusal:
        graph.from_json(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400
    with pytest.raises(Permanent):
        graph.plain(text, lambda index, kind: index)


@pytest.mark.parametrize("name", sorted(tree_codec.REACHING), ids=":".join)
def test_names_with_which_anything_can_be_reached_are_refused_in_every_place(name: tuple[str, str]) -> None:
    word = ":".join(name)
    for form in ({"name": word}, {"call": word, "args": ["1"]}, {"new": f"{word}.__call__"}, [{"name": word}]):
        with pytest.raises(Permanent, match="with which anything could be run"):
            graph.from_json(document(form))


def test_the_worker_and_the_format_are_of_one_mind_about_such_names() -> None:
    assert {
        (module, name) for module, names in nodes._REACHING.items() for name in names.split()
    } == tree_codec.REACHING
    assert nodes._REACHING_MODULES == guard._REACHING_MODULES
    assert tree_codec._SLOT == nodes.TENSOR
    ours = {name for name in tree_codec.PLAIN if name[0].startswith("hvd_elastic_ext")}
    assert {*nodes.OWN.values(), nodes.TENSOR} == ours


def test_nothing_is_imported_or_called_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    harmful = {"call": "antigravity:fly", "args": ["x"], "state": {"setter": 1}}
    text = document([harmful, {"name": "this:s"}, {"new": "tests.nowhere:Thing"}])
    imported: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", lambda name, *_: imported.append(name))
        again = graph.to_json(graph.from_json(text))
        made = graph.plain(text, lambda index, kind: index)
    assert imported == []
    assert json.loads(again)["value"][0] == harmful
    assert made[0] == {"antigravity:fly": {"args": ["x"], "state": {"setter": 1}}}
    assert not {"antigravity", "this"} & sys.modules.keys()


def test_a_few_words_do_not_keep_a_reader_busy_for_long() -> None:
    lists = [[{"ref": 0}] for _ in range(2000)]
    start = time.process_time()
    with pytest.raises(Permanent, match="made of itself"):
        graph.from_json(document({"ref": 0}, {"tuple": [*range(2000), *lists]}))
    assert time.process_time() - start < 20


TEXTS = [graph.to_json(written(value)[0]) for value in SPECIAL.values() if len(str(value)) < 2000]
PIECES = st.sampled_from(
    [
        None, True, 0, -1, 2**62, 1.5, "", "0", "nan", "0x1", "YQ==", "a:b", "array", "builtins:range", "builtins:list",
        "collections:deque", "datetime:datetime", "fractions:Fraction", "decimal:Decimal", "torch:Size", "torch:device",
        "builtins:bytearray", "builtins:int", "torch:load", "uuid", "sparse", "objects", "dtype", "scalar",
        [], {}, [[]], [[1, 2]], {"ref": 0}, {"ref": 1}, {"tuple": []}, {"tensor": 0}, {"int": "0x9"},
    ]
)  # fmt: skip
FIELDS = st.sampled_from([*sorted(TAGS), "args", "kwargs", "append", "items", "state", "setter", "kind", "a", ""])
FORMS = st.recursive(
    PIECES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3), max_leaves=10
)


def look_at(text: str) -> None:
    """It is refused, or a graph: then the worker's reader refuses it or makes plain data of it."""
    try:
        tree = graph.from_json(text)
    except Permanent:
        with pytest.raises(Permanent):
            graph.plain(text, lambda index, kind: index)
        return
    assert graph.from_json(graph.to_json(tree)) == tree
    with contextlib.suppress(Permanent):
        tree_codec.read(tree, lambda index, kind: index, admitted=frozenset())
    with contextlib.suppress(Permanent):
        graph.plain(text, lambda index, kind: index)


@given(FORMS, st.lists(FORMS, max_size=3))
def test_forms_put_together_at_random_are_refused_or_are_a_graph(value: Any, shared: list[Any]) -> None:
    look_at(document(value, *shared))


@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False))
def test_text_changed_here_and_there_is_refused_or_is_a_graph(text: str, chance: random.Random) -> None:
    letters = list(text)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(letters))
        letters[at : at + chance.randint(0, 3)] = chance.choice(
            ["", '"', "{", "]", ",", "0", "9", "a", "\\", "\ud800", ":"]
        )
    look_at("".join(letters))


@given(st.sampled_from(TEXTS), st.lists(FORMS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_forms_put_into_good_text_are_refused_or_are_a_graph(
    text: str, forms: list[Any], chance: random.Random
) -> None:
    whole = json.loads(text)
    for form in forms:
        place, key = chance.choice(list(_places(whole)))
        place[key] = copy.deepcopy(form)
    look_at(json.dumps(whole))


def _places(form: Any) -> Any:
    for key, value in list(form.items() if isinstance(form, dict) else enumerate(form)):
        yield form, key
        if isinstance(value, dict | list):
            yield from _places(value)
