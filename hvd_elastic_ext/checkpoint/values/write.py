"""Writes values as text. The folder's ``__init__`` describes the notation."""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import json
import math
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn

from hvd_elastic_ext.checkpoint.values import read
from hvd_elastic_ext.checkpoint.values.read import DEEPEST
from hvd_elastic_ext.core.json_text import to_text

MAX_CONTAINERS: Final = 1 << 22
"""Most containers in one value. A value that contains another one twice, at each of many levels, has more."""

_PATH: Final = 200
_LONG: Final = 1024
"""Fewest bits of an integer that is written in hexadecimal, because decimal digits take quadratic time."""

_FEW: Final = 16
"""Longer lists of scalars go to Python's own encoder: it encodes faster, but each call costs more."""

_string: Final[Callable[[str], str]] = json.encoder.encode_basestring
_DIRECT: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SCALARS: Final = frozenset({int, float, bool, str, type(None)})


class Unfit(ValueError):
    """A State cannot hold this value. ``path``: its place, as an expression after the value's name.

    ``instead``: an expression for another value to keep, with ``{}`` for this value; empty if unknown. ``in_state``:
    the remedy in a State, if that is another one.
    """

    def __init__(self, problem: str, instead: str = "", *, in_state: str = "") -> None:
        super().__init__(problem)
        self.instead, self.in_state = instead, in_state
        self.path = ""

    def within(self, key: object) -> None:
        """Note that the value is at ``key`` of a container."""
        self.path = f"[{repr(key)[:40]}]{self.path}"[:_PATH]


def write(value: Any, tensors: list[Tensor]) -> str:
    """Return ``value`` as one line of text, and append its tensors to ``tensors``, without copies.

    Raises :class:`Unfit` for a value that is not of the closed list of types.
    """
    return _Writer(tensors).form(value)


def is_fit(value: object) -> bool:
    """Whether :func:`write` accepts ``value``."""
    try:
        write(value, [])
    except Unfit:
        return False
    return True


def is_parameter(tensor: Tensor) -> bool:
    """Whether it is a module's parameter. ``isinstance`` is slow for the thousands of a commit."""
    kind = type(tensor)
    return kind is nn.Parameter or (kind is not Tensor and isinstance(tensor, nn.Parameter))


