"""Pickled bytes read as a list of operations.

This is no unpickler: names stay names and calls stay written down. What it knows
is what a pickler of protocol 5 emits; of anything else it says so and ends.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, Final

from hvd_elastic_ext.checkpoint.graph.nodes import (
    ABSENT,
    KINDS,
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
from hvd_elastic_ext.core.errors import Permanent


def read(data: bytes) -> Value:
    """Return the graph that ``data`` describes. Raises :class:`Permanent` if that is none of ours."""
    try:
        return _Machine().run(data)
    except (ValueError, LookupError, OverflowError, MemoryError) as error:
        raise _alien(str(error) or type(error).__name__) from error


def _alien(why: str) -> Permanent:
    return Permanent(f"the commit's tree is not as the worker writes it: {why}; commit again")


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Value] = []
        self._marks: list[int] = []
        self._memo: list[Value] = []
        self._dropped = 0
        self._result: Value = None
        self._is_fresh = False

    def run(self, data: bytes) -> Value:
        end = -1
        for opcode, argument, at in pickletools.genops(data):
            known = HANDLERS.get(opcode.name)
            if known is None:
                raise _alien(_UNKNOWN.get(opcode.name, f"{opcode.name} at {at}"))
            if self._result is not None or (self._dropped and opcode.name != "POP"):
                instead = self._memo[int(argument or 0)] if opcode.name in ("BINGET", "LONG_BINGET") else None
                self._settle_dropped(instead)
            known(self, argument)
            self._is_fresh = opcode.name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX")
            end = at or 0
        if len(self._stack) != 1 or self._marks or end + 1 != len(data):
            raise _alien(f"{len(self._stack)} values and {len(data) - end - 1} bytes are left at the end")
        return self._stack[0]

    def push(self, value: Value) -> None:
        self._stack.append(value)

    def pop_one(self) -> Value:
        return self._stack.pop()

    def since_mark(self) -> list[Value]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def memoize(self, _: Any) -> None:
        self._memo.append(self._stack[-1])

    def get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def row(self, kind: str, items: list[Value]) -> None:
        self._stack.append(Row(kind, items))

    def tuple_of(self, count: int) -> None:
        start = len(self._stack) - count
        if start < 0:
            raise IndexError("a tuple of more than there is")
        items = self._stack[start:]
        del self._stack[start:]
        self.row("tuple", items)

    def append(self, items: list[Value]) -> None:
        target = self._stack[-1]
        if isinstance(target, Row) and target.kind == "list":
            target.items += items
        elif isinstance(target, Made) and not target.pairs and target.state is ABSENT:
            target.appended += items
        else:
            raise _alien("a list is put together in an odd order")

    def add(self, items: list[Value]) -> None:
        target = self._stack[-1]
        if not isinstance(target, Row) or target.kind != "set":
            raise _alien("something is put into no set")
        target.items += items

    def set_items(self, flat: list[Value]) -> None:
        target = self._stack[-1]
        if not isinstance(target, Table | Made) or (isinstance(target, Made) and target.state is not ABSENT):
            raise _alien("a dict is put together in an odd order")
        target.pairs += zip(flat[::2], flat[1::2], strict=True)

    def pop_two(self) -> list[Value]:
        value = self._stack.pop()
        return [self._stack.pop(), value]

    def stack_global(self, _: Any) -> None:
        module, name = self.pop_two()
        if not isinstance(module, str) or not isinstance(name, str):
            raise _alien("a name that is no text")
        self.push(Name(*TENSOR) if (module, name) == TENSOR else named(module, name))

    def make(self, how: str, *, has_kwargs: bool = False) -> None:
        kwargs = self._stack.pop() if has_kwargs else Table()
        what, args = self.pop_two()
        if not isinstance(what, Name | Made) or not isinstance(args, Row) or args.kind != "tuple":
            raise _alien("a call of what cannot be called")
        if not isinstance(kwargs, Table) or not all(isinstance(key, str) for key, _ in kwargs.pairs):
            raise _alien("arguments without names among those with")
        if what == Name(*TENSOR):
            self.push(_tensor(how, args.items))
            return
        self.push(Made(how, what, args.items, kwargs.pairs))

    def build(self, _: Any) -> None:
        state = self._stack.pop()
        self._fill_with(self._stack[-1], state, ABSENT)

    def _fill_with(self, target: Value, state: Value, setter: Value) -> None:
        if not isinstance(target, Made) or (target.state is not ABSENT and target.state is not state):
            raise _alien("something is given a state twice, as what is made of itself is")
        target.state, target.setter = state, setter

    def pop(self, _: Any) -> None:
        value = self._stack.pop()
        if self._is_fresh:
            self._result = value
        else:
            self._dropped += 1

    def pop_mark(self, _: Any) -> None:
        self._dropped = len(self.since_mark())

    def _settle_dropped(self, instead: Value) -> None:
        """See what was taken off the stack: something told a second time, or the result of a setter's call."""
        made, dropped = self._result, self._dropped
        self._result, self._dropped = None, 0
        if made is None:
            if isinstance(instead, Row) and len(instead.items) == dropped:
                return
        elif isinstance(made, Made):
            if isinstance(instead, Made) and instead.what == made.what:
                return
            if made.how == "call" and len(made.args) == 2 and made.args[0] is self._stack[-1]:
                self._fill_with(self._stack[-1], made.args[1], made.what)
                return
        raise _alien("something is made and thrown away")


def _tensor(how: str, args: list[Value]) -> Tensor:
    index, kind = (*args, "")[:2] if args else (None, "")
    if how != "call" or type(index) is not int or not 0 <= index < 1 << 31 or kind not in KINDS or len(args) > 2:
        raise _alien("a tensor without its place")
    return Tensor(index, kind)


HANDLERS: Final[dict[str, Callable[[_Machine, Any], None]]] = {
    "PROTO": lambda machine, version: None,
    "FRAME": lambda machine, size: None,
    "STOP": lambda machine, _: None,
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.memoize,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(
        (
            "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE",
            "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
        ),
        _Machine.push,
    ),
    "BYTEARRAY8": lambda machine, data: machine.push(Octets(bytes(data))),
    "EMPTY_TUPLE": lambda machine, _: machine.row("tuple", []),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": lambda machine, _: machine.row("tuple", machine.since_mark()),
    "FROZENSET": lambda machine, _: machine.row("frozenset", machine.since_mark()),
    "EMPTY_LIST": lambda machine, _: machine.row("list", []),
    "APPEND": lambda machine, _: machine.append([machine.pop_one()]),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "EMPTY_SET": lambda machine, _: machine.row("set", []),
    "ADDITEMS": lambda machine, _: machine.add(machine.since_mark()),
    "EMPTY_DICT": lambda machine, _: machine.push(Table()),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop_two()),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": lambda machine, _: machine.make("call"),
    "NEWOBJ": lambda machine, _: machine.make("new"),
    "NEWOBJ_EX": lambda machine, _: machine.make("new", has_kwargs=True),
    "BUILD": _Machine.build,
}  # fmt: skip
"""All that a pickler of protocol 5 emits without buffers or persistent ids of its own. A test asks Python's."""

_UNKNOWN: Final = dict.fromkeys(
    ("EXT1", "EXT2", "EXT4"), "a type is registered with copyreg.add_extension, and its number means nothing elsewhere"
)
