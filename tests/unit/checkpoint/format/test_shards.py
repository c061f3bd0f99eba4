from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize

from hvd_elastic_ext.checkpoint.format import shards
from hvd_elastic_ext.checkpoint.format.shards import CUT_ABOVE, share
from hvd_elastic_ext.checkpoint.format.tensor_places import SECTOR, WIDTHS
from hvd_elastic_ext.core.errors import Permanent
from tests.unit.checkpoint.layouts import layouts, placed

worlds = st.integers(1, 9)


@given(layouts, worlds)
def test_only_large_tensors_are_cut_between_elements_and_what_may_differ_is_the_first_writers(
    rows: list[Any], parts: int
) -> None:
    places = placed(rows)
    for number, one in enumerate(share(places, parts)):
        assert number == 0 or all(start >= places.loose for start, _ in one.runs)
        for piece in one.pieces:
            place = places.all[piece.tensor]
            if piece.end - piece.start < place.length:
                assert place.length >= CUT_ABOVE
                assert piece.start % WIDTHS[place.dtype] == piece.end % WIDTHS[place.dtype] == 0


@given(st.lists(st.integers(1, 3 * CUT_ABOVE // 4), min_size=1, max_size=40), worlds)
def test_the_shares_of_ranks_differ_by_no_more_than_two_cuts(sizes: list[int], parts: int) -> None:
    places = placed([["float32", [size], [1], "cpu", 1] for size in sizes])
    lengths = [sum(end - start for start, end in one.runs) for one in share(places, parts)]
    assert max(lengths) - min(lengths) <= 2 * CUT_ABOVE


def test_one_large_tensor_is_shared_by_all() -> None:
    places = placed([["float32", [1 << 22], [1], "cpu", 1]])
    found = share(places, 4)
    assert [[piece.end - piece.start for piece in one.pieces] for one in found] == [[1 << 22]] * 4
    names = [list(json.loads(one.header[8:]))[1] for one in found]
    assert names[:2] == ["0[0:1048576]", "0[1048576:2097152]"]


@given(st.lists(st.integers(CUT_ABOVE, 3 * CUT_ABOVE), min_size=1, max_size=9), worlds)
def test_what_is_cut_begins_at_a_sector_of_memory_and_of_the_file(sizes: list[int], parts: int) -> None:
    places = placed([["uint8", [size], [1], "cpu", 1] for size in sizes])
    for one in share(places, parts):
        assert len(one.header) % SECTOR == 0
        for piece in one.pieces[:1]:
            assert piece.start == 0 or piece.span(places)[0] % SECTOR == 0


def test_the_first_writer_has_less_to_share_if_much_is_its_own() -> None:
    rows = [["uint8", [6_000_000], [1], "cpu", 0], *([["uint8", [1_000_000], [1], "cpu", 1]] * 6)]
    lengths = [sum(end - start for start, end in one.runs) for one in share(placed(rows), 3)]
    assert lengths == [6_000_000, 3_000_000, 3_000_000]


@pytest.mark.parametrize("parts", [0, -1, 100_001])
def test_as_many_parts_make_no_sense(parts: int) -> None:
    with pytest.raises(Permanent, match="parts"):
        share(placed([]), parts)


@given(layouts, worlds)
def test_the_formats_own_reader_takes_every_shard(rows: list[Any], parts: int) -> None:
    places = placed(rows)
    data = random.Random(1).randbytes(places.length)
    found: dict[int, dict[int, bytes]] = {}
    for one in share(places, parts):
        file = one.header + b"".join(data[start:end] for start, end in one.runs)
        assert len(one.header) % 64 == 0
        assert len(file) == one.length
        for (name, told), piece in zip(sorted(deserialize(file), key=by_name(one)), one.pieces, strict=True):
            found.setdefault(piece.tensor, {})[piece.start] = bytes(told["data"])
            assert name.partition("[")[0] == str(piece.tensor)
    for number, place in enumerate(places.all):
        whole = b"".join(part for _, part in sorted(found[number].items()))
        assert whole == data[place.offset : place.offset + place.length]


def by_name(one: shards.Share) -> Any:
    order = [name for name in json.loads(one.header[8:]) if name != "__metadata__"]
    return lambda entry: order.index(entry[0])


@given(layouts, worlds)
def test_a_header_is_read_as_it_was_written(rows: list[Any], parts: int) -> None:
    places = placed(rows)
    for one in share(places, parts):
        filled = [piece for piece in one.pieces if piece.end]
        read = list(shards.decode_header(one.header[8:], places))
        assert [piece for piece in read if piece.end] == filled
        assert set(read) == set(one.pieces)


def test_dimensions_are_in_the_order_of_memory_and_that_is_said() -> None:
    places = placed([["float32", [2, 3, 4, 5], [60, 1, 15, 3], "cpu", 1], ["complex128", [3], [1], "cpu", 1]])
    told = json.loads(share(places, 1)[0].header[8:])
    assert told["0"]["shape"] == [2, 4, 5, 3]
    assert json.loads(told["__metadata__"]["order"]) == {"0": [0, 2, 3, 1]}
    assert told["1"] == {"dtype": "U8", "shape": [48], "data_offsets": [480, 528]}
    assert json.loads(told["__metadata__"]["bytes"]) == {"1": "complex128"}


PLACES = placed([["float32", [4], [1], "cpu", 1], ["float32", [1_000_000], [1], "cpu", 1]])
ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "told",
    [
        "", "[]", "null", "{", "[" * 100_000, {"0": 3}, {"0": []}, {"0": {}}, {"0": {**ENTRY, "dtype": "F64"}},
        {"0": {**ENTRY, "shape": [5]}}, {"0": {**ENTRY, "shape": [2, 2]}}, {"0": {**ENTRY, "data_offsets": [4, 20]}},
        {"0": {**ENTRY, "data_offsets": [0, 1 << 80]}}, {"0": {**ENTRY, "data_offsets": [0]}},
        {"0": {**ENTRY, "data_offsets": [0, 16, 32]}}, {"0": {**ENTRY, "data_offsets": ["a", "b"]}},
        {"0": {**ENTRY, "more": 1}}, {"2": ENTRY}, {"-1": ENTRY}, {"00": ENTRY}, {"0[0:4]": ENTRY}, {"0[0:9]": ENTRY},
        {"0[3:1]": ENTRY}, {"weight": ENTRY}, {"9" * 30: ENTRY}, {"0": ENTRY, "1[0:4]": ENTRY},
    ],
)  # fmt: skip
def test_a_header_that_was_not_written_so_is_refused(told: Any) -> None:
    text = told if isinstance(told, str) else json.dumps(told)
    with pytest.raises(ValueError, match="header"):
        list(shards.decode_header(text.encode(), PLACES))


WRITTEN = share(PLACES, 1)[0].header[8:]


@given(st.lists(st.tuples(st.integers(0, len(WRITTEN) - 1), st.binary(max_size=3)), min_size=1, max_size=3))
def test_a_header_with_other_bytes_is_refused_or_says_the_same(changes: list[tuple[int, bytes]]) -> None:
    text = bytearray(WRITTEN)
    for at, piece in changes:
        text[at : at + len(piece) or at + 1] = piece
    with contextlib.suppress(ValueError):
        found = list(shards.decode_header(bytes(text), PLACES))
        assert found == list(shards.decode_header(WRITTEN, PLACES))[: len(found)]
