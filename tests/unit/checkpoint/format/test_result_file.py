"""The bytes of a call's result: read as written, or an error that says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.format import result_file
from hvd_elastic_ext.checkpoint.format.result_file import Head

HEAD = Head(
    "train.py", "0.5", loose=2, data=5, layout=3, tree=4, rng="null", collectives=[["allreduce", "é"]], more={"x": 1}
)
WHOLE = result_file.encode_head(HEAD) + b"datas" + b"lay" + b"tree"


def test_a_result_is_read_as_it_was_written() -> None:
    found = result_file.decode(WHOLE)
    assert found.head == HEAD
    assert (bytes(found.data), bytes(found.layout), bytes(found.tree)) == (b"datas", b"lay", b"tree")
    assert found.head.has_state


def test_its_first_bytes_are_the_length_of_ascii_json() -> None:
    length = int.from_bytes(WHOLE[:8], "little")
    assert json.loads(WHOLE[8 : 8 + length].decode("ascii")) == {
        "format": 1, "program": "train.py", "record": {"loose": 2, "data": 5, "layout": 3, "tree": 4},
        "x": 1, "value": "0.5", "rng": "null", "collectives": [["allreduce", "é"]],
    }  # fmt: skip


def test_a_call_without_a_state_has_a_head_only() -> None:
    found = result_file.decode(result_file.encode_head(Head("train.py", "null")))
    assert (found.head.rng, found.head.collectives, found.head.has_state) == (None, [], False)
    assert (len(found.data), len(found.layout), len(found.tree)) == (0, 0, 0)


def test_the_data_is_not_copied() -> None:
    content = bytearray(WHOLE)
    found = result_file.decode(content)
    content[len(WHOLE) - 12] ^= 1
    assert bytes(found.data) != b"datas"


def test_a_result_that_is_cut_off_or_longer_is_refused() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(ValueError, match=r"result|Expecting|Unterminated"):
            result_file.decode(WHOLE[:length])
    with pytest.raises(ValueError, match="not as long as its head says"):
        result_file.decode(WHOLE + b"x")


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "a later format": lambda head: head.update(format=2),
    "no format": lambda head: head.pop("format"),
    "no value": lambda head: head.update(value=5),
    "a generator state that is a number": lambda head: head.update(rng=3),
    "collectives that are none": lambda head: head.update(collectives={}),
    "lengths that are none": lambda head: head.update(record=[1]),
    "a negative length": lambda head: head["record"].update(tree=-1),
    "a length beyond any": lambda head: head["record"].update(data=1 << 70),
    "more loose than there is": lambda head: head["record"].update(loose=6),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_was_made_up_is_refused(name: str) -> None:
    length = int.from_bytes(WHOLE[:8], "little")
    head = json.loads(WHOLE[8 : 8 + length])
    WRONG[name](head)
    text = json.dumps(head).encode()
    with pytest.raises(ValueError, match=r"result|length"):
        result_file.decode(len(text).to_bytes(8, "little") + text + WHOLE[8 + length :])


@given(st.binary(max_size=300))
def test_any_bytes_are_a_result_or_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        result_file.decode(data)
    with pytest.raises(ValueError, match=r"\w"):
        result_file.decode(len(data).to_bytes(8, "little") + data)
