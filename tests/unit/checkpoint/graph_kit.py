"""What a State may hold besides plain data, and what it means that two values are the same."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import types
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from hvd_elastic_ext.checkpoint import graph
from hvd_elastic_ext.worker.commits import tree_codec


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Mode(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Best:
    loss: Any
    weights: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    inside: Any


class Frozen:
    """Its state is no dict."""

    __slots__ = ("name",)

    def __init__(self, name: Any) -> None:
        self.name = name

    def __getstate__(self) -> Any:
        return self.name, [self.name]

    def __setstate__(self, state: Any) -> None:
        self.name = state[0]


class ByKeyword:
    def __new__(cls, *args: Any, unit: str = "") -> ByKeyword:
        made = super().__new__(cls)
        made.args, made.unit = args, unit
        return made

    args: tuple[Any, ...]
    unit: str

    def __getnewargs_ex__(self) -> Any:
        return self.args, {"unit": self.unit}


class Items(list[Any]):
    """A list with attributes."""


class Named(dict[Any, Any]):
    """A dict with attributes."""


class Log:
    """Filled in every way there is."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.rows: list[Any] = []
        self.table: dict[Any, Any] = {}
        self.state: Any = None

    def __reduce__(self) -> Any:
        return Log, self.args, self.state, iter(self.rows), iter(self.table.items())

    def append(self, row: Any) -> None:
        self.rows.append(row)

    def extend(self, rows: Any) -> None:
        self.rows.extend(rows)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.table[key] = value

    def __setstate__(self, state: Any) -> None:
        self.state = state


def set_it(target: Foreign, state: Any) -> None:
    target.value = state


class Foreign:
    """Its state is put in by a function."""

    value: Any = None

    def __reduce__(self) -> Any:
        return Foreign, (), self.value, None, None, set_it


class Ring:
    """Made of a list that holds it."""

    def __init__(self, members: list[Any], number: int = 0) -> None:
        self.members = members
        self.number = number

    def __reduce__(self) -> Any:
        return Ring, (self.members, self.number)

    def __repr__(self) -> str:
        return f"Ring {self.number}"


class Counted(Ring):
    """Knows how many there were when it was made."""

    def __init__(self, members: list[Any]) -> None:
        super().__init__(members)
        self.seen = len(members)

    def __reduce__(self) -> Any:
        return Counted, (self.members,)


def counted(size: int) -> list[Any]:
    made: list[Any] = list(range(size))
    made[size // 2] = made[-1] = Counted(made)
    made.append(Counted(made))
    return made


def log() -> Log:
    made = Log(1, "two")
    made.rows, made.table, made.state = [made, 3], {"a": 4, (1, 2): 5}, {"inner": made.rows}
    return made


def foreign(value: Any = None) -> Foreign:
    made = Foreign()
    made.value = {"itself": made, "value": value}
    return made


def with_attributes(value: Any, **attributes: Any) -> Any:
    vars(value).update(attributes)
    return value


def ring() -> Ring:
    made = Ring([])
    made.members.append(made)
    return made


def recursive_tuple(size: int) -> tuple[Any, ...]:
    inner: list[Any] = []
    made = (inner, *range(size - 1))
    inner.append(made)
    return made


def recursive_frozenset() -> Any:
    inside = Best(1)
    Best.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]
    made = frozenset({inside, 1})
    inside.weights = made
    return made


