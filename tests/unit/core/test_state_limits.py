"""What a State that somebody else has written makes of itself stays in proportion to its text."""

from __future__ import annotations

import base64
import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint import graph
from hvd_elastic_ext.core import state_limits
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.commits import tree_codec

BOUND = 2 * state_limits.FREE
"""Bytes that may be taken at once while a text of a few kB is read, whatever it says."""

WORDS = {name: word for word, name in graph.nodes.OWN.items()}
NAMES = sorted(WORDS.get(name, ":".join(name)) for name in state_limits.TAKES)
NUMBERS = st.sampled_from([0, 1, -1, 7, 10**6, 10**9, 10**15, 2**63 - 1]) | st.integers(-3, 70)
ATOMS: st.SearchStrategy[Any] = st.one_of(
    NUMBERS,
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1e999999", "1e3000000", "1/3", "-7", "<f8", "|S", "<U999999999", "C", "O", "a", "cpu", "utf-8"]),
    st.binary(max_size=9).map(lambda data: {"bytes": base64.b64encode(data).decode()}),
    st.builds(lambda number: {"int": hex(1 << number)}, st.integers(1, 4000)),
    st.just({"tensor": 0}),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    rows = st.lists(inner, max_size=4)
    made = {
        "args": rows, "append": rows, "items": st.lists(st.tuples(inner, inner).map(list), max_size=2), "state": inner,
    }  # fmt: skip
    return st.one_of(
        rows,
        st.builds(lambda tag, row: {tag: row}, st.sampled_from(["tuple", "set", "frozenset"]), rows),
        *(
            st.builds(
                lambda how, name, fields: {how: name, **fields},
                st.sampled_from(["call", "new"]),
                st.sampled_from(NAMES),
                st.fixed_dictionaries({"args": rows}, optional={field: made[field] for field in more}),
            )
            for more in ((), ("append",), ("items",), ("state",))
        ),
    )


TREES = st.recursive(ATOMS, _containers, max_leaves=12)
DOUBLING = st.integers(0, 80)


def _documents(tree: Any, depth: int) -> Any:
    """The tree as it is, or a key that holds it twice at each of ``depth`` levels."""
    shared = [{"tuple": [tree]}, *({"tuple": [{"ref": place}, {"ref": place}]} for place in range(depth))]
    return {"graph": 1, "value": [{"set": [{"ref": depth}]}], "shared": shared}


def resumed(text: str) -> Any:
    return tree_codec.read(graph.from_json(text), lambda index, kind: torch.ones(2), admitted=frozenset())


def exported(text: str) -> Any:
    return graph.plain(text, lambda index, kind: torch.ones(2))


@pytest.mark.parametrize("reader", [resumed, exported])
@given(tree=TREES, depth=DOUBLING)
def test_no_small_tree_takes_much_memory_whatever_it_says(reader: Callable[[str], Any], tree: Any, depth: int) -> None:
    for document in ({"graph": 1, "value": tree}, _documents(tree, depth)):
        text = json.dumps(document)
        assert peak_of(reader, text) < BOUND + state_limits.TIMES * len(text), text


PIECES = st.lists(
    st.sampled_from([*(b"(.]})\x8f\x85\x86\x87t\x91\x90eus012Rb\x81\x92NaQdilo\x94"[at : at + 1] for at in range(37))])
    | st.sampled_from(sorted(state_limits.TAKES)).map(
        lambda name: b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in name) + b"\x93"
    )
    | st.sampled_from(["append", "extend", "add", "__setstate__", "1e999999", "|S"]).map(
        lambda word: b"\x8c" + bytes([len(word)]) + word.encode()
    )
    | st.integers(0, 2**31 - 1).map(lambda number: b"J" + number.to_bytes(4, "little"))
    | st.integers(0, 2**63).map(lambda number: b"\x96" + number.to_bytes(8, "little"))
    | st.integers(0, 9).map(lambda place: b"h" + bytes([place])),
    max_size=60,
).map(b"".join)


@given(PIECES)
def test_no_few_bytes_from_another_rank_take_much_memory(pieces: bytes) -> None:
    def read(data: bytes) -> Any:
        return tree_codec.read(data, lambda index, kind: torch.ones(2), admitted=frozenset())

    data = b"\x80\x05" + pieces + b"."
    assert peak_of(read, data) < BOUND + state_limits.TIMES * len(data), data


def peak_of(read: Callable[[Any], Any], data: Any) -> int:
    gc.disable()  # what others left behind is not to be counted
    tracemalloc.start()
    try:
        read(data)
    except Permanent:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.enable()
    return peak


def test_every_plain_name_has_a_row_in_the_table() -> None:
    missing = {name for name in tree_codec.PLAIN - state_limits.TAKES.keys() if name[0] != "pathlib._local"}
    assert missing == {graph.nodes.TENSOR}
    assert set(state_limits.TAKES) < tree_codec.PLAIN


def test_names_that_are_not_in_the_table_are_their_owners_affair() -> None:
    state_limits.Allowance(10).call(("train", "Best"), (range(10**12),))


def test_a_long_text_may_make_as_much_more() -> None:
    few, many = state_limits.Allowance(100), state_limits.Allowance(1 << 20)
    large = (tuple(range(200_000)),)
    many.call(("builtins", "list"), large)
    with pytest.raises(state_limits.Odd, match="more of itself than the 4 MiB that its length allows"):
        few.call(("builtins", "list"), large)


def test_what_is_made_adds_up() -> None:
    allowance = state_limits.Allowance(0)
    for _ in range(state_limits.FREE // (65 * 1000)):
        allowance.call(("builtins", "list"), (range(1000),))
    with pytest.raises(state_limits.Odd):
        allowance.call(("builtins", "list"), (range(2000),))


@pytest.mark.parametrize("digits", [100, 4000, 9000])
def test_integers_of_thousands_of_digits_are_calculated_with(digits: int) -> None:
    allowance = state_limits.Allowance(digits)
    allowance.call(("fractions", "Fraction"), (10**digits + 1, 3))
    allowance.call(("decimal", "Decimal"), ("1" * digits,))
    with pytest.raises(state_limits.Odd, match="too long"):
        allowance.call(("fractions", "Fraction"), (10**20_000, 3))


def test_what_refers_to_itself_is_gone_through_once() -> None:
    ring: list[Any] = []
    ring.append({"a": ring, "b": (ring, ring)})
    state_limits.Allowance(0).told(ring)
    state_limits.Allowance(0).hashed([ring])


def test_what_shares_its_hash_in_one_container_is_counted_and_other_containers_are_others() -> None:
    clashing = [sys.hash_info.modulus * number for number in range(2, 2000)]
    for values in (clashing, [complex(0, number) - 1000003 * number for number in range(2000)]):
        with pytest.raises(state_limits.Odd):
            state_limits.Allowance(0).hashed(values)
    in_pieces, whole = state_limits.Allowance(0), {0}
    for value in clashing[:300]:
        in_pieces.hashed([value], into=whole)
    with pytest.raises(state_limits.Odd):
        in_pieces.hashed(clashing[300:400], into=whole)
    usual = state_limits.Allowance(0)
    for _ in range(100):
        usual.hashed([(number, "x") for number in range(100)], into={0})
        usual.hashed([*range(100), -1, -2, 0.5, "text", (1, 2), 1 + 2j])


def test_what_lies_deeper_than_any_stack_is_not_hashed() -> None:
    deep: Any = ()
    for _ in range(state_limits.DEEPEST + 1):
        deep = (deep,)
    with pytest.raises(state_limits.Odd, match="levels deep"):
        state_limits.Allowance(10**9).hashed([deep])