class _Writer:
    __slots__ = ("_depth", "_kept", "_known", "_left", "_tensors")

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._known: dict[int, str] = {}
        self._kept: list[Tensor] = []
        self._depth = 0
        self._left = MAX_CONTAINERS

    def form(self, value: Any) -> str:
        return _FORMS.get(type(value), _other)(self, value)

    def _deeper(self) -> None:
        self._depth += 1
        self._left -= 1
        if self._depth > DEEPEST:
            raise Unfit(f"it is nested more than {DEEPEST} levels deep, or holds itself")
        if self._left < 0:
            raise Unfit(f"it has more than {MAX_CONTAINERS} lists and dicts; keep numbers in a tensor or an array")

    def items(self, values: Iterable[Any]) -> list[str]:
        """Return the text of each value."""
        texts: list[str] = []
        self._deeper()
        try:
            for value in values:
                texts.append(_FORMS.get(type(value), _other)(self, value))
        except Unfit as unfit:
            unfit.within(len(texts))
            raise
        self._depth -= 1
        return texts

    def sequence(self, values: Collection[Any]) -> str:
        if len(values) > _FEW and _SCALARS.issuperset(map(type, values)):
            try:
                return _DIRECT(list(values))
            except ValueError:  # JSON has no NaN and no infinity
                pass
        return f"[{','.join(self.items(values))}]"

    def mapping(self, values: Mapping[Any, Any]) -> str:
        alike = self._alike(values) if len(values) > _FEW else None
        if alike is None:
            return self._one_by_one(values)
        same, tensors = alike
        written = _WRITTEN.get(same)
        if written is None:
            text = self._one_by_one(values)
            if len(_WRITTEN) >= _REMEMBERED:
                _WRITTEN.clear()
            _WRITTEN[same] = text, [self._known[id(tensor)] for tensor in tensors]
            return text
        text, each = written
        self._left -= 1 + len(values)  # at least as much as the number of containers
        self._tensors += tensors
        self._known.update(zip(map(id, tensors), each, strict=True))
        return text

    def _alike(self, values: Mapping[Any, Any]) -> tuple[Any, list[Tensor]] | None:
        """Return a key that determines the text of ``values``, and the tensors in them.

        ``values`` must contain only dense tensors that are not written yet, or dicts of such tensors with the same
        keys, as in models and optimizers. None for anything else.
        """
        members: Iterable[Any] = values.values()
        columns: tuple[Any, ...] = ()
        if _DICTS.issuperset(map(type, members)):
            columns = next(map(tuple, members))
            if {columns} != set(map(tuple, members)) or not _TEXT.issuperset(map(type, chain.from_iterable(members))):
                return None
            members = chain.from_iterable(map(dict.values, members))
        tensors = list(members)
        kinds, new = _kinds(tensors), set(map(id, tensors))
        if kinds is None or len(new) < len(tensors) or not new.isdisjoint(self._known):
            return None
        if not _KEYS.issuperset(map(type, values)) or self._depth + 2 > DEEPEST or self._left <= len(values):
            return None
        return (tuple(values), columns, kinds, len(self._tensors)), tensors

    def _one_by_one(self, values: Mapping[Any, Any]) -> str:
        texts: list[str] = []
        as_object = _TEXT.issuperset(map(type, values)) and "\0$" not in "\0" + "\0".join(values)
        self._deeper()
        key = None
        try:
            for key, value in values.items():
                text = _FORMS.get(type(value), _other)(self, value)
                texts.append(f"{_string(key)}:{text}" if as_object else f"[{self.form(key)},{text}]")
        except Unfit as unfit:
            unfit.within(key)
            raise
        self._depth -= 1
        return f"{{{','.join(texts)}}}" if as_object else f'{{"$dict":[{",".join(texts)}]}}'

    def ordered(self, value: collections.OrderedDict[Any, Any]) -> str:
        return f'{{"$ordered":[{self.mapping(value)},{self.mapping(vars(value))}]}}'

    def default(self, value: collections.defaultdict[Any, Any]) -> str:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if factory is not None and read.FACTORIES.get(name or "") is not factory:
            raise Unfit(f"it is a defaultdict of {factory!r:.80}; a State takes those of {', '.join(read.FACTORIES)}")
        return f'{{"$default":[{to_text(name)},{self.mapping(value)}]}}'

    def tensor(self, value: Tensor) -> str:
        text = self._known.get(id(value))
        if text is not None:
            return text
        kind = type(value)
        if (kind is not nn.Parameter and kind is not Tensor) or value.is_nested or value.is_quantized or value.is_meta:
            problem = _unfit(value)
            if problem:
                raise Unfit(problem)
        if value.layout is not torch.strided:
            return self._known.setdefault(id(value), self._sparse(value))
        number = len(self._tensors)
        self._tensors.append(value)
        if kind is Tensor and not value.requires_grad:
            text = f'{{"$tensor":{number}}}'
        elif is_parameter(value):
            text = f'{{"$tensor":[{number},"{"parameter" if value.requires_grad else "frozen"}"]}}'
        else:
            text = f'{{"$tensor":[{number},"leaf"]}}' if value.is_leaf else f'{{"$tensor":{number}}}'
        self._known[id(value)] = text
        return text

    def _sparse(self, value: Tensor) -> str:
        if value.layout is not torch.sparse_coo:
            raise Unfit(f"tensors of layout {value.layout} are not supported; keep a dense one")
        dense = value.detach().coalesce()
        self._kept += dense.indices(), dense.values()
        parts = ",".join(map(self.tensor, self._kept[-2:]))
        return f'{{"$sparse":[{parts},{list(dense.shape)}]}}'


