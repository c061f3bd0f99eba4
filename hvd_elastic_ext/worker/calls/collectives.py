"""What collectives return to a script outside of its training functions, and what a process gets that comes later.

Between two training functions, and before the first one, a script may call collectives of its own. Processes that run
this part together act on all of them, and record what they get: by order, name and kind. A process that runs it later
has no peers there. It *replays* the record: it gets what the others got. Where its calls differ from the record, or a
result is not in it, its collectives act on itself alone from there on, until its next training function; one warning
says so.

The record is part of a result of a training call, as plain text (``checkpoint/values/alone.py``): nothing is unpickled.
Without Horovod, and pure but for the conversion of values: ``worker/patches/horovod_collectives.py`` wraps functions.
Tensors in a record are torch's: ``worker/patches/tensors.py`` makes those of other libraries from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.checkpoint.values import alone
from hvd_elastic_ext.checkpoint.values.read import DEEPEST
from hvd_elastic_ext.checkpoint.values.write import Unfit
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.calls.meeting import EMPTY

MOST_BYTES: Final = 4 << 20
"""Most bytes of the values of a record."""
BARRIER: Final = "barrier"
BY_RANK: Final = frozenset(("allgather", "grouped_allgather", "allgather_object"))
"""Kinds whose results are indexed by rank, and equal on all ranks."""
OF_RANK: Final = frozenset(("alltoall", "reducescatter", "grouped_reducescatter"))
"""Kinds that return something else to each rank."""
VARIABLES: Final = "broadcast_variables"
"""Writes into variables. Those of a State get their values in its sync; large ones are not recorded."""
MOST_OF_VARIABLES: Final = 64 << 10
"""Most bytes of variables that are recorded: statistics of the data are smaller, weights of a model are larger."""

_ENTRY: Final = 256
"""Bytes of a collective besides its value: a script without a training function calls them all the time."""
_NUMBER: Final = 8
"""Bytes of a value whose size is not known."""
_TEXT_PER_BYTE: Final = 3
_LONGEST: Final = 200
_LONGEST_GIVEN: Final = 2000
Given = str
"""What a collective was called with, as far as it is the same on all ranks: types and shapes."""


class Entry(NamedTuple):
    """One collective."""

    kind: str
    name: str | None
    """As the script gave it."""
    given: Given
    size: int
    """Processes of its world."""
    value: str | None = None
    """Its result as text; None with the reason in ``why``."""
    why: str = ""

    @property
    def words(self) -> str:
        """The call, for people."""
        return words(self.kind, self.name)


def words(kind: str, name: str | None) -> str:
    """A call of a collective, for people."""
    return f"hvd.{kind}({'' if name is None else f'name={name!r}'})"


class Record:
    """What collectives have returned here, in their order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._left = MOST_BYTES
        self._full = False

    def begin(self, kind: str, name: str | None, given: Given, *, size: int) -> int | None:
        """Note the beginning of a collective. Return its number for :meth:`end`; None if the record is full."""
        if self._full:
            return None
        self.entries.append(Entry(kind, name, given, size, why="the others had not waited for it"))
        return len(self.entries) - 1

    def end(self, number: int | None, value: Any, *, plain: Callable[[Any], Any] = lambda value: value) -> None:
        """Note the result of a collective. ``plain``: makes torch's tensors of those of its library."""
        if number is None or self._full:
            return
        text, why, size = None, "", 0
        try:
            value = plain(value)
            size = _ENTRY + weight(value, self._left)
            if size <= self._left:
                text = alone.to_text(value)
        except Unfit as error:
            what, place = str(error).partition(";")[0], f" (at value{error.path})" if error.path else ""
            why = f"it cannot be kept: {what}{place}"
        except Exception as error:  # noqa: BLE001 - whatever the script's own types raise: a record must not end a script
            why = f"it cannot be kept: {' '.join(str(error).split())[:_LONGEST]}"
        if size > self._left or (text is not None and len(text) > _TEXT_PER_BYTE * self._left + _LONGEST):
            text, why, self._full = None, f"with it, the recorded results have more than {MOST_BYTES >> 20} MiB", True
            del self.entries[number + 1 :]
        elif text is not None:
            self._left -= size
        self.entries[number] = self.entries[number]._replace(value=text, why=why)

    def leave(self, number: int | None, why: str) -> None:
        """Note that the result of a collective is not kept."""
        if number is not None and not self._full:
            self.entries[number] = self.entries[number]._replace(why=why)

    @property
    def digest(self) -> int:
        """Differs between ranks to which different things were returned; never 0."""
        return digest(self.entries)


def digest(entries: Sequence[Entry]) -> int:
    """The digest of a record; :data:`EMPTY` without entries, and never 0."""
    if not entries:
        return EMPTY
    whole = hashlib.blake2b(digest_size=7)
    for entry in entries:
        same = entry._replace(value=None if entry.kind in OF_RANK else entry.value)
        whole.update(json.dumps(same, allow_nan=False).encode("ascii") + b"\n")
    return EMPTY + 1 + int.from_bytes(whole.digest(), "little")


