"""One target for a while: an input that takes too much, or ends in an error that its reader does not say, is found."""

from __future__ import annotations

import gc
import os
import random
import resource
import time
import traceback
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.faults.fuzz.mutations import mutated
from tests.faults.fuzz.targets import Target

FREE: Final = 16 << 20
TIMES: Final = 1000
"""While ``n`` bytes are read, :data:`FREE` + :data:`TIMES` * n bytes may be taken at most."""
SECONDS: Final = 3.0
"""Of the processor's, for one input, while its memory is traced."""
KEPT: Final = 256 << 20
"""Bytes by which a process may have grown in the end, through all inputs together."""
SHRINKING_S: Final = 20.0
EVERY: Final = 500


@dataclass(frozen=True)
class Finding:
    """``number``: of the input, for its seed."""

    target: str
    seed: int
    number: int
    what: str
    data: bytes

    def __str__(self) -> str:
        again = f"scripts/fuzz --seed {self.seed} --only {self.number} {self.target}"
        return f"{self.target}: {self.what}\n  {again}\n  {len(self.data)} bytes: {self.data[:2000]!r}"


def hunt(
    name: str, target: Target, *, seed: int, seconds: float, begun: Callable[[int], None] = lambda number: None
) -> tuple[int, Finding | None]:
    """Read inputs for so long, or until there is a finding; how many there were."""
    number = 0
    size = _size()
    with _Traced() as traced:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            begun(number)
            data = made(target, name, seed=seed, number=number)
            what = traced.problem(target, data)
            if what is None and number % EVERY == EVERY - 1 and _has_grown(size + KEPT):
                what = f"{(_size() - size) >> 20} MiB are kept after {number} inputs"
            if what is not None:
                return number, Finding(name, seed, number, what, traced.shrunk(target, data, what))
            number += 1
    return number, None


def once(name: str, target: Target, *, seed: int, number: int) -> Finding | None:
    """One input again."""
    data = made(target, name, seed=seed, number=number)
    with _Traced() as traced:
        what = traced.problem(target, data)
    return None if what is None else Finding(name, seed, number, what, data)


def made(target: Target, name: str, *, seed: int, number: int) -> bytes:
    """The input of that number."""
    return mutated(random.Random(f"{name} {seed} {number}"), target.seeds, target.values)


class _Traced:
    def __enter__(self) -> _Traced:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()

    def problem(self, target: Target, data: bytes) -> str | None:
        """What is wrong with reading it; None if nothing is."""
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        began = time.process_time()
        what: str | None = None
        try:
            target.read(data)
        except target.errors as error:
            what = "an error of several lines" if "\n" in str(error) else None
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} in {os.path.basename(where.filename)}:{where.lineno}: {str(error)[:200]}"
        took, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1] - before
        if took > SECONDS:
            return "it takes too long"
        return "it takes too much memory" if peak > FREE + TIMES * len(data) else what

    def shrunk(self, target: Target, data: bytes, what: str) -> bytes:
        """A shorter one with which the same is wrong, as far as that is found in time."""
        deadline = time.monotonic() + SHRINKING_S
        width = len(data) // 2
        while width and time.monotonic() < deadline:
            at = 0
            while at < len(data) and time.monotonic() < deadline:
                shorter = data[:at] + data[at + width :]
                if _kind(self.problem(target, shorter)) == _kind(what):
                    data = shorter
                else:
                    at += width
            width //= 2
        return data


def _kind(what: str | None) -> str | None:
    """Without what depends on the input."""
    return what and what.split(": ")[0]


def _has_grown(most: int) -> bool:
    if _size() > most:
        gc.collect()
    return _size() > most


def _size() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize()