def _kinds(values: Collection[Any]) -> tuple[str, ...] | None:
    """Return the kind of each tensor in the text; None if any value is not a dense tensor of the usual kinds."""
    if not _USUAL.keys() >= set(map(type, values)):
        return None
    strided, kinds = torch.strided, []
    for value in values:
        if value.layout is not strided or value.is_nested or value.is_quantized or value.is_meta:
            return None
        kinds.append(_USUAL[type(value)][value.requires_grad])
    return None if "" in kinds else tuple(kinds)


def _unfit(tensor: Tensor) -> str | None:
    """Return why a tensor could not be restored as it is; None if it can."""
    kind = type(tensor)
    if tensor.is_quantized or tensor.is_meta:
        return f"{'quantized' if tensor.is_quantized else 'meta'} tensors are not supported; keep it outside the State"
    if tensor.is_nested:
        return f"nested tensors of layout {tensor.layout} are not supported; keep a dense one"
    if kind is not Tensor and kind is not nn.Parameter:
        if nn.parameter.is_lazy(tensor):
            return "it has parameters that are not initialised yet; run one forward pass first"
        if not isinstance(tensor, nn.Parameter | nn.Buffer):
            return f"tensors of the class {kind.__name__} would come back as plain ones; keep a plain one"
    return None


def _int(writer: _Writer, value: int) -> str:
    return int.__repr__(value) if value.bit_length() < _LONG else f'{{"$int":"{value:#x}"}}'


def _float(writer: _Writer, value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return f'{{"$float":"{struct.pack(">d", value).hex()}"}}'


def _based(data: bytes) -> str:
    return f'"{base64.b64encode(data).decode("ascii")}"'


def _bytes(writer: _Writer, value: bytes) -> str:
    return f'{{"$bytes":{_based(value)}}}'


_USUAL: Final[Mapping[Any, tuple[str, str]]] = {Tensor: ("tensor", ""), nn.Parameter: ("frozen", "parameter")}
_WRITTEN: Final[dict[Any, tuple[str, list[str]]]] = {}
"""The text of dicts with many tensors, and of each tensor: most commits have the same ones as before."""
_REMEMBERED: Final = 32
"""Most dicts whose text is kept."""
_DICTS: Final = frozenset({dict})
_KEYS: Final = frozenset({str, int})
_TEXT: Final = frozenset({str})
_FORMS: Final[dict[type, Callable[[_Writer, Any], str]]] = {
    type(None): lambda writer, value: "null",
    bool: lambda writer, value: "true" if value else "false",
    int: _int,
    float: _float,
    str: lambda writer, value: _string(value),
    complex: lambda writer, value: f'{{"$complex":[{_float(writer, value.real)},{_float(writer, value.imag)}]}}',
    bytes: _bytes,
    Tensor: _Writer.tensor,
    nn.Parameter: _Writer.tensor,
    dict: _Writer.mapping,
    list: _Writer.sequence,
    tuple: lambda writer, value: f'{{"$tuple":{writer.sequence(value)}}}',
    set: lambda writer, value: f'{{"$set":[{",".join(sorted(writer.items(value)))}]}}',
    frozenset: lambda writer, value: f'{{"$frozenset":[{",".join(sorted(writer.items(value)))}]}}',
    collections.deque: lambda writer, value: f'{{"$deque":[{writer.sequence(value)},{to_text(value.maxlen)}]}}',
    collections.OrderedDict: _Writer.ordered,
    collections.defaultdict: _Writer.default,
    collections.Counter: lambda writer, value: f'{{"$counter":{writer.mapping(value)}}}',
    torch.Size: lambda writer, value: f'{{"$size":{list(value)}}}',
    torch.dtype: lambda writer, value: f'{{"$dtype":"{str(value).removeprefix("torch.")}"}}',
    torch.device: lambda writer, value: f'{{"$device":"{value}"}}',
}


def _other(writer: _Writer, value: Any) -> str:
    kind = type(value)
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, Tensor):
        return writer.tensor(value)
    if numpy is not None and (kind is numpy.ndarray or isinstance(value, numpy.generic)):
        return _numpy(value, is_array=kind is numpy.ndarray)
    if kind.__name__ == "EagerTensor" and _is_of(kind, "tensorflow"):
        if value.dtype.is_quantized:  # NumPy would have plain numbers
            raise Unfit(f"it is a tensor of TensorFlow of the type {value.dtype.name}; keep it outside the State")
        return f'{{"$eager":{_numpy(numpy.asarray(value.numpy()), is_array=True)}}}'
    if isinstance(value, enum.Enum):
        if kind.__members__.get(value.name) is not value:
            raise Unfit(f"it is {value!r:.80}, several members of {kind.__name__} as one")
        return f'{{"$enum":[{_name(kind)},{_string(value.name)}]}}'
    if read.is_named_tuple(kind):
        return f'{{"$namedtuple":[{_name(kind)},{writer.mapping(dict(zip(kind._fields, value, strict=True)))}]}}'
    if read.is_plain_dataclass(kind):
        fields = {field.name: getattr(value, field.name, _MISSING) for field in dataclasses.fields(kind)}
        more = getattr(value, "__dict__", {}).keys() - fields.keys()
        if more:
            raise Unfit(f"it is a {kind.__name__} with {min(more)!r}, which is not a field of that dataclass")
        return f'{{"$dataclass":[{_name(kind)},{writer.mapping(fields)}]}}'
    raise _refusal(value)


