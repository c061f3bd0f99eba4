"""Lines and lists taken apart, however the bytes are cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.watch.reflector import MAX_LINE, LineSplitter, ListParser

PODS = {
    "kind": "PodList",
    "metadata": {"resourceVersion": "5", "continue": "word"},
    "items": [{"name": f"p{n}", "of": 'grün\\"]}' * n, "deep": [[{"x": [n]}]]} for n in range(9)],
}


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def read(pieces: list[bytes]) -> tuple[list, dict]:
    body = ListParser()
    found = [each for piece in pieces for each in body.feed(piece)]
    return found + body.finish(), body.metadata


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10_000), max_size=30), st.booleans(), st.sampled_from([None, 1]))
def test_rule_09_a_list_is_the_same_however_it_is_cut(places, ascii_only, indent):
    data = json.dumps(PODS, ensure_ascii=ascii_only, indent=indent).encode()
    assert read(cut(data, places)) == (PODS["items"], PODS["metadata"])


def test_a_list_is_handed_on_while_it_comes():
    data = json.dumps(PODS).encode()
    body = ListParser()
    assert body.feed(data[: len(data) // 2])


@pytest.mark.parametrize("items", ["[]", "null", "[ ]"])
def test_an_empty_list_is_a_list(items):
    assert read([f'{{"items":{items},"metadata":{{"resourceVersion":"7"}}}}\n'.encode()]) == (
        [],
        {"resourceVersion": "7"},
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "<html>503</html>",
        '{"kind":"Status","code":200}',
        '{"items":[{"a":1},{"b"',
        '{"items":[{"a":1}',
        '{"items":[{"a":1}]',
        '{"items":{}}',
        '{"items":[}]}',
        '{"items":[{"a":1} {"b":2}]}',
        '{"items":[,{"a":1}]}',
        '{"items":[1,,2]}',
        '{"items" []}',
    ],
)
def test_what_is_no_whole_list_is_none(text):
    with pytest.raises(ValueError, match=r"."):
        read([text.encode()])


def test_half_a_character_is_no_character():
    with pytest.raises(ValueError, match="utf-8"):
        read(['{"items":["ü'.encode()[:-1]])


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_rule_09_lines_are_the_same_however_they_are_cut(places):
    lines = [json.dumps(each, ensure_ascii=False).encode() for each in PODS["items"]]
    reader = LineSplitter()
    assert [line for piece in cut(b"\n".join(lines) + b"\n", places) for line in reader.feed(piece)] == lines


def test_rule_09_a_line_of_a_megabyte_is_a_line():
    reader, line = LineSplitter(), b"x" * (1 << 20)
    assert [found for start in range(0, len(line), 4096) for found in reader.feed(line[start : start + 4096])] == []
    assert reader.feed(b"\n") == [line]


def test_a_line_without_end_is_not_kept_for_ever():
    reader = LineSplitter()
    reader.feed(b"x" * MAX_LINE)
    with pytest.raises(ValueError, match="longer than 16 MiB"):
        reader.feed(b"x")


def test_blank_lines_are_passed_over():
    assert LineSplitter().feed(b"\n \r\n\na\n\n") == [b"a"]
