"""A few bytes that would take any memory or time, and a process that reads them under limits.

Run as a program it reads those that are named, one after another.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

MEMORY = 128 << 20
"""Bytes of address space that it may take beyond what it began with."""
SECONDS = 3
"""Of the processor's, for each."""


def _made(name: str, *args: Any, how: str = "call") -> dict[str, Any]:
    return {how: name, "args": list(args)}


def _doubled(depth: int, make: Callable[[Any], Any], first: Any) -> dict[str, Any]:
    """Each twice the one before, and named once."""
    shared = [first, *(make({"ref": place}) for place in range(depth))]
    return {"shared": shared, "value": {"set": [{"ref": depth}]}}


MANY = [sys.hash_info.modulus * (number + 1) for number in range(8, 20_000)]
"""Numbers that all have the same hash."""
FEWER_TOLD = [{"tuple": [{"int": hex(number)}]} for number in MANY[:10_000]]
MANY_TOLD = [{"int": hex(number)} for number in MANY]
RANGE = _made("builtins:range", 30_000_000)
HUGE = _made("decimal:Decimal", "1e3000000")
TEXTS: dict[str, dict[str, Any]] = {
    "bytes of a number": {"value": _made("builtins:bytearray", 2_000_000_000)},
    "a list of a range": {"value": _made("builtins:list", RANGE)},
    "a tuple of a range": {"value": _made("builtins:tuple", RANGE)},
    "a tuple that is not initialised": {"value": _made("builtins:tuple", RANGE, how="new")},
    "a set of a range": {"value": _made("builtins:set", RANGE)},
    "a frozenset of a range": {"value": _made("builtins:frozenset", RANGE, how="new")},
    "a queue of a range": {"value": _made("collections:deque", RANGE)},
    "a counter of a range": {"value": _made("collections:Counter", RANGE)},
    "a dict of pairs that are ranges": {"value": _made("builtins:dict", [RANGE])},
    "an ordered dict of pairs that are ranges": {"value": _made("collections:OrderedDict", [RANGE])},
    "a size of a range": {"value": _made("torch:Size", RANGE)},
    "an array whose shape is a range": {"value": _made("array", "<f8", RANGE, "C", {"bytes": ""})},
    "objects whose shape is a range": {"value": _made("objects", RANGE, [])},
    "objects of a range": {"value": _made("objects", {"tuple": [1]}, RANGE)},
    "a sparse tensor of ranges": {"value": _made("sparse", RANGE, RANGE, {"tuple": [1]})},
    "a sparse tensor whose size is a range": {"value": _made("sparse", 1, 1, RANGE)},
    "empty elements without number": {
        "value": _made("array", "|S", {"tuple": [3_000_000_000]}, "C", {"bytes": ""}),
    },
    "wide elements of an empty array": {"value": _made("array", "<U2000000000", {"tuple": [0]}, "C", {"bytes": ""})},
    "an integer of an exponent": {"value": _made("builtins:int", HUGE)},
    "an integer of a fraction": {"value": _made("builtins:int", _made("fractions:Fraction", "1e3000000"))},
    "a fraction of an exponent": {"value": _made("fractions:Fraction", "1e99999999")},
    "a fraction of a number with an exponent": {"value": _made("fractions:Fraction", HUGE)},
    "a float of a fraction of an exponent": {
        "value": _made("builtins:float", _made("fractions:Fraction", "1e9999999")),
    },
    "text of what refers to itself twice at each level": {
        "shared": [[1], *([{"ref": place}, {"ref": place}] for place in range(40))],
        "value": _made("builtins:str", {"ref": 40}),
    },
    "a key of what refers to itself twice at each level": _doubled(
        60, lambda ref: {"tuple": [ref, ref]}, {"tuple": []}
    ),
    "a slice of slices": _doubled(60, lambda ref: _made("builtins:slice", ref, ref, 1), {"tuple": []}),
    "a key that is one long list of the same": {
        "shared": [{"tuple": list(range(20_000))}, {"tuple": [{"ref": 0}] * 20_000}],
        "value": [{"set": [{"tuple": [{"ref": 1}, 1]}]}, {"ref": 0}],
    },
    "one long list counted a thousand times": {
        "shared": [list(range(20_000))],
        "value": [_made("collections:Counter", {"ref": 0})] * 1000,
    },
    "numbers of one hash": {"value": {"set": MANY_TOLD}},
    "numbers of one hash that never change": {"value": {"frozenset": MANY_TOLD}},
    "keys of one hash": {"value": {"dict": [[number, 1] for number in MANY_TOLD]}},
    "keys of one hash that are tuples": {"value": {"dict": [[key, 1] for key in FEWER_TOLD]}},
    "numbers of one hash that are counted": {"value": _made("collections:Counter", MANY_TOLD)},
}  # fmt: skip
"""Of the notation of checkpoints, without its version."""


def text(name: str) -> str:
    return json.dumps({"graph": 1, **TEXTS[name]})


def named(module: str, name: str) -> bytes:
    return b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name)) + b"\x93"


def value(what: int | str) -> bytes:
    """Bytes that make a plain value, without a memo."""
    if isinstance(what, int) and what.bit_length() > 31:
        return b"\x8a\x10" + what.to_bytes(16, "little", signed=True)
    if isinstance(what, str):
        return b"\x8c" + bytes([len(what)]) + what.encode()
    return b"J" + what.to_bytes(4, "little", signed=True)


def called(function: bytes, *args: bytes) -> bytes:
    return function + b"(" + b"".join(args) + b"tR"


A_RANGE = called(named("builtins", "range"), value(30_000_000))
AN_INT = called(named("decimal", "Decimal"), value("1e3000000"))
NAMESPACE = called(named("types", "SimpleNamespace"))