_MISSING: Final = object()
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("datetime.datetime", "datetime.date", "datetime.time"), "{}.isoformat()"),
    "datetime.timedelta": "{}.total_seconds()",
    **dict.fromkeys(("decimal.Decimal", "uuid.UUID", "pathlib.PosixPath", "pathlib._local.PosixPath"), "str({})"),
    "builtins.range": "list({})",
}
"""The expressions to keep instead of values of common classes."""


def _refusal(value: Any) -> Unfit:
    kind = type(value)
    if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        remedy = "give it a name of its own in the State: TorchState(..., NAME=it)"
        return Unfit(f"it is a {kind.__name__}", "{}.state_dict()", in_state=remedy)
    name = f"{kind.__module__}.{kind.__qualname__}"
    what = f"the {kind.__name__} {value!r:.80}" if callable(value) else f"a {name}"
    if name in _INSTEAD:
        return Unfit(f"it is {what}, which is not a plain value", _INSTEAD[name])
    remedy = "give it state_dict and load_state_dict, or use elastic.Checkpoint"
    if _is_of(kind, "tensorflow", "tf_keras", "keras"):
        remedy = "give it a name of its own in the State: TensorFlowKerasState(..., NAME=it)"
    return Unfit(f"it is {what}, which is not a plain value", in_state=remedy)


def _is_of(kind: type, *packages: str) -> bool:
    return kind.__module__.partition(".")[0] in packages


def _name(kind: type) -> str:
    name = read.class_name(kind)
    if read.imported_class(name) is not kind:
        raise Unfit(f"its class {name} is not found under that name; define it at the top level of a module")
    return _string(name)


def _numpy(value: Any, *, is_array: bool) -> str:
    dtype = value.dtype
    if dtype.kind not in "biufcmMSU" or dtype.metadata is not None or not dtype.itemsize:
        raise Unfit(f"it is NumPy data of the type {dtype}; a State takes truth values, numbers, times and text")
    if not is_array:
        return f'{{"$scalar":["{dtype.str}",{_based(value.tobytes())}]}}'
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return f'{{"$array":["{dtype.str}",{list(value.shape)},"{order}",{_based(value.tobytes(order))}]}}'
