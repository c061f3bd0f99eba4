"""Checksums of files, one for each block, so that several threads can verify one file, and damage can be located.

XXH3 with 64 bits: it detects damage by disks, networks and partial writes at the speed of memory. It does not protect
from an attacker who can write to the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import xxhash

ALGORITHM: Final = "xxh3-64"
BLOCK: Final = 8 << 20
"""Bytes of a block; the last one of a file is shorter."""


def digest(parts: Iterable[memoryview | bytes]) -> str:
    """Return the checksum of the concatenated ``parts``: 16 hexadecimal digits."""
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def blocks(parts: Iterable[memoryview], size: int = BLOCK) -> Iterator[list[memoryview]]:
    """Cut consecutive bytes into blocks of ``size``, without a copy."""
    block: list[memoryview] = []
    room = size
    for part in parts:
        rest = part
        while len(rest) >= room:
            block.append(rest[:room])
            rest = rest[room:]
            yield block
            block, room = [], size
        if len(rest):
            block.append(rest)
            room -= len(rest)
    if block:
        yield block


def count(length: int) -> int:
    """Return how many blocks a file of ``length`` bytes has."""
    return -(-length // BLOCK)


def of(data: bytes) -> tuple[str, ...]:
    """Return the checksums of a small file."""
    return tuple(digest(block) for block in blocks([memoryview(data)]))