def with_method(method: str, function: bytes) -> bytes:
    """A value with an attribute that a reader may take for a method."""
    return NAMESPACE + b"}" + value(method) + function + b"sb"


TENSOR = called(named("hvd_elastic_ext.worker.commits.tree_codec", "tensor_at"), value(0))
BYTES: dict[str, bytes] = {
    "a range of arguments": named("builtins", "slice") + A_RANGE + b"R",
    "a range of arguments for a class": named("builtins", "object") + A_RANGE + b"\x81",
    "a range of arguments for a class, beside such with names": named("builtins", "object") + A_RANGE + b"}\x92",
    "bytes that are only announced": b"\x96" + (2_000_000_000).to_bytes(8, "little"),
    "a list that doubles itself": b"]" + value(1) + b"a\x94"
    + (called(named("builtins", "slice"), value(0), value(0)) + b"h\x00s") * 40,
    "a list that a range is put into": b"]" + called(named("builtins", "slice"), value(0), value(0)) + A_RANGE + b"s",
    "bytes that are appended by a method": with_method("append", named("builtins", "bytearray"))
    + value(2_000_000_000) + b"a",
    "bytes that extend by a method": with_method("extend", named("builtins", "list")) + b"(" + value(1) + b"e"
    + with_method("append", named("builtins", "bytearray")) + b"(" + value(2_000_000_000) + b"e",
    "bytes that are added by a method": with_method("add", named("builtins", "bytearray"))
    + b"(" + value(2_000_000_000) + b"\x90",
    "bytes that are a state": with_method("__setstate__", named("builtins", "bytearray")) + value(2_000_000_000) + b"b",
    "an instance of an older protocol": b"(" + value(2_000_000_000) + b"ibuiltins\nbytearray\n",
    "an object of an older protocol": b"(" + named("builtins", "bytearray") + value(2_000_000_000) + b"o",
    "a dict of an older protocol": b"(" + b")" + b"2\x86" * 60 + b"Nd",
    "one array a thousand times": b"(" + named("hvd_elastic_ext.worker.commits.numpy_codec", "array_at") + b"\x94"
    + value("|u1") + b"\x94J" + (1_000_000).to_bytes(4, "little") + b"\x85\x94" + value("C") + b"\x94"
    + b"B" + (1_000_000).to_bytes(4, "little") + bytes(1_000_000) + b"\x94"
    + b"h\x00(h\x01h\x02h\x03h\x04tR" * 1000 + b"l",
    "a tensor again and again": b"(" + TENSOR * 3000 + b"l",
    "a path that is hashed by what it is given": called(named("pathlib", "PurePosixPath"), value("a"))
    + b"N}" + value("_cached_cparts") + b")" + b"2\x86" * 60 + b"s\x86b",
    "a key nested deeper than any stack": b"\x8f(" + b")" + b"\x85" * 200_000 + b"\x90",
    "a frozenset nested deeper than any stack": b"(" + b")" + b"\x85" * 200_000 + b"\x91",
    "a key of a dict nested deeper than any stack": b"}" + b")" + b"\x85" * 200_000 + b"Ns",
    "a key doubled without a memo": b"}" + b")" + b"2\x86" * 60 + b"Ns",
    "keys doubled without a memo": b"}(" + b")" + b"2\x86" * 60 + b"Nu",
    "a set of what doubles": b"\x8f(" + b")" + b"2\x86" * 60 + b"\x90",
    "a frozenset of what doubles": b"(" + b")" + b"2\x86" * 60 + b"\x91",
    "a number with an exponent, calculated by a method": with_method("append", named("builtins", "int"))
    + AN_INT + b"a",
    "numbers of one hash": b"\x8f(" + b"".join(map(value, MANY)) + b"\x90",
    "numbers of one hash, in pieces": b"\x8f" + b"".join(b"(" + value(number) + b"\x90" for number in MANY),
    "keys of one hash": b"}(" + b"".join(value(number) + b"N" for number in MANY) + b"u",
    "keys of one hash, one by one": b"}" + b"".join(value(number) + b"Ns" for number in MANY),
    "a tensor that is spread": TENSOR + b"(" + TENSOR + b"\x90",
}  # fmt: skip
"""As another rank could send them, without their beginning and end."""


def data(name: str) -> bytes:
    return b"\x80\x05" + BYTES[name] + b"."


def _read(name: str) -> object:
    import torch

    from hvd_elastic_ext.checkpoint import graph
    from hvd_elastic_ext.worker.commits import tree_codec

    def at(index: int, kind: str) -> Any:
        return torch.ones(1000, 1000)

    how, _, what = name.partition(": ")
    if how == "sent":
        return tree_codec.read(data(what), at, admitted=frozenset())
    if how == "exported":
        return graph.plain(text(what), at)
    return tree_codec.read(graph.from_json(text(what)), at, admitted=frozenset())


NAMES = [f"{how}: {name}" for how in ("resumed", "exported", "sent") for name in (BYTES if how == "sent" else TEXTS)]


def _ending(name: str) -> str:
    from hvd_elastic_ext.core.errors import Permanent

    try:
        return f"read: {type(_read(name)).__name__}"
    except Permanent as error:
        return f"refused: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def main(names: Sequence[str]) -> int:
    """Read each under limits, and print how it ended with the seconds of the processor that it took."""
    for module in ("numpy", "torch", "hvd_elastic_ext.checkpoint.graph", "hvd_elastic_ext.worker.commits.tree_codec"):
        importlib.import_module(module)
    with open("/proc/self/statm") as pages:
        size = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    for name in names:
        began = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(began) + 1 + SECONDS, -1))
        said = _ending(name)
        print(json.dumps([said[:2000], time.process_time() - began]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
