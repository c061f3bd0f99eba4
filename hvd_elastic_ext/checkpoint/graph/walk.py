"""In which order a graph is made.

One walk for all that make something of it: bytes for a reader, plain values, or only the knowledge that it can be done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from hvd_elastic_ext.checkpoint.graph.nodes import ABSENT, ATOMS, Made, Name, Octets, Row, Table, Tensor, Value
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.core.state_limits import DEEPEST

BATCH: Final = 1000
"""So many entries are put into a container at once: what refers back to it sees it as full as a pickler leaves it."""

_AGAIN: Final = 1_000_000
"""Entries that are told anew for the sake of tuples that hold themselves. Real trees have a handful."""


class Sink(Protocol):
    """Takes what a graph is made of, in the order of making. Everything lies on a stack, as for a pickle."""

    def atom(self, value: Value) -> None: ...

    def name(self, name: Name) -> None: ...

    def tensor(self, tensor: Tensor) -> None: ...

    def octets(self, data: bytes) -> None: ...

    def keep(self, key: int) -> None:
        """What lies on top is the node ``key``."""

    def get(self, key: int) -> None:
        """The node ``key`` once more."""

    def itself(self, key: int) -> None:
        """As :meth:`get`, for its own setter."""

    def drop(self, count: int, *, marked: bool) -> None:
        """Take ``count`` values off; they have been used within a node that is there already."""

    def mark(self) -> None: ...

    def begin(self, kind: str) -> None:
        """An empty list, set or dict."""

    def fill(self, kind: str, count: int, *, marked: bool) -> None:
        """Put ``count`` entries (pairs: "dict") into what lies below them."""

    def close(self, kind: str, count: int) -> None:
        """Make a tuple or frozenset of ``count`` values; a frozenset, and a tuple of more than three, is marked."""

    def make(self, made: Made) -> None:
        """Make it of what it is made by, a tuple of its arguments and, if it has any, a dict of those with names."""

    def state(self, made: Made) -> None: ...

    def setter(self, made: Made) -> None:
        """On the stack: what was made; the setter, what was made, the state."""


def walk(root: Value, sink: Sink) -> None:
    """Tell ``sink`` how to make the value. Raises :class:`Permanent` for one that cannot be made."""
    _Walk(sink).run(root)


class _Walk:
    """Without recursion: trees may be deeper than Python's stack.

    What cannot change is there only once its parts are, and these may hold it: then it is told a
    second time within itself, where the parts that can change are there already, and the outer one is dropped.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._kept: set[int] = set()
        self._open: dict[int, int] = {}
        self._depth = 0
        self._again = 0
        self._todo: list[tuple[Callable[[Any], None], Any]] = []

    def run(self, root: Value) -> None:
        self._todo = [(self._value, root)]
        while self._todo:
            step, subject = self._todo.pop()
            step(subject)

    def _value(self, value: Value) -> None:
        kind = type(value)
        if kind in ATOMS:
            self._sink.atom(value)
        elif id(value) in self._kept:
            self._sink.get(id(value))
        elif kind is Tensor:
            self._sink.tensor(value)
        elif kind is Name:
            self._sink.name(value)
        elif kind is Octets:
            self._sink.octets(value.data)
            self._keep(value)
        else:
            self._enter(value)

    def _enter(self, node: Row | Table | Made) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Permanent(f"the State is nested more than {DEEPEST} levels deep; keep what is out of it")
        steps = self._steps(node)
        steps.append((self._leave, None))
        self._todo.extend(reversed(steps))

    def _leave(self, _: None) -> None:
        self._depth -= 1

    def _keep(self, node: Value) -> None:
        self._kept.add(id(node))
        self._sink.keep(id(node))

    def _steps(self, node: Row | Table | Made) -> list[tuple[Callable[[Any], None], Any]]:
        if isinstance(node, Made):
            self._check_open(node, len(node.args) + len(node.kwargs))
            return [(self._value, node.what), *self._arguments(node), (self._made, node)]
        if isinstance(node, Row) and node.kind in ("tuple", "frozenset"):
            self._check_open(node, len(node.items))
            mark = [(self._mark, None)] if node.kind == "frozenset" or len(node.items) > 3 else []
            return [*mark, *((self._value, item) for item in node.items), (self._closed, node)]
        kind = node.kind if isinstance(node, Row) else "dict"
        self._sink.begin(kind)
        self._keep(node)
        return self._filling(kind, node.items if isinstance(node, Row) else node.pairs)

    def _check_open(self, node: Row | Made, size: int) -> None:
        """Refuse what would have to be there before itself: between two beginnings of it, something has to be made."""
        before = self._open.get(id(node))
        if before is not None:
            self._again += size
        if before == len(self._kept) or self._again > _AGAIN:
            raise Permanent("the State holds something that is made of itself; keep it out of the State")
        self._open[id(node)] = len(self._kept)

    def _arguments(self, node: Made) -> list[tuple[Callable[[Any], None], Any]]:
        steps: list[tuple[Callable[[Any], None], Any]] = [(self._mark, None)] if len(node.args) > 3 else []
        steps += [(self._value, value) for value in node.args]
        steps.append((self._tuple, len(node.args)))
        if node.kwargs:
            steps.append((self._begin, "dict"))
            steps += self._filling("dict", node.kwargs)
        return steps

    def _filling(self, kind: str, entries: Sequence[Any]) -> list[tuple[Callable[[Any], None], Any]]:
        steps: list[tuple[Callable[[Any], None], Any]] = []
        for start in range(0, len(entries), BATCH):
            batch = entries[start : start + BATCH]
            marked = len(batch) > 1 or kind == "set"
            if marked:
                steps.append((self._mark, None))
            if kind == "dict":
                steps += [(self._value, value) for pair in batch for value in pair]
            else:
                steps += [(self._value, value) for value in batch]
            steps.append((self._fill, (kind, len(batch), marked)))
        return steps

    def _closed(self, node: Row) -> None:
        marked = node.kind == "frozenset" or len(node.items) > 3
        if id(node) in self._kept:
            self._sink.drop(len(node.items), marked=marked)
            self._sink.get(id(node))
            return
        self._sink.close(node.kind, len(node.items))
        self._keep(node)

    def _made(self, node: Made) -> None:
        self._sink.make(node)
        if id(node) in self._kept:
            self._sink.drop(1, marked=False)
            self._sink.get(id(node))
            return
        self._keep(node)
        steps = self._filling("list", node.appended) + self._filling("dict", node.pairs)
        if node.setter is not ABSENT:
            steps += [(self._value, node.setter), (self._itself, node), (self._value, node.state), (self._setter, node)]
        elif node.state is not ABSENT:
            steps += [(self._value, node.state), (self._sink.state, node)]
        self._todo.extend(reversed(steps))

    def _mark(self, _: None) -> None:
        self._sink.mark()

    def _begin(self, kind: str) -> None:
        self._sink.begin(kind)

    def _tuple(self, count: int) -> None:
        self._sink.close("tuple", count)

    def _fill(self, subject: tuple[str, int, bool]) -> None:
        kind, count, marked = subject
        self._sink.fill(kind, count, marked=marked)

    def _itself(self, node: Made) -> None:
        self._sink.itself(id(node))

    def _setter(self, node: Made) -> None:
        self._sink.setter(node)