WEIGHT = nn.Parameter(torch.ones(2))
SPECIAL: dict[str, Any] = {
    "none and truth": [None, True, False],
    "integers": [0, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, -(2**3000)],
    "floats": [0.0, -0.0, 1.5, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"), -float("nan")],
    "text": ["", "a", "é\u20ac\U0001f600", "\ud800", "\ud83d" + "\ude00", "x" * 300, "\x00\n\u2028", '"\\'],
    "bytes": [b"", b"\x00\xff", b"x" * 300, bytearray(), bytearray(b"ab")],
    "a dict of words of the notation": {"tensor": 1, "call": 2, "name": {"ref": 0}, "dict": {"dict": []}},
    "a dict of fields of the notation": {"args": 1, "state": {"items": 2}, "append": [], "kind": ""},
    "keys of all kinds": {1: "a", "1": "b", None: 0, (1, (2,)): 1, b"x": 2, 1.5: 3, "\ud800": 4, frozenset({1}): 5},
    "keys that are half a character": {"\ud800": 1, "\ud83d" + "\ude00": 2},
    "many": [list(range(2500)), dict.fromkeys(range(2500)), set(range(2500)), tuple(range(2500))],
    "one": [[1], {"a": 1}, {1}, (1,)],
    "empty": [[], {}, set(), frozenset(), (), [()]],
    "tuples": [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "containers": [
        collections.OrderedDict(b=1, a=2), collections.defaultdict(list, {1: [2]}), collections.deque([1, 2], 5),
        collections.deque([3]), collections.Counter("abca"), types.SimpleNamespace(a=1, b=[2]),
    ],
    "an ordered dict with attributes": with_attributes(collections.OrderedDict(a=1), _metadata={"version": 2}),
    "numbers": [2 + 3j, decimal.Decimal("1.50"), fractions.Fraction(-3, 4), range(3, 9, 2), slice(1, None, 2)],
    "times": [
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
        datetime.date(2020, 1, 2), datetime.time(3, 4), datetime.timedelta(days=-1, microseconds=5),
    ],
    "paths": [pathlib.PurePosixPath("a/b"), pathlib.Path("/tmp"), pathlib.PureWindowsPath("c:/x")],
    "uuids": [uuid.UUID(int=2**127 + 1), uuid.UUID(int=0)],
    "types": [int, dict, Best, Colour, torch.float32, torch.bfloat16, numpy.dtype("float16"), torch.strided],
    "torch's": [torch.Size([1, 2]), torch.device("cpu"), torch.device("cuda", 1)],
    "arrays": [
        numpy.arange(6).reshape(2, 3), numpy.asfortranarray(numpy.ones((2, 3))), numpy.empty((0, 3)), numpy.array(3.5),
        numpy.array(["a", "long"]), numpy.array(["2020-01-01", "NaT"], dtype="datetime64[s]"), numpy.float32(2.5),
        numpy.float64("nan"), numpy.bool_(True), numpy.array([None, [1], {"a": numpy.float32(1)}], dtype=object),
    ],
    "tensors": [
        torch.ones(2), WEIGHT, WEIGHT, nn.Parameter(torch.ones(1), requires_grad=False),
        torch.ones(3, requires_grad=True),
    ],
    "sparse tensors": [torch.eye(3).to_sparse()],
    "members of enumerations": [Colour.RED, Colour.BLUE, Mode.A, Mode.A | Mode.B],
    "records": [Point(1, [2]), Best(0.5, [1]), Slotted({"a": 1}), Frozen("x"), ByKeyword(1, 2, unit="s")],
    "lists and dicts of one's own": [with_attributes(Items([1, 2]), name="n"), with_attributes(Named(a=1), name="n")],
    "filled in every way": log(),
    "with a setter": [foreign(), foreign(), (foreign(), 1), [foreign(), foreign()]],
    "a tuple that ends in a setter": (*recursive_tuple(1), foreign()),
    "made of a list that holds it": ring(),
    "made of a list that is being filled": [counted(3), counted(1500)],
    "tuples that hold themselves": [recursive_tuple(1), recursive_tuple(3), recursive_tuple(6)],
    "a frozenset that holds itself": recursive_frozenset(),
    "type of nothing": [type(None), ..., NotImplemented],
}  # fmt: skip


def written(value: Any) -> tuple[bytes, list[Tensor]]:
    tensors: list[Tensor] = []
    return tree_codec.write(value, tensors), tensors


def read(tree: bytes, tensors: list[Tensor]) -> Any:
    """As another rank does that has the same types in its State."""

    def at(index: int, kind: str) -> Any:
        return (tensors[index], kind) if kind else tensors[index]

    return tree_codec.read(tree, at, admitted=tree_codec.names_in(tree))


def through(tree: bytes) -> bytes:
    """A tree that has been on storage. All that holds for any tree is looked at on the way."""
    text = graph.to_json(tree).encode().decode()
    back = graph.from_json(text)
    assert graph.from_json(text) == back
    assert graph.to_json(back) == text
    assert graph.from_json(graph.to_json(back)) == back
    return back


def demand_same(one: Any, other: Any) -> None:
    """Raise unless the values are equal, of the same types, and what is one thing in one of them is so in the other."""
    waiting: list[tuple[Any, Any]] = [(one, other)]
    known: dict[int, int] = {}
    held: list[Any] = []
    while waiting:
        here, there = waiting.pop()
        assert type(here) is type(there), (here, there)
        parts = list(_parts(here))
        if parts or isinstance(here, dict | list | set | bytearray):
            held += [here, there]  # so that nothing else is ever found at the same place
            if id(here) in known:
                assert known[id(here)] == id(there), (here, there)
                continue
            assert id(there) not in known.values(), (here, there)
            known[id(here)] = id(there)
            others = list(_parts(there))
            assert len(parts) == len(others), (here, there)
            waiting.extend(zip(parts, others, strict=True))
        elif isinstance(here, Tensor):
            assert torch.equal(here.to_dense(), there.to_dense())
            assert here.layout == there.layout
        elif isinstance(here, float):
            assert here.hex() == there.hex()
            assert numpy.float64(here).tobytes() == numpy.float64(there).tobytes()
        elif not hasattr(here, "__dict__") or isinstance(here, type | enum.Enum):
            assert repr(here) == repr(there)
            assert getattr(here, "dtype", None) == getattr(there, "dtype", None)


def _parts(value: Any) -> Iterator[Any]:
    """What ``value`` is made of, in an order that is the same for the same."""
    if isinstance(value, type | enum.Enum | Tensor):
        return
    if isinstance(value, collections.defaultdict):
        yield value.default_factory
    if isinstance(value, collections.deque):
        yield value.maxlen
    if isinstance(value, dict):
        yield from (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple | collections.deque):
        yield from value
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=lambda part: (type(part).__name__, repr(part)))
    elif isinstance(value, numpy.ndarray) and value.dtype == object:
        yield from value.flat
    if isinstance(value, collections.deque | datetime.date | datetime.time):
        return
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from (part for pair in sorted(attributes.items()) for part in pair)
    for name in getattr(type(value), "__slots__", ()) if type(value).__module__ == __name__ else ():
        yield getattr(value, name)
