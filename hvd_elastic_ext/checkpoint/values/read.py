"""Makes values from text. The text is only data: nothing is imported. For the code that may run, see the package."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import enum
import itertools
import json
import math
import re
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from hvd_elastic_ext.core.errors import StateError

# --- values


DEEPEST: Final = 64
"""Most levels of containers in containers."""
CLASHING: Final = 100
"""Most keys of one dict, or members of one set, with the same hash: each is compared with all the others."""

_WIDEST: Final = 4096
"""Most bytes of an element, in an array without elements."""
_LONGEST_WHY: Final = 300
_BRACKETS: Final = 5 * DEEPEST + 4
"""Most nested brackets in the text: up to five for a container (``$ordered`` of ``$dict``), four for the rest."""
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - _STEPS.keys())
_DTYPE: Final = re.compile(r"[<>|=]?[biufcmMSU]\d{0,10}(\[\w{1,8}(/\d{1,9})?\])?")
_UNREADABLE: Final = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError, struct.error,
)  # fmt: skip
"""The errors for text that the writer has not written. ``RecursionError`` is one of them."""

TensorAt = Callable[[int, str], Any]
"""Returns the tensor of a number. Its kind in the text: "parameter", "frozen", "leaf", or empty for other tensors."""


def read(text: str, tensor: TensorAt, *, source: str = "another rank") -> Any:
    """Return the value that :func:`write` has written, with tensors from ``tensor``.

    Time and memory are proportional to the text. Raises :class:`StateError` for any other text, and for a class of the
    script that no imported module has.
    """
    return _read(text, _Reader(tensor), source)


def plain(text: str, tensor: TensorAt) -> Any:
    """As :func:`read`, for programs that have not imported the training script.

    NumPy's arrays, and tensors of TensorFlow, become tensors of torch, or lists if torch has no such type; its scalars
    become Python's. A dataclass or a named tuple becomes ``{"train:Best": {"loss": 0.5}}``, an enumeration's member
    ``"train:Phase.WARM_UP"``. As a key or in a set, where a dict is impossible, it becomes a tuple of its items.
    """
    return _read(text, _Plain(tensor), "a checkpoint")


def check(text: str) -> None:
    """Raise :class:`StateError` if ``text`` is not a value in this notation. Does not make the value."""
    try:
        _demand_shallow(text)
        json.loads(text, object_hook=_checked, parse_constant=_refuse)
    except (ValueError, LookupError, RecursionError, MemoryError) as error:
        raise StateError(f"a value cannot be read: {str(error)[:_LONGEST_WHY]}") from None


def _checked(found: dict[str, Any]) -> None:
    for tag in found if len(found) == 1 else ():
        if tag[:1] == "$":
            _MAKERS[tag]


def _read(text: str, reader: _Reader, source: str) -> Any:
    try:
        _demand_shallow(text)
        return json.loads(text, object_hook=reader.made, parse_constant=_refuse)
    except ImportError as error:
        raise StateError(f"{' '.join(str(error).split())}; install what the training used") from error
    except _UNREADABLE as error:
        why = " ".join(str(error).split())[:_LONGEST_WHY] or type(error).__name__
        raise StateError(f"the State of {source} cannot be read: {why}; it is damaged or crafted") from error


def _demand_shallow(text: str) -> None:
    """Raise ``ValueError`` for text that is deeper than the writer's: to read it would need an equally deep C stack."""
    quoted = text.replace("\\\\", "").replace('\\"', "").split('"')  # every second piece is the content of a string
    brackets = "".join(quoted[::2]).encode("utf-8", "surrogatepass").translate(None, _NO_BRACKETS)
    if max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0) > _BRACKETS:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


class _Reader:
    """Makes values from JSON objects, the innermost ones first."""

    def __init__(self, tensor: TensorAt) -> None:
        self._tensor = tensor
        self._tensors: dict[int, Any] = {}

    def made(self, found: dict[str, Any]) -> Any:
        if len(found) != 1:
            return found
        ((tag, given),) = found.items()
        return _MAKERS[tag](self, given) if tag[:1] == "$" else found

    def tensor(self, given: Any) -> Any:
        number, kind = given if type(given) is list else (given, "")
        if type(number) is not int or number < 0 or type(kind) is not str:
            raise TypeError("a tensor without a number")
        known = self._tensors.get(number)
        if known is None:
            known = self._tensors[number] = self._tensor(number, kind)
        return known

    def array(self, found: Any) -> Any:
        return found

    def scalar(self, found: Any) -> Any:
        return found

    def eager(self, array: Any) -> Any:
        tensorflow: Any = sys.modules.get("tensorflow")
        return array if tensorflow is None else tensorflow.constant(array)

    def keys(self, values: list[Any]) -> list[Any]:
        """Return ``values`` that can be hashed. Raises ``ValueError`` if too many have the same hash."""
        if len(values) > CLASHING:
            ((_, count),) = collections.Counter(map(hash, values)).most_common(1)
            if count > CLASHING:
                raise ValueError(f"{count} keys of one dict or set have the same hash")
        return values

    def pairs(self, given: Any) -> dict[Any, Any]:
        pairs = [(key, value) for key, value in _list(given)]
        return dict(zip(self.keys([key for key, _ in pairs]), [value for _, value in pairs], strict=True))

    def record(self, tag: str, given: Any) -> Any:
        name, content = given
        kind = imported_class(name) if type(name) is str else None
        if kind is None:
            raise StateError(
                f"the State holds a {str(name)[:200]!r}, a class that no imported module has: "
                "import the module, and define the class as in the script that wrote it"
            )
        if tag == "$enum" and issubclass(kind, enum.Enum):
            return kind.__members__[content]
        if tag == "$namedtuple" and is_named_tuple(kind):
            return tuple.__new__(kind, _fields(kind, content, vars(kind)["_fields"]))
        if tag == "$dataclass" and is_plain_dataclass(kind):
            made: Any = object.__new__(kind)
            names = [field.name for field in dataclasses.fields(kind)]
            for field, value in zip(names, _fields(kind, content, names), strict=True):
                object.__setattr__(made, field, value)
            return made
        raise ValueError(f"{name} is not a class of the kind {tag[1:]}")


