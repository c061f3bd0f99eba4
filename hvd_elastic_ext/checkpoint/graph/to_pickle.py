"""A graph written as a pickle of protocol 5, as a pickler would write what it stands for."""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from hvd_elastic_ext.checkpoint.graph.nodes import TENSOR, Made, Name, Tensor, Value
from hvd_elastic_ext.checkpoint.graph.walk import walk

_LONGEST_KEPT: Final = 256
"""Bytes of text, bytes and integers that are written once and referred to: longer ones are written wherever they are.

What is made of a text stays in proportion to it then, however many equal arrays a State has.
"""

CODES: Final = {opcode.name: opcode.code.encode("latin-1") for opcode in pickletools.opcodes}


def written(root: Value) -> bytes:
    """Return ``root`` as a pickle of protocol 5."""
    sink = _Bytes()
    walk(root, sink)
    sink.write("STOP")
    return b"".join(sink.pieces)


class _Bytes:
    """Writes what a walk tells. Short text, bytes and names are written once, and every node is kept."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = [CODES["PROTO"] + b"\x05"]
        self._places: dict[Any, int] = {}

    def write(self, code: str, argument: bytes = b"") -> None:
        self.pieces.append(CODES[code] + argument)

    def atom(self, value: Value) -> None:
        if value is None or value is True or value is False:
            self.write({None: "NONE", True: "NEWTRUE", False: "NEWFALSE"}[value])
        elif isinstance(value, float):
            self.write("BINFLOAT", struct.pack(">d", value))
        elif isinstance(value, int) and value.bit_length() < 64:
            self._small(value)
        elif (value.bit_length() >> 3 if isinstance(value, int) else len(value)) > _LONGEST_KEPT:
            self._long(value)
        else:
            # As text an integer has a hash that nobody can choose.
            key = (type(value), hex(value) if isinstance(value, int) else value)
            if key in self._places:
                self.get(key)
            else:
                self._long(value)
                self.keep(key)

    def _small(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.write("BININT1", value.to_bytes(1, "little"))
        elif 0 <= value < 1 << 16:
            self.write("BININT2", value.to_bytes(2, "little"))
        elif value.bit_length() < 32:
            self.write("BININT", value.to_bytes(4, "little", signed=True))
        else:
            self._long(value)

    def _long(self, value: int | str | bytes) -> None:
        if isinstance(value, int):
            self._sized(("LONG1", "LONG4"), value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif isinstance(value, str):
            self._sized(("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), value.encode("utf-8", "surrogatepass"))
        else:
            self._sized(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"), value)

    def _sized(self, codes: Sequence[str], data: bytes) -> None:
        """With the shortest of the codes that take 1, 4 and 8 bytes for the length."""
        code, width = next(pair for pair in zip(codes, (1, 4, 8), strict=False) if len(data) < 1 << 8 * pair[1])
        self.write(code, len(data).to_bytes(width, "little"))
        self.pieces.append(data)

    def name(self, name: Name) -> None:
        self._once(name, lambda: self._found(name))

    def tensor(self, tensor: Tensor) -> None:
        def make() -> None:
            self.name(Name(*TENSOR))
            self.atom(tensor.index)
            if tensor.kind:
                self.atom(tensor.kind)
            self.close("tuple", 2 if tensor.kind else 1)
            self.write("REDUCE")

        self._once(tensor, make)

    def _found(self, name: Name) -> None:
        self.atom(name.module)
        self.atom(name.name)
        self.write("STACK_GLOBAL")

    def _once(self, key: Any, make: Callable[[], None]) -> None:
        if key in self._places:
            self.get(key)
        else:
            make()
            self.keep(key)

    def octets(self, data: bytes) -> None:
        self.write("BYTEARRAY8", len(data).to_bytes(8, "little"))
        self.pieces.append(data)

    def keep(self, key: Any) -> None:
        self._places[key] = len(self._places)
        self.write("MEMOIZE")

    def get(self, key: Any) -> None:
        place = self._places[key]
        if place < 1 << 8:
            self.write("BINGET", place.to_bytes(1, "little"))
        else:
            self.write("LONG_BINGET", place.to_bytes(4, "little"))

    itself = get

    def drop(self, count: int, *, marked: bool) -> None:
        for code in ["POP_MARK"] if marked else ["POP"] * count:
            self.write(code)

    def mark(self) -> None:
        self.write("MARK")

    def begin(self, kind: str) -> None:
        self.write(f"EMPTY_{kind.upper()}")

    def fill(self, kind: str, count: int, *, marked: bool) -> None:
        one, many = {"list": ("APPEND", "APPENDS"), "dict": ("SETITEM", "SETITEMS"), "set": ("", "ADDITEMS")}[kind]
        self.write(many if marked else one)

    def close(self, kind: str, count: int) -> None:
        if kind == "frozenset":
            self.write("FROZENSET")
        else:
            self.write(("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE")[min(count, 4)])

    def make(self, made: Made) -> None:
        self.write("REDUCE" if made.how == "call" else "NEWOBJ_EX" if made.kwargs else "NEWOBJ")

    def state(self, made: Made) -> None:
        self.write("BUILD")

    def setter(self, made: Made) -> None:
        for code in ("TUPLE2", "REDUCE", "POP"):
            self.write(code)