def first_other(before: Sequence[Entry], now: Sequence[Entry]) -> Entry | None:
    """The first collective that has returned something else than before, by what was recorded; None if there is none.

    Only where both runs have called the same ones up to it, and for results that are not those of single ranks. In a
    world of another size all but broadcasts return something else. Variables may have other values at each start.
    """
    for old, new in zip(before, now, strict=False):
        if (old.kind, old.name) != (new.kind, new.name):
            return None
        if old.size != new.size and not new.kind.startswith("broadcast"):
            continue
        comparable = new.kind not in OF_RANK | {VARIABLES} and old.value is not None and new.value is not None
        if comparable and old.value != new.value:
            return new
    return None


def without_values(entries: Sequence[Entry], why: str) -> list[Entry]:
    """The same collectives, but what they returned cannot be given."""
    return [entry if entry.kind == BARRIER else entry._replace(value=None, why=entry.why or why) for entry in entries]


def plain(entries: Sequence[Entry]) -> list[Any]:
    """Entries as JSON values, as a result of a call contains them."""
    return [list(entry) for entry in entries]


def read(values: Sequence[Any]) -> list[Entry]:
    """Read the entries of a result. Raises ``ValueError``."""
    entries = []
    for row in values:
        if not isinstance(row, list) or len(row) != len(Entry._fields):
            raise ValueError("the collectives of a result are not valid")
        entry = Entry(*row)
        texts = isinstance(entry.kind, str) and isinstance(entry.given, str) and isinstance(entry.why, str)
        optional = isinstance(entry.name, str | None) and isinstance(entry.value, str | None)
        if not (texts and optional and type(entry.size) is int):
            raise ValueError("the collectives of a result are not valid")
        entries.append(entry)
    return entries


class Got(NamedTuple):
    """What a collective returned to the others."""

    value: Any
    entry: Entry


class Replay:
    """Gives what collectives returned to the others, one after the other. ``known``: their record; None if unknown."""

    def __init__(self, known: Sequence[Entry] | None) -> None:
        self._known = known
        self._at = 0
        self.why = ""
        """Why nothing is given any more; empty while it is."""

    def next(self, kind: str, name: str | None, given: Given) -> Got | None:
        """Return what this collective returned to the others; None with :attr:`why` if that cannot be given."""
        if self.why:
            return None
        try:
            return self._next(kind, name, given)
        except ValueError as error:
            self.why = str(error)
            return None

    def _next(self, kind: str, name: str | None, given: Given) -> Got:
        if self._known is None:
            raise ValueError("what it returned to the others is not known here")
        if self._at >= len(self._known):
            raise ValueError("the others called no further one there")
        entry = self._known[self._at]
        if (entry.kind, entry.name) != (kind, name):
            raise ValueError(f"the others called {entry.words} there")
        if entry.given != given:
            raise ValueError(f"the others passed {entry.given}, not {given}")
        if entry.value is None and kind not in (BARRIER, VARIABLES):
            raise ValueError(f"what it returned to the others was not recorded: {entry.why}")
        self._at += 1
        if entry.value is None:
            return Got(None, entry)
        try:
            return Got(alone.from_text(entry.value, source="the record of collectives"), entry)
        except StateError as error:
            raise ValueError(f"what it returned to the others cannot be read: {error}") from None


def given_by(values: Sequence[Any], *, rows_differ: bool) -> Given:
    """The types and shapes of tensors of any library. ``rows_differ``: their first dimension may differ between ranks.

    Of very many, only their number, and a digest of the rest.
    """
    tensors = [each for each in values if hasattr(each, "dtype") and hasattr(each, "shape")]
    text = ", ".join(
        f"{getattr(each.dtype, 'name', str(each.dtype).removeprefix('torch.'))}"
        f"{_sizes(each.shape)[1 if rows_differ else 0 :]}"
        for each in tensors
    )
    if len(text) <= _LONGEST_GIVEN:
        return text
    return f"{len(tensors)} tensors ({hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})"


def _sizes(shape: Any) -> list[Any]:
    return [] if getattr(shape, "rank", 0) is None else list(shape)  # TensorFlow may not know it


def weight(value: Any, most: int) -> int:
    """About how many bytes a value has; more than ``most`` as soon as that is known.

    Raises :class:`Unfit` for a value that is nested too deep, or holds itself.
    """
    size, rest = 0, list[tuple[int, Iterable[Any]]]([(0, (value,))])
    while rest:
        depth, values = rest.pop()
        if depth > DEEPEST:
            raise Unfit(f"it is nested more than {DEEPEST} levels deep, or holds itself")
        for item in values:
            if isinstance(item, str | bytes | bytearray):
                size += len(item)
            elif isinstance(item, Mapping):
                size += _NUMBER
                rest.append((depth + 1, chain(item.keys(), item.values())))
            elif isinstance(item, list | tuple | set | frozenset):
                size += _NUMBER
                rest.append((depth + 1, item))
            else:
                bytes_of = getattr(item, "nbytes", None)
                size += bytes_of if type(bytes_of) is int else _NUMBER
            if size > most:
                return size
    return size
