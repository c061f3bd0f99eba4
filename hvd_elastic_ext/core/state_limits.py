"""How much a State that somebody else may have written can make of itself.

A few words may name values of any size: a list of a range, a number with an exponent. So
what plain types and functions are called with is checked and counted before they are called, by one table for every
reader: of bytes that came from another rank, and of checkpoints that are exported.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

Name = tuple[str, str]
"""A type or function: its module, and its name there."""

FREE: Final = 4 << 20
TIMES: Final = 64
"""What ``n`` bytes of text tell of may cost :data:`FREE` + :data:`TIMES` * n: bytes that are made, or steps."""

DEEPEST: Final = 10_000
"""Levels of a tree. Hashing or comparing what lies much deeper overruns the stack of the process that tries."""

_CALL: Final = 16
_ITEM: Final = 64
_NODE: Final = 8
_OTHER: Final = 1000
"""The text of something that is no plain value: of an array, say, which shows a thousand elements at most."""
_LONGEST_WHOLE: Final = 1 << 15
"""Bits of an integer that is calculated with: nearly ten thousand digits."""


class Odd(ValueError):
    """Something would be made in a way in which no value is written, or would be larger than its text allows."""


class Allowance:
    """What may still be made for a text of ``length`` bytes."""

    def __init__(self, length: int) -> None:
        self._most = self._left = FREE + TIMES * length
        self._filled: dict[int, tuple[Any, collections.Counter[int]]] = {}
        """Containers that are filled in pieces, and how often each hash that can be chosen is in them."""

    def spend(self, cost: int) -> None:
        """Raises :class:`Odd` if that is more than is left."""
        self._left -= cost
        if self._left < 0:
            raise Odd(f"it would make more of itself than the {self._most >> 20} MiB that its length allows")

    def call(self, name: Name, args: tuple[Any, ...]) -> None:
        """``name`` is about to be called with ``args``. Raises :class:`Odd` if it must not be.

        Names that are not in the table cost nothing: what the user's own types do is the user's.
        """
        takes = TAKES.get(name)
        if takes is None:
            return
        if len(args) > len(takes) and takes[-1:] != (_PARTS,):
            raise Odd(f"{name[1]} of {len(args)} values")
        self.spend(_CALL)
        for number, value in enumerate(args):
            wanted = takes[min(number, len(takes) - 1)]
            fits = isinstance(value, wanted.kinds)
            if not fits:
                raise Odd(f"{name[1]} of a value of the type {type(value).__name__}")
            self.spend(wanted.cost(value))
            if wanted is _PAIRS and not isinstance(value, dict):
                self.hashed(pair[0] for pair in value if pair)
            elif name in _HASHING:
                self.hashed(value)
        if name == _ARRAY and len(args) == 4 and not args[3]:
            self.spend(_bytes_of(args[0]) * max(1, math.prod(args[1])))

    def hashed(self, values: Iterable[Any], *, into: Any = None) -> None:
        """Each of these is about to be hashed: what is in it several times is looked at as often.

        Values of one hash in one container are compared with each other, and whoever writes the data can choose the
        hash of a number, and of what holds numbers. So each also costs the others of its hash that are there already:
        in the container ``into``, or, without one, in this call.
        """
        here: collections.Counter[int] = collections.Counter()
        for value in values:
            kind = type(value)
            if kind in _SPREAD:
                continue
            cost = 0 if kind in _FLAT else _unfolded(value, self._left, is_told=False)
            self.spend(cost)
            if kind is int and abs(value) < sys.hash_info.modulus:
                continue
            try:
                number = hash(value)
            except Exception:  # noqa: BLE001, S112 - who fills the container will find it, too, and say so
                continue
            if into is not None:
                here = self._filled.setdefault(id(into), (into, collections.Counter()))[1]
            self.spend(here[number] * (_ITEM + cost))
            here[number] += 1

    def told(self, value: Any) -> None:
        """It is about to be written as text."""
        self.spend(_unfolded(value, self._left, is_told=True))


def _unfolded(root: Any, most: int, *, is_told: bool) -> int:
    """The cost of going through a value, each thing in it as often as it is there; any number above ``most`` for more.

    What refers to itself is not gone through again, as ``repr`` does not.
    """
    known: dict[int, int] | None = {}
    path: set[int] = set()
    frames = [_Frame((root,), None)]
    steps = 0
    while True:
        frame = frames[-1]
        for part in frame.parts:
            steps += _NODE
            cost = _flat(part, is_told=is_told)
            if cost is None and id(part) in path:
                known, cost = None, 0  # what is found within a ring holds there only
            elif cost is None and known is not None:
                cost = known.get(id(part))
            if cost is None:
                break
            frame.cost += _NODE + cost
        else:
            frames.pop()
            if not frames:
                return frame.cost
            path.discard(id(frame.value))
            if known is not None:
                known[id(frame.value)] = frame.cost
            frames[-1].cost += _NODE + frame.cost
            continue
        if max(steps, frame.cost) > most:
            return most + 1
        if len(frames) > DEEPEST:
            raise Odd(f"it is nested more than {DEEPEST} levels deep")
        if cost is None:
            path.add(id(part))
            frames.append(_Frame(_parts(part), part))


class _Frame:
    """A container that is being gone through."""

    __slots__ = ("cost", "parts", "value")

    def __init__(self, parts: Iterable[Any], value: Any) -> None:
        self.parts = iter(parts)
        self.value = value
        self.cost = 0


def _flat(value: Any, *, is_told: bool) -> int | None:
    """The cost of a value that holds no others; None for one that does."""
    if isinstance(value, str | bytes | bytearray):
        return len(value) if is_told else 0
    if isinstance(value, int):
        return value.bit_length() >> 3
    if isinstance(value, _CONTAINERS) or _has_fields(value) or _has_objects(value):
        return None
    return 0 if type(value) in _FLAT or not is_told else _OTHER


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return (part for pair in value.items() for part in pair)
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, types.SimpleNamespace):
        return vars(value).values()
    if _has_fields(value):
        return (getattr(value, field.name, None) for field in dataclasses.fields(value))
    found: Iterable[Any] = value.flat if _has_objects(value) else value
    return found


_CONTAINERS: Final = (
    tuple, list, frozenset, set, collections.deque, Mapping, slice, types.SimpleNamespace,
)  # fmt: skip


def _has_fields(value: Any) -> bool:
    """Whether it is a record, and its hash that of what is in it."""
    kind = type(value)
    return dataclasses.is_dataclass(kind) and kind.__hash__ is not object.__hash__


def _has_objects(value: Any) -> bool:
    """Whether it is an array of objects, of NumPy's."""
    return bool(getattr(getattr(value, "dtype", None), "hasobject", False))


