"""The graph as plain values, for people and other programs.

What may be made is in a table here; names in a file are looked up in that, and nowhere else.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import math
import pathlib
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.checkpoint.graph.nodes import OWN, Made, Name, Tensor, Value
from hvd_elastic_ext.checkpoint.graph.walk import walk
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.core.state_limits import Allowance


def built(root: Value, tensor: Callable[[int, str], Any], *, length: int) -> Any:
    """Return the value that the graph describes, read from a text of ``length`` characters.

    Raises :class:`Permanent` for one that cannot be made, or would be larger than its text allows.
    """
    sink = _Plain(tensor, Allowance(length))
    try:
        walk(root, sink)
    except ImportError as error:
        raise Permanent(f"{' '.join(str(error).split())}; install what the training used, torch for one") from error
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise Permanent(
            f"the checkpoint holds what cannot be made: {' '.join(str(error).split())}; use another checkpoint"
        ) from error
    return sink.result()


class _Plain:
    def __init__(self, tensor: Callable[[int, str], Any], allowance: Allowance) -> None:
        self._tensor = tensor
        self._allowance = allowance
        self._stack: list[Any] = []
        self._kept: dict[int, Any] = {}
        self._told: dict[int, _Told] = {}
        self._tensors: dict[Tensor, Any] = {}

    def result(self) -> Any:
        return self._stack[0]

    def atom(self, value: Value) -> None:
        self._stack.append(value)

    def name(self, name: Name) -> None:
        self._stack.append(_constant(name))

    def tensor(self, tensor: Tensor) -> None:
        if tensor not in self._tensors:
            self._tensors[tensor] = self._tensor(tensor.index, tensor.kind)
        self._stack.append(self._tensors[tensor])

    def octets(self, data: bytes) -> None:
        self._stack.append(bytearray(data))

    def keep(self, key: int) -> None:
        self._kept[key] = self._stack[-1]

    def get(self, key: int) -> None:
        self._stack.append(self._kept[key])

    itself = get

    def drop(self, count: int, *, marked: bool) -> None:
        self._pop(count)

    def mark(self) -> None:
        """How many values there are is known."""

    def begin(self, kind: str) -> None:
        self._stack.append({"list": list, "set": set, "dict": dict}[kind]())

    def fill(self, kind: str, count: int, *, marked: bool) -> None:
        values = self._pop(2 * count if kind == "dict" else count)
        target = self._stack[-1]
        if kind == "dict":
            values = [
                (self._hashable(key, target), value) for key, value in zip(values[::2], values[1::2], strict=True)
            ]
        told = self._told.get(id(target))
        if told is not None:
            told.fill(values, are_pairs=kind == "dict")
        elif kind == "dict" and isinstance(target, dict):
            for key, value in values:
                target[key] = value
        elif kind == "set" and isinstance(target, set):
            target.update(self._hashable(value, target) for value in values)
        elif kind == "list" and isinstance(target, list | collections.deque):
            target.extend(values)
        else:
            raise TypeError(f"a {type(target).__name__} is filled in an odd way")

    def close(self, kind: str, count: int) -> None:
        values = self._pop(count)
        self._stack.append(
            tuple(values) if kind == "tuple" else frozenset(self._hashable(each, values) for each in values)
        )

    def make(self, made: Made) -> None:
        kwargs = self._pop(1)[0] if made.kwargs else {}
        what, args = self._pop(2)
        if isinstance(made.what, Name) and not kwargs and (made.what.module, made.what.name) in TYPES | FUNCTIONS:
            self._allowance.call((made.what.module, made.what.name), args)
            self._stack.append(_make(made, args))
            return
        told = _Told(f"{made.what.module}:{made.what.name}" if isinstance(made.what, Name) else str(what))
        self._told[id(told.told)] = told
        told.add({"args": list(args)} if args else {})
        told.add({"kwargs": kwargs} if kwargs else {})
        self._stack.append(told.told)

    def state(self, made: Made) -> None:
        (state,) = self._pop(1)
        self._fill_with(self._stack[-1], state)

    def setter(self, made: Made) -> None:
        *_, state = self._pop(3)
        self._fill_with(self._stack[-1], state)

    def _fill_with(self, target: Any, state: Any) -> None:
        told = self._told.get(id(target))
        if told is not None:
            told.add({"state": state})
        elif isinstance(state, dict):
            vars(target).update(state)
        else:
            raise TypeError(f"a {type(target).__name__} takes no state like that")

    def _hashable(self, value: Any, container: Any) -> Any:
        """``value``, or text in place of what is a dict here but was no dict there."""
        self._allowance.hashed((value,), into=container)
        try:
            hash(value)
        except TypeError:
            self._allowance.told(value)
            return str(value)
        return value

    def _pop(self, count: int) -> list[Any]:
        start = len(self._stack) - count
        values = self._stack[start:]
        del self._stack[start:]
        return values


class _Told:
    """A value of a type that is not made here, as a dict of its name and what is known of it.

    The dict may be referred to before all is known.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._content: dict[str, Any] = {}
        self.told: dict[str, Any] = {name: {}}

    def add(self, content: Mapping[str, Any]) -> None:
        self._content.update(content)
        only = len(self._content) == 1 and "kwargs" not in self._content
        self.told[self._name] = next(iter(self._content.values())) if only else self._content

    def fill(self, values: list[Any], *, are_pairs: bool) -> None:
        field = "items" if are_pairs else "append"
        known = self._content.setdefault(field, {} if are_pairs else [])
        known.update(values) if are_pairs else known.extend(values)
        self.add({})