class _Plain(_Reader):
    def array(self, found: Any) -> Any:
        return _of_torch(found)

    def scalar(self, found: Any) -> Any:
        return _of_python(found)

    def eager(self, array: Any) -> Any:
        return array

    def keys(self, values: list[Any]) -> list[Any]:
        return super().keys([_hashable(value) for value in values])

    def record(self, tag: str, given: Any) -> Any:
        name, content = given
        if type(name) is not str or type(content) is not (str if tag == "$enum" else dict):
            raise TypeError("a value of a class without a name")
        return f"{name}.{content}" if tag == "$enum" else {name: content}


def _of_torch(array: Any) -> Any:
    """Return a tensor with a NumPy array's values; lists of Python's if torch has no such type."""
    import torch

    kind, size = array.dtype.kind, array.dtype.itemsize
    if (kind == "f" and size > 8) or (kind == "c" and size > 16):
        array = array.astype({"f": "f8", "c": "c16"}[kind])
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    except TypeError:
        return (array.astype(str) if kind in "mM" else array).tolist()


def _of_python(scalar: Any) -> Any:
    made: Callable[[Any], Any] | None = {"f": float, "c": complex, "m": str, "M": str}.get(scalar.dtype.kind)
    return scalar.item() if made is None else made(scalar)


def as_live(live: Any, given: Any) -> Any:
    """Return ``given``, a value of a file that :func:`plain` has made, in the type of ``live`` if that is NumPy's or
    TensorFlow's. Raises :class:`StateError` if a scalar of NumPy's is to become another value by that."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return given
    if isinstance(live, numpy.generic):
        fits = isinstance(given, bool | int | float | complex | str) and live.dtype.kind != "m"
        return _as_scalar(live, given) if fits else given
    is_array, is_eager = type(live) is numpy.ndarray, type(live).__name__ == "EagerTensor"
    if not (is_array or is_eager) or not hasattr(given, "detach") or str(given.dtype) == "torch.bfloat16":
        return given
    array = given.detach().cpu().numpy()
    return array if is_array else sys.modules["tensorflow"].constant(array)


def _as_scalar(live: Any, given: bool | int | float | complex | str) -> Any:
    """Return ``given`` as a scalar of ``live``'s type. Only floats are rounded, to the precision of that type."""
    import numpy

    kind, made = type(live), None
    if isinstance(given, str) == (live.dtype.kind in "UM"):
        with contextlib.suppress(ValueError, TypeError, OverflowError), numpy.errstate(over="ignore"):
            made = kind(given)
    if made is None or not (isinstance(given, str) or _is_same(made, given)):
        raise StateError(f"it is {given!r:.100}, and the State has a numpy.{kind.__name__} there")
    return made


def _is_same(made: Any, given: complex) -> bool:
    import numpy

    number = made.item()  # Python compares exactly; NumPy would round the given number first
    if number == given or (number != number and given != given):
        return True
    return made.dtype.kind in "fc" and bool(abs(number - given) <= float(numpy.finfo(made.dtype).eps) * abs(given))


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(inner)) for key, inner in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, tuple | list) else value


def _fields(kind: type, content: Any, names: Any) -> list[Any]:
    if type(content) is not dict or content.keys() != set(names):
        raise StateError(
            f"the State holds a {class_name(kind)} with the fields {sorted(content)!s:.200}, and here it has "
            f"{sorted(names)!s:.200}; use the class of the script that wrote it"
        )
    return [content[name] for name in names]


def _list(given: Any) -> list[Any]:
    if type(given) is not list:
        raise TypeError(f"a {type(given).__name__} in place of a list")
    return given


def _dict(given: Any) -> dict[Any, Any]:
    if type(given) is not dict:
        raise TypeError(f"a {type(given).__name__} in place of a dict")
    return given


