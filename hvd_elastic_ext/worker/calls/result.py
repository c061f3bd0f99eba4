"""The result of a training call: what a process needs that was not there.

It contains the last content of the call's State, as in a commit; the value that the function returned; the random
generators, if they were the same on all ranks; and what the collectives between this call and the next one returned.
Its bytes: :mod:`hvd_elastic_ext.checkpoint.format.result_file`. Nothing in it is unpickled.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dis import get_instructions
from types import CodeType
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.checkpoint.format.result_file import Head, Result, decode, encode_head
from hvd_elastic_ext.checkpoint.values import alone
from hvd_elastic_ext.checkpoint.values.write import Unfit
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.worker.calls.collectives import weight
from hvd_elastic_ext.worker.parts import rng

LENGTHS: Final = ("loose", "data", "layout", "tree")
LARGEST_VALUE: Final = 256 << 20
"""Most characters of the text of a returned value."""
_LARGEST_BYTES: Final = LARGEST_VALUE // 4 * 3
"""Bytes of tensors with a text of so many characters."""
_LONGEST: Final = 200
"""Characters of a reason."""


Generators = frozenset[str]
TORCHS: Final = Generators(("torch", "cuda"))
"""Names of generators that are equal on all ranks unless the script, or a newcomer, seeds them by rank."""
OTHERS: Final = Generators(("python", "numpy"))
"""Names of generators that differ between processes unless the script seeds them."""


class Content(NamedTuple):
    """The last content of a State."""

    record: Record
    """That of its commit."""
    shared: memoryview
    """The commit's shared bytes: data, layout and tree."""


class Left(NamedTuple):
    """What a call has left behind on this rank."""

    call: int
    step: int
    last: Identity
    """That of its last commit."""
    content: Callable[[], Content] | None
    value: str | None
    """What its function returned, as text; None with the reason in ``unfit``."""
    unfit: str
    generators: Mapping[str, Any]
    release: Callable[[], None]
    """Called when the content is kept, or not needed."""
    protect: Callable[[], bool] = lambda: False
    """Protects the content in its place until :attr:`release`. False if it cannot be."""

    @property
    def digest(self) -> int:
        """Differs between ranks whose functions have returned different values; never 0."""
        return _number(self.unfit if self.value is None else self.value)

    def digest_of(self, generators: Generators) -> int:
        """Differs between ranks with different random generators of these; never 0."""
        return digest_of(self.generators, generators)


def digest_of(states: Mapping[str, Any], generators: Generators) -> int:
    """Differs between ranks with different states of these random generators; never 0."""
    return _number(alone.to_text({name: states.get(name) for name in sorted(generators)}))


def left_by(
    call: int,
    value: object,
    *,
    step: int,
    last: Identity,
    content: Callable[[], Content] | None,
    keep_rng: bool,
    release: Callable[[], None] = lambda: None,
    protect: Callable[[], bool] = lambda: False,
) -> Left:
    """Return what a call has left behind that has just returned ``value``. ``content`` is asked later, if at all."""
    text, unfit = "", ""
    try:
        fits = weight(value, _LARGEST_BYTES) <= _LARGEST_BYTES  # a text of gigabytes takes minutes, and memory
        text = alone.to_text(value) if fits else ""
        if not fits or len(text) > LARGEST_VALUE:
            unfit = f"its return value has more than {LARGEST_VALUE >> 20} MB as text"
    except Unfit as error:
        place = f" (at value{error.path})" if error.path else ""
        why = alone.refusal(error, "return", place=place)
        unfit = f"its return value cannot be kept: {why} (docs/values.md), or keep it in the State"
    except Exception as error:  # noqa: BLE001 - whatever the script's own types raise: training has ended well
        unfit = f"its return value cannot be kept: {' '.join(str(error).split())[:_LONGEST] or type(error).__name__}"
    states = rng.capture() if keep_rng else {}
    return Left(call, step, last, content, None if unfit else text, unfit, states, release, protect)


def rebound_names(function: Callable[..., Any]) -> Sequence[str]:
    """Names outside of a function that it assigns: a process that skips its call has not assigned them."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        return ()
    names = [
        instruction.argval
        for instruction in get_instructions(code)
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in code.co_freevars)
    ]
    return list(dict.fromkeys(names))


def program() -> str:
    """Return a digest that distinguishes this program from others in the same slot. Restarts have the same one."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return hashlib.blake2b("\0".join([main, *sys.argv]).encode(), digest_size=8).hexdigest()


def _number(text: str) -> int:
    return 1 + int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


def parts_of(
    left: Left, *, program: str, generators: Generators, collectives: Sequence[Any] = ()
) -> list[bytes | memoryview]:
    """Return the bytes of a result, in parts. ``generators``: those that were the same on all ranks.

    Raises ``ValueError`` if it cannot be kept.
    """
    content = None if left.content is None else left.content()
    lengths = {} if content is None else {name: getattr(content.record, name) for name in LENGTHS}
    head = Head(
        program=program,
        value=left.value if left.call else None,
        rng=alone.to_text({name: left.generators[name] for name in left.generators.keys() & generators}),
        collectives=collectives,
        more={"generation": left.last.generation},
        **lengths,
    )
    return [encode_head(head)] if content is None else [encode_head(head), content.shared]


class Finished(NamedTuple):
    """A result that was read."""

    call: int
    step: int
    last: Identity
    """That of the call's last commit."""
    content: Result
    """Head, data, layout and tree."""
    value: Any
    """What the call's function returned."""
    generators: Mapping[str, Any]


def read(entry: call_results.Entry, data: bytearray) -> Finished:
    """Read a result. Raises ``ValueError`` for bytes that are not a result."""
    content = decode(data)
    head, where = content.head, call_results.result_of(entry.call)
    return Finished(
        entry.call,
        entry.step,
        Identity(0, 0, generation if type(generation := head.more.get("generation")) is int else 0, entry.number),
        content,
        None if head.value is None else alone.from_text(head.value, source=where),
        {} if head.rng is None else alone.from_text(head.rng, source=where),
    )


def head_of(data: bytearray) -> Head:
    """The first part of a result. Raises ``ValueError``."""
    return decode(data).head