def _constant(name: Name) -> Any:
    known = TYPES.get((name.module, name.name))
    if known is not None:
        return known
    if name.module == "torch":
        import torch

        found = vars(torch).get(name.name)
        if isinstance(found, torch.dtype):
            return found
    return f"{name.module}:{name.name}"


TYPES: Final[dict[tuple[str, str], type]] = {
    **{
        ("builtins", kind.__name__): kind
        for kind in (bytearray, complex, dict, float, frozenset, int, list, object, range, set, slice, str, tuple)
    },
    **{
        (kind.__module__, kind.__name__): kind
        for kind in (
            collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque,
            datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone,
            decimal.Decimal, fractions.Fraction, types.SimpleNamespace,
        )
    },
    **{
        ("pathlib", kind.__name__): kind
        for kind in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
    },
}  # fmt: skip
"""Types that are made as they are, as the worker's reader makes them."""


def _make(made: Made, args: Sequence[Any]) -> Any:
    """What one of :data:`TYPES` or :data:`FUNCTIONS` makes. Raises ``LookupError`` if the name is neither."""
    name = (made.what.module, made.what.name)
    if name in FUNCTIONS:
        return FUNCTIONS[name](*args)
    kind = TYPES[name]
    return kind(*args) if made.how == "call" else kind.__new__(kind, *args)


def _size(sizes: Sequence[int] = ()) -> Any:
    import torch

    return torch.Size(sizes)


def _device(*args: Any) -> Any:
    import torch

    return torch.device(*args)


def _layout(name: str) -> Any:
    import torch

    found = vars(torch).get(name.removeprefix("torch."))
    if not isinstance(found, torch.layout):
        raise TypeError(f"{name!r} is no layout of tensors")
    return found


def _sparse(indices: Any, values: Any, size: Sequence[int]) -> Any:
    import torch

    if not isinstance(indices, torch.Tensor) or not isinstance(values, torch.Tensor):
        raise TypeError("a sparse tensor of no tensors")
    return torch.sparse_coo_tensor(indices, values, list(size), is_coalesced=True, check_invariants=True)


def _dtype(word: str) -> Any:
    import numpy

    dtype = numpy.dtype(word) if isinstance(word, str) else None
    if dtype is None or dtype.hasobject or dtype.names:
        raise TypeError(f"{word!r} is no plain type of NumPy's")
    return dtype


def _array(word: str, shape: Sequence[int], order: str, data: bytes) -> Any:
    import numpy

    dtype, size = _dtype(word), tuple(shape)
    if not data and 0 in (dtype.itemsize, math.prod(size)):
        return numpy.zeros(size, dtype)
    return numpy.frombuffer(data, dtype).reshape(size, order="F" if order == "F" else "C").copy("K")


def _objects(shape: Sequence[int], items: Sequence[Any]) -> Any:
    import numpy

    flat = numpy.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        flat[index] = item
    return flat.reshape(tuple(shape))


FUNCTIONS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("torch.serialization", "_get_layout"): _layout,
    OWN["array"]: _array,
    OWN["dtype"]: _dtype,
    OWN["objects"]: _objects,
    OWN["scalar"]: lambda word, data: _array(word, (1,), "C", data)[0],
    OWN["sparse"]: _sparse,
    OWN["uuid"]: lambda number: uuid.UUID(int=number),
}
"""What else is made, by the function that the worker's reader would call."""
