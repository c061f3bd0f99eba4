"""The graph as JSON text, and back. The notation is told in the package's ``__init__``."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Collection
from typing import Any, Final

from hvd_elastic_ext.checkpoint.graph.nodes import (
    ABSENT,
    ATOMS,
    KINDS,
    OWN,
    TENSOR,
    Made,
    Name,
    Octets,
    Row,
    Table,
    Tensor,
    Value,
    named,
)  # fmt: skip
from hvd_elastic_ext.checkpoint.graph.walk import walk
from hvd_elastic_ext.core.errors import Permanent

VERSION: Final = 1

TAGS: Final = frozenset(
    {
        "int", "float", "str", "bytes", "bytearray", "tuple", "set", "frozenset", "dict", "tensor", "name", "call",
        "new", "ref",
    }
)  # fmt: skip
"""Words that make an object something else than a dict."""

_DEEP: Final = 40
"""What lies deeper in the text is written at a place of its own: no reader of JSON goes down for ever."""
_TOO_DEEP: Final = 100

_OWN_WORDS: Final = {name: word for word, name in OWN.items()}
_NAN: Final = struct.pack(">d", math.nan)
_LONGEST_INT: Final = 20


def written(root: Value) -> str:
    """Return the graph as text. Raises :class:`Permanent` for one that could not be made again."""
    repeated = _Repeated()
    walk(root, repeated)
    return json.dumps(_Writer(repeated.keys).document(root), ensure_ascii=False, allow_nan=False)


def read(text: str) -> Value:
    """Return the graph that ``text`` tells of. Raises :class:`Permanent` for any text that is not of this notation."""
    try:
        document = json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant
        )
        return _Reader(document).root()
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise Permanent(
            f"the checkpoint's tree cannot be read: {' '.join(str(error).split()) or type(error).__name__}; "
            "it is damaged or of another version: use another checkpoint"
        ) from error


class _Repeated:
    """Finds the nodes that are told of more than once."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def get(self, key: int) -> None:
        self.keys.add(key)

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    atom = name = tensor = octets = keep = itself = drop = mark = _nothing
    begin = fill = close = make = state = setter = _nothing


class _Writer:
    def __init__(self, repeated: Collection[int]) -> None:
        self._repeated = repeated
        self._places: dict[int, int] = {}
        self._shared: list[Value] = []

    def document(self, root: Value) -> dict[str, Any]:
        value = self._value(root, 0)
        # Writing one may find more to be written.
        shared = [self._form(node, 0) for node in _as_it_grows(self._shared)]
        return {"graph": VERSION, "value": value} | ({"shared": shared} if shared else {})

    def _value(self, value: Value, depth: int) -> Any:
        if type(value) in ATOMS:
            return _atom(value)
        if isinstance(value, Name):
            return {"name": _word(value)}
        if isinstance(value, Tensor):
            return {"tensor": value.index} | ({"kind": value.kind} if value.kind else {})
        if id(value) not in self._places and id(value) not in self._repeated and depth < _DEEP:
            return self._form(value, depth)
        place = self._places.setdefault(id(value), len(self._shared))
        if place == len(self._shared):
            self._shared.append(value)
        return {"ref": place}

    def _form(self, node: Value, depth: int) -> Any:
        if isinstance(node, Octets):
            return {"bytearray": _base64(node.data)}
        if isinstance(node, Row):
            items = [self._value(item, depth + 1) for item in node.items]
            return items if node.kind == "list" else {node.kind: items}
        if isinstance(node, Table):
            pairs = self._pairs(node.pairs, depth)
            return pairs if isinstance(pairs, dict) and not TAGS & pairs.keys() else {"dict": pairs}
        return self._made(node, depth)

    def _made(self, node: Made, depth: int) -> dict[str, Any]:
        form: dict[str, Any] = {node.how: self._callee(node.what, depth)}
        if node.args:
            form["args"] = [self._value(value, depth + 1) for value in node.args]
        if node.kwargs:
            form["kwargs"] = {key: self._value(value, depth + 1) for key, value in node.kwargs}
        if node.appended:
            form["append"] = [self._value(value, depth + 1) for value in node.appended]
        if node.pairs:
            form["items"] = self._pairs(node.pairs, depth)
        if node.state is not ABSENT:
            form["state"] = self._value(node.state, depth + 1)
        if node.setter is not ABSENT:
            form["setter"] = self._callee(node.setter, depth)
        return form

    def _callee(self, what: Value, depth: int) -> Any:
        return _word(what) if isinstance(what, Name) else self._value(what, depth + 1)

    def _pairs(self, pairs: list[tuple[Value, Value]], depth: int) -> Any:
        keys = {key for key, _ in pairs if type(key) is str and _is_clean(key)}
        if len(keys) == len(pairs):
            return {key: self._value(value, depth + 1) for key, value in pairs}
        return [[self._value(key, depth + 1), self._value(value, depth + 1)] for key, value in pairs]