_FLAT: Final = frozenset({str, bytes, float, bool, complex, type(None)})
"""Their hash is known, or takes one step."""
_SPREAD: Final = _FLAT - {complex}
"""No more than a few of them have the same hash, whoever chooses them."""


class Takes(NamedTuple):
    """What may be given for one parameter: of which types, and what that costs (or :class:`Odd`)."""

    kinds: tuple[type, ...]
    cost: Callable[[Any], int]


def _scalar(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length() >> 3
    return len(value) >> 2 if isinstance(value, str) else len(value) if isinstance(value, bytes | bytearray) else 0


def _each(value: Any) -> int:
    try:
        return _ITEM * len(value)
    except OverflowError:
        raise Odd("a range longer than any memory") from None


def _pairs(value: Any) -> int:
    if not isinstance(value, dict) and not all(isinstance(pair, list | tuple) for pair in value):
        raise Odd("a dict of pairs that are none")
    return _ITEM * len(value)


def _sizes(value: Sequence[Any]) -> int:
    if not all(isinstance(size, int) and size.bit_length() < 64 for size in value):
        raise Odd("a size of no numbers")
    return _ITEM * len(value)


def _shape(value: Sequence[Any]) -> int:
    cost = _sizes(value)
    if len(value) > 64 or any(size < 0 for size in value):
        raise Odd("a shape that no array has")
    return cost


def _whole(value: int) -> int:
    if value.bit_length() > _LONGEST_WHOLE:
        raise Odd("an integer too long to be calculated with")
    return _scalar(value)


def _numeral(value: Any) -> int:
    """Of a number to calculate with: an exponent would make a few digits as many as one likes."""
    if isinstance(value, int):
        return _whole(value)
    if len(value) > _LONGEST_WHOLE or not re.fullmatch(r"-?\d+(/\d+)?", value):
        raise Odd("a number of an odd form")
    return _scalar(value)


_WORD: Final = re.compile(r"[<>|=]?[biufcmMSU](\d{0,10})(\[\w*(/\d+)?\])?")


def _word(value: str) -> int:
    if not _WORD.fullmatch(value):
        raise Odd(f"{value[:40]!r} is no plain type of NumPy's")
    return len(value)


def _bytes_of(word: str) -> int:
    """Of one element, at most."""
    found = _WORD.fullmatch(word)
    return 4 * int(found[1] or 1) if found else 0


_NONE: Final = type(None)
_ANY: Final = Takes((object,), lambda value: 0)
_INT: Final = Takes((int,), _scalar)
_TEXT: Final = Takes((str,), _scalar)
_BYTES: Final = Takes((bytes, bytearray), _scalar)
_NUMBER: Final = Takes((int, float, str), _scalar)
_WHEN: Final = Takes((int, bytes, str, datetime.tzinfo, _NONE), _scalar)
_MANY: Final = Takes(
    (list, tuple, set, frozenset, dict, collections.deque, range, str, bytes, bytearray), _each
)  # fmt: skip
_PAIRS: Final = Takes((dict, list, tuple), _pairs)
_PARTS: Final = Takes((str,), _scalar)
"""Any number of them."""
_SIZES: Final = Takes((list, tuple), _sizes)
_SHAPE: Final = Takes((list, tuple), _shape)
_OF_NUMPY: Final = Takes((str,), _word)

_ARRAYS: Final = "hvd_elastic_ext.worker.commits.numpy_codec"
_MANIFEST: Final = "hvd_elastic_ext.worker.commits.tree_codec"
_ARRAY: Final = (_ARRAYS, "array_at")

TAKES: Final[Mapping[Name, tuple[Takes, ...]]] = {
    ("builtins", "bytearray"): (_BYTES,),
    ("builtins", "complex"): (Takes((int, float, complex, str), _scalar), Takes((int, float), _scalar)),
    ("builtins", "dict"): (_PAIRS,),
    ("builtins", "float"): (_NUMBER,),
    ("builtins", "frozenset"): (_MANY,),
    ("builtins", "int"): (_NUMBER, _INT),
    ("builtins", "list"): (_MANY,),
    ("builtins", "object"): (),
    ("builtins", "range"): (_INT, _INT, _INT),
    ("builtins", "set"): (_MANY,),
    ("builtins", "slice"): (_ANY, _ANY, _ANY),
    ("builtins", "str"): (_NUMBER,),
    ("builtins", "tuple"): (_MANY,),
    ("collections", "Counter"): (_MANY,),
    ("collections", "OrderedDict"): (_PAIRS,),
    ("collections", "defaultdict"): (_ANY, _PAIRS),
    ("collections", "deque"): (_MANY, Takes((int, _NONE), _scalar)),
    ("datetime", "date"): (_WHEN,) * 3,
    ("datetime", "datetime"): (_WHEN,) * 9,
    ("datetime", "time"): (_WHEN,) * 6,
    ("datetime", "timedelta"): (Takes((int, float), _scalar),) * 7,
    ("datetime", "timezone"): (Takes((datetime.timedelta,), lambda value: 0), _TEXT),
    ("decimal", "Decimal"): (
        Takes((str, int, float), lambda value: (_whole if type(value) is int else _scalar)(value)),
    ),
    ("fractions", "Fraction"): (Takes((str, int), _numeral), Takes((int,), _whole)),
    ("pathlib", "PosixPath"): (_PARTS,),
    ("pathlib", "PurePosixPath"): (_PARTS,),
    ("pathlib", "PureWindowsPath"): (_PARTS,),
    ("types", "SimpleNamespace"): (_PAIRS,),
    ("torch", "Size"): (_SIZES,),
    ("torch", "device"): (Takes((str, int), _scalar), _INT),
    ("torch.serialization", "_get_layout"): (_TEXT,),
    _ARRAY: (_OF_NUMPY, _SHAPE, _TEXT, _BYTES),
    (_ARRAYS, "dtype_at"): (_OF_NUMPY,),
    (_ARRAYS, "objects_at"): (_SHAPE, Takes((list, tuple), _each)),
    (_ARRAYS, "scalar_at"): (_OF_NUMPY, _BYTES),
    (_MANIFEST, "sparse_at"): (_ANY, _ANY, _SIZES),
    (_MANIFEST, "uuid_at"): (_INT,),
}
"""What each plain type and function may be called with: what is written for values, and what is as harmless."""

_HASHING: Final = frozenset(
    {("builtins", "frozenset"), ("builtins", "set"), ("collections", "Counter")}
)  # fmt: skip
