"""What a pickler may emit is what is understood. Nothing here needs torch: it is to be run on every Python."""

from __future__ import annotations

import ast
import copyreg
import inspect
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint import graph
from hvd_elastic_ext.checkpoint.graph.from_pickle import HANDLERS
from hvd_elastic_ext.core.errors import Permanent

OLDER = {
    "INT", "LONG", "FLOAT", "STRING", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "GET", "PUT", "BINPUT", "LONG_BINPUT",
    "GLOBAL", "DICT", "LIST",
}  # fmt: skip
"""Of protocols below 4."""
ELSEWHERE = {"PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER", "EXT1", "EXT2", "EXT4"}
"""Written if the pickler has an id of its own for things, is asked to leave buffers out, or types are registered."""


def test_whatever_this_pythons_pickler_writes_is_understood() -> None:
    codes = {value: name for name, value in vars(pickle).items() if isinstance(value, bytes) and len(value) == 1}
    sources = [ast.parse(inspect.getsource(part)) for part in (pickle._Pickler, pickle._Framer)]  # type: ignore[attr-defined]
    named = {node.id for source in sources for node in ast.walk(source) if isinstance(node, ast.Name)}
    written = {name for name in codes.values() if name in named} | {
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
    }  # those are in a table
    assert written >= {"REDUCE", "MEMOIZE", "FRAME", "STACK_GLOBAL", "BYTEARRAY8", "ADDITEMS"}
    assert written - OLDER - ELSEWHERE <= HANDLERS.keys()


def test_no_operation_of_pickles_is_left_out_by_oversight() -> None:
    known = {opcode.name for opcode in pickletools.opcodes}
    assert known - HANDLERS.keys() - OLDER - ELSEWHERE == {"DUP", "INST", "OBJ"}  # no pickler writes these any more


class Thing:
    def __init__(self, *args: Any) -> None:
        self.args = args


class Plain:
    """With nothing of its own."""


class ByKeyword:
    def __new__(cls, *args: Any, **kwargs: Any) -> ByKeyword:
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> Any:
        return (), {"unit": 1}