def _as_it_grows(values: list[Value]) -> Any:
    place = 0
    while place < len(values):
        yield values[place]
        place += 1


def _atom(value: Value) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": _odd_float(value)}
    if isinstance(value, bytes):
        return {"bytes": _base64(value)}
    if isinstance(value, int) and value.bit_length() >= 64:
        return {"int": hex(value)}
    if isinstance(value, str) and not _is_clean(value):
        return {"str": _base64(value.encode("utf-8", "surrogatepass"))}
    return value


def _odd_float(value: float) -> str:
    data = struct.pack(">d", value)
    return data.hex() if math.isnan(value) and data != _NAN else repr(value)


def _word(name: Name) -> str:
    if (name.module, name.name) == TENSOR:
        raise Permanent("the State holds the function that stands for tensors; keep it out of the State")
    return _OWN_WORDS.get((name.module, name.name)) or f"{name.module}:{name.name}"


def _is_clean(text: str) -> bool:
    """True for text that a file can hold. Two halves of a character, each on its own, would be one in JSON."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_Fill = Callable[[], None]


class _Reader:
    """Things at a place of their own are begun first and filled then: they may refer to one another in any way."""

    def __init__(self, document: Any) -> None:
        fields = _fields(document, ("graph", "value"), ("shared",))
        if fields["graph"] != VERSION or isinstance(fields["graph"], bool):
            raise ValueError(f"a graph of version {str(fields['graph'])[:20]}, and {VERSION} is known")
        shared = _list(fields.get("shared", []))
        self._document = fields["value"]
        self._used: set[int] = set()
        begun = [self._begin(form, 0) for form in shared]
        self._nodes = [node for node, _ in begun]
        if not all(isinstance(node, Row | Table | Made | Octets) for node in self._nodes):
            raise ValueError("something that cannot be shared is")
        for _, fill in begun:
            fill()

    def root(self) -> Value:
        value = self._value(self._document, 0)
        if len(self._used) < len(self._nodes):
            raise ValueError("something is shared with nothing")
        return value

    def _value(self, form: Any, depth: int) -> Value:
        if isinstance(form, dict) and "ref" in form:
            place = _fields(form, ("ref",))["ref"]
            if type(place) is not int or not 0 <= place < len(self._nodes):
                raise ValueError(f"there is no place {str(place)[:20]}")
            self._used.add(place)
            return self._nodes[place]
        value, fill = self._begin(form, depth)
        fill()
        return value

    def _begin(self, form: Any, depth: int) -> tuple[Value, _Fill]:
        """The value that ``form`` tells of, and what puts its parts in."""
        if depth > _TOO_DEEP:
            raise ValueError("nested too deep")
        if isinstance(form, list):
            row = Row("list")
            return row, lambda: self._fill_row(row, form, depth)
        if not isinstance(form, dict):
            return form, _nothing
        tags = TAGS & form.keys()
        if len(tags) > 1:
            raise ValueError(f"both {' and '.join(sorted(tags))}")
        tag = next(iter(tags), "")
        if not tag or tag == "dict":
            table, pairs = Table(), _fields(form, ("dict",))["dict"] if tag else form
            return table, lambda: self._fill_pairs(table.pairs, pairs, depth)
        if tag in ("tuple", "set", "frozenset"):
            some = Row(tag)
            return some, lambda: self._fill_row(some, _list(_fields(form, (tag,))[tag]), depth)
        if tag in ("call", "new"):
            made = Made(tag, None)
            return made, lambda: self._fill_made(made, form, depth)
        return _UNDIVIDED[tag](form), _nothing

    def _fill_row(self, row: Row, forms: list[Any], depth: int) -> None:
        row.items += [self._value(form, depth + 1) for form in forms]

    def _fill_pairs(self, pairs: list[tuple[Value, Value]], forms: Any, depth: int) -> None:
        if isinstance(forms, dict):
            pairs += [(key, self._value(form, depth + 1)) for key, form in forms.items()]
            return
        for pair in _list(forms):
            if len(_list(pair)) != 2:
                raise ValueError("a pair that is none")
            pairs.append((self._value(pair[0], depth + 1), self._value(pair[1], depth + 1)))

    def _fill_made(self, made: Made, form: dict[str, Any], depth: int) -> None:
        optional = ("args", "append", "items", "state", "setter", *(["kwargs"] if made.how == "new" else []))
        fields = _fields(form, (made.how,), optional)
        made.what = self._callee(fields[made.how], depth)
        self._fill_made_args(made, fields, depth)
        made.appended += [self._value(value, depth + 1) for value in _list(fields.get("append", []))]
        self._fill_pairs(made.pairs, fields.get("items", {}), depth)
        if "state" in fields:
            made.state = self._value(fields["state"], depth + 1)
        if "setter" in fields:
            made.setter = self._callee(fields["setter"], depth)
            if made.state is ABSENT:
                raise ValueError("a setter without a state")

    def _fill_made_args(self, made: Made, fields: dict[str, Any], depth: int) -> None:
        made.args += [self._value(value, depth + 1) for value in _list(fields.get("args", []))]
        kwargs = fields.get("kwargs", {})
        if not isinstance(kwargs, dict):
            raise ValueError("arguments without names among those with")
        made.kwargs += [(key, self._value(value, depth + 1)) for key, value in kwargs.items()]

    def _callee(self, form: Any, depth: int) -> Value:
        if isinstance(form, str):
            return _name(form)
        what = self._value(form, depth + 1)
        if not isinstance(what, Made):
            raise ValueError("a call of what cannot be called")
        return what


def _nothing() -> None: ...


def _fields(form: Any, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    if not isinstance(form, dict) or not set(needed) <= form.keys() <= {*needed, *optional}:
        raise ValueError(f"not an object of {', '.join(needed)}")
    return form


def _list(form: Any) -> list[Any]:
    if not isinstance(form, list):
        raise ValueError("a list is expected and something else is there")
    return form


def _text(form: dict[str, Any], tag: str) -> str:
    text = _fields(form, (tag,))[tag]
    if not isinstance(text, str):
        raise ValueError(f"{tag} is no text")
    return text


def _name(word: str) -> Name:
    module, _, name = word.partition(":")
    found = named(*OWN[word]) if word in OWN else named(module, name)
    if (found.module, found.name) == TENSOR:
        raise ValueError("a tensor without its place")
    return found


def _read_tensor(form: dict[str, Any]) -> Tensor:
    fields = _fields(form, ("tensor",), ("kind",))
    index, kind = fields["tensor"], fields.get("kind", "")
    if type(index) is not int or not 0 <= index < 1 << 31 or kind not in KINDS:
        raise ValueError("a tensor without its place")
    return Tensor(index, kind)


def _read_int(form: dict[str, Any]) -> int:
    text = _text(form, "int")
    if not text.lstrip("-").startswith("0x"):
        raise ValueError("an integer that is none")
    return int(text, 16)


def _read_float(form: dict[str, Any]) -> float:
    text = _text(form, "float")
    if text in ("nan", "inf", "-inf"):
        return float(text)
    (value,) = struct.unpack(">d", bytes.fromhex(text)) if re.fullmatch("[0-9a-f]{16}", text) else (0.0,)
    if not math.isnan(value):
        raise ValueError("a float that is none")
    return float(value)


def _read_bytes(form: dict[str, Any], tag: str) -> bytes:
    return base64.b64decode(_text(form, tag), validate=True)


_UNDIVIDED: Final[dict[str, Callable[[dict[str, Any]], Value]]] = {
    "int": _read_int,
    "float": _read_float,
    "str": lambda form: _read_bytes(form, "str").decode("utf-8", "surrogatepass"),
    "bytes": lambda form: _read_bytes(form, "bytes"),
    "bytearray": lambda form: Octets(_read_bytes(form, "bytearray")),
    "name": lambda form: _name(_text(form, "name")),
    "tensor": _read_tensor,
    "ref": lambda form: _refuse("a place that only refers to another"),
}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    form = dict(pairs)
    if len(form) < len(pairs):
        raise ValueError("a key appears twice")
    return form


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INT:
        raise ValueError("an integer too long to be written in digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number too large for a float")
    return value


def _constant(word: str) -> Value:
    return _refuse(f"{word} is no number")


def _refuse(why: str) -> Value:
    raise ValueError(why)