def _bytes(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def _ordered(reader: _Reader, given: Any) -> Any:
    content, attributes = given
    made = collections.OrderedDict(_dict(content))
    if type(attributes) is not dict or any(hasattr(made, name) for name in attributes):
        raise TypeError("an ordered dict with odd attributes")
    vars(made).update(attributes)
    return made


def _default(reader: _Reader, given: Any) -> Any:
    name, content = given
    return collections.defaultdict(None if name is None else FACTORIES[name], _dict(content))


def _deque(reader: _Reader, given: Any) -> Any:
    items, most = given
    return collections.deque(_list(items), most)


def _complex(reader: _Reader, given: Any) -> complex:
    real, imaginary = given
    return complex(float(real), float(imaginary))


def _int(reader: _Reader, given: Any) -> int:
    if not re.fullmatch(r"-?0x[0-9a-f]+", given):
        raise ValueError("an integer of an odd form")
    return int(given, 16)


def _float(reader: _Reader, given: Any) -> float:
    found: float = struct.unpack(">d", bytes.fromhex(given))[0]
    return found


def _array(reader: _Reader, given: Any) -> Any:
    import numpy

    word, shape, order, text = given
    dtype, data = _dtype(word), _bytes(text)
    count = math.prod(_counts(shape))
    if count * dtype.itemsize != len(data) or dtype.itemsize > max(len(data), _WIDEST):
        raise ValueError("an array of another size than its bytes")
    if not data:
        return numpy.zeros(tuple(shape), dtype)
    return numpy.frombuffer(data, dtype).reshape(tuple(shape), order="F" if order == "F" else "C").copy("K")


def _scalar(reader: _Reader, given: Any) -> Any:
    word, text = given
    return _array(reader, [word, [1], "C", text])[0]


def _dtype(word: Any) -> Any:
    import numpy

    dtype = numpy.dtype(word) if type(word) is str and _DTYPE.fullmatch(word) else None
    if dtype is None or not dtype.itemsize:
        raise TypeError(f"{word!r:.60} is not a plain type of NumPy's")
    return dtype


def _counts(given: Any) -> list[int]:
    if len(_list(given)) > 64 or not all(type(count) is int and 0 <= count < 1 << 62 for count in given):
        raise ValueError("a shape that nothing has")
    return list(given)


def _torch_dtype(reader: _Reader, given: Any) -> Any:
    import torch

    found = vars(torch).get(given)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{given!r:.60} is not a type of torch's")
    return found


def _device(reader: _Reader, given: Any) -> Any:
    import torch

    return torch.device(str(given))


def _size(reader: _Reader, given: Any) -> Any:
    import torch

    return torch.Size(_counts(given))


def _sparse(reader: _Reader, given: Any) -> Any:
    import torch

    indices, values, size = given
    if not isinstance(indices, torch.Tensor) or not isinstance(values, torch.Tensor):
        raise TypeError("a sparse tensor of no tensors")
    return torch.sparse_coo_tensor(indices, values, _counts(size), is_coalesced=True, check_invariants=True)


_MAKERS: Final[Mapping[str, Callable[[_Reader, Any], Any]]] = {
    "$tensor": _Reader.tensor,
    "$tuple": lambda reader, given: tuple(_list(given)),
    "$set": lambda reader, given: set(reader.keys(_list(given))),
    "$frozenset": lambda reader, given: frozenset(reader.keys(_list(given))),
    "$deque": _deque,
    "$dict": _Reader.pairs,
    "$ordered": _ordered,
    "$default": _default,
    "$counter": lambda reader, given: collections.Counter(_dict(given)),
    "$int": _int,
    "$float": _float,
    "$complex": _complex,
    "$bytes": lambda reader, given: _bytes(given),
    "$namedtuple": lambda reader, given: reader.record("$namedtuple", given),
    "$dataclass": lambda reader, given: reader.record("$dataclass", given),
    "$enum": lambda reader, given: reader.record("$enum", given),
    "$array": lambda reader, given: reader.array(_array(reader, given)),
    "$scalar": lambda reader, given: reader.scalar(_scalar(reader, given)),
    "$eager": lambda reader, given: reader.eager(given),
    "$dtype": _torch_dtype,
    "$device": _device,
    "$size": _size,
    "$sparse": _sparse,
}


# --- classes by name


FACTORIES: Final[Mapping[str, type]] = {
    kind.__name__: kind for kind in (bool, int, float, str, bytes, list, tuple, set, dict, collections.OrderedDict)
}
"""The factories that a ``defaultdict`` may have."""


def class_name(kind: type) -> str:
    """Return the name by which :func:`imported_class` finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def imported_class(name: str) -> type | None:
    """Return the class ``module:Class`` of a module that is imported already; None if there is none.

    No module is imported. A class has only the name of its definition.
    """
    module, _, path = name.partition(":")
    value: object = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, "__dict__", {}).get(part)
    return value if isinstance(value, type) and class_name(value) == name else None


def is_named_tuple(kind: type) -> bool:
    """Whether the class is a named tuple."""
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def is_plain_dataclass(kind: type) -> bool:
    """Whether the class is a dataclass whose values contain only their fields (and not also the items of a list)."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum):
        return False
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True