class Own:
    def __init__(self, reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def put(target: Any, state: Any) -> None:
    target.state = state


def corpus() -> Iterator[Any]:
    yield [
        None,
        True,
        False,
        0,
        255,
        256,
        65536,
        -1,
        2**40,
        1 << 3000,
        1.5,
        "a",
        "b" * 300,
        b"a",
        b"b" * 300,
        bytearray(b"x"),
    ]
    yield [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [1], [1, 2], {}, {1: 2}, {1: 2, 3: 4}, {1}, frozenset({1})]
    inner: list[Any] = []
    inner += [(inner, 1), (inner, 1, 2, 3)]
    few: list[Any] = []
    few.append((few, 1))
    many: list[Any] = []
    many.append((many, 1, 2, 3))
    yield [inner, few[0], many[0]]
    around = Plain()
    around.held = frozenset({around})  # type: ignore[attr-defined]
    yield around.held  # type: ignore[attr-defined]
    yield [Plain(), Thing(1), ByKeyword(), Own((Thing, (1, 2))), Own((Thing, (), {"a": 1}, None, None, put))]
    yield [[str(number), str(number)] for number in range(300)] * 2
    ring: list[Any] = []
    ring.append(Own((Thing, (ring,))))
    yield ring[0]


def test_every_operation_that_is_understood_is_tried() -> None:
    tried = set()
    for value in corpus():
        data = pickle.dumps(value, protocol=5)
        tried |= {opcode.name for opcode, _, _ in pickletools.genops(data)}
        back = graph.from_json(graph.to_json(data))
        assert graph.from_json(graph.to_json(back)) == back
        pickle.loads(back)
    # Only for more than 4 GiB.
    assert HANDLERS.keys() - tried == {"BINUNICODE8", "BINBYTES8"}


@pytest.mark.parametrize(
    ("data", "value"), [(b"\x8d" + (3).to_bytes(8, "little") + b"abc", "abc"), (b"\x8e" + bytes(8), b"")]
)
def test_what_is_longer_than_4_gib_is_written_in_its_own_way(data: bytes, value: Any) -> None:
    assert pickle.loads(graph.from_json(graph.to_json(b"\x80\x05" + data + b"."))) == value


def test_the_result_of_a_setter_is_told_from_what_is_told_twice() -> None:
    """Both are thrown away in the same words."""
    setting = Own((Thing, (), {"a": 1}, None, None, put))
    inner: list[Any] = []
    inner.append((inner, setting))
    for value in (inner[0], [setting, setting], (setting,)):
        back = pickle.loads(graph.from_json(graph.to_json(pickle.dumps(value, protocol=5))))
        last = back[-1]
        assert (type(last), last.state) == (Thing, {"a": 1})


UNLIKE = {
    "a pickle of protocol 0": pickle.dumps([1, 2], protocol=0),
    "a global of protocol 2": pickle.dumps(Thing, protocol=2),
    "cut": pickle.dumps([1, 2], protocol=5)[:-3],
    "something behind it": pickle.dumps([1, 2], protocol=5) + b"x",
    "nothing": b"",
    "text": b"hello",
    "a persistent id": b"\x80\x05K\x01Q.",
    "a mark too few": b"\x80\x05]e.",
    "a mark left": b"\x80\x05(K\x01.",
    "two values": b"\x80\x05K\x01K\x02.",
    "nothing remembered": b"\x80\x05h\x00.",
    "a call of a number": b"\x80\x05K\x01)R.",
    "a call without a tuple": b"\x80\x05\x8c\x01a\x8c\x01b\x93]R.",
    "a name of numbers": b"\x80\x05K\x01K\x02\x93.",
    "a state for a number": b"\x80\x05K\x01K\x02b.",
    "a list that is none": b"\x80\x05}K\x02a.",
    "a set that is none": b"\x80\x05](K\x02\x90.",
    "a dict that is none": b"\x80\x05]K\x02K\x01s.",
    "half a pair": b"\x80\x05}(K\x02u.",
    "thrown away": b"\x80\x05K\x01K\x020.",
    "made and thrown away": b"\x80\x05K\x01\x8c\x01a\x8c\x01b\x93)R0.",
    "nothing to throw away": b"\x80\x0500.",
    "a state twice": b"\x80\x05\x8c\x01a\x8c\x01b\x93)R}b]b.",
    "items after the state": b"\x80\x05\x8c\x01a\x8c\x01b\x93)R}bK\x01a.",
    "a tuple of what is not there": b"\x80\x05\x87.",
    "a name that is none": b"\x80\x05\x8c\x01a\x8c\x03b c\x93.",
}


@pytest.mark.parametrize("how", UNLIKE)
def test_bytes_that_no_worker_wrote_are_refused_in_one_line(how: str) -> None:
    with pytest.raises(Permanent) as refusal:
        graph.to_json(UNLIKE[how])
    assert "\n" not in str(refusal.value)


def test_a_type_that_is_registered_by_number_is_refused_because_numbers_mean_nothing_elsewhere() -> None:
    copyreg.add_extension(__name__, "Plain", 240)
    try:
        data = pickle.dumps(Plain, protocol=5)
    finally:
        copyreg.remove_extension(__name__, "Plain", 240)
    with pytest.raises(Permanent, match=r"registered with copyreg\.add_extension"):
        graph.to_json(data)


def test_paths_of_python_3_13_are_paths_of_every_python() -> None:
    data = b"\x80\x05\x8c\x0epathlib._local\x8c\rPurePosixPath\x93\x8c\x01a\x85R."
    text = graph.to_json(data)
    assert '"pathlib:PurePosixPath"' in text
    assert str(pickle.loads(graph.from_json(text))) == "a"
