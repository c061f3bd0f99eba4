"""Checksums of files, one for each block, so that any number of threads may verify one file, and damage has a place.

XXH3 of 64 bits: it finds what disks, networks and half-written files do, at the speed of memory. It is no
protection from an attacker who may write to the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import xxhash

ALGORITHM: Final = "xxh3-64"
BLOCK: Final = 8 << 20
"""Bytes of a block; the last one of a file is shorter."""


def digest(parts: Iterable[memoryview | bytes]) -> str:
    """The checksum of ``parts`` one after another: 16 hexadecimal digits."""
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def blocks(parts: Iterable[memoryview], size: int = BLOCK) -> Iterator[list[memoryview]]:
    """Cut bytes that follow each other into blocks of ``size``, without copying them."""
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
    """How many blocks a file of ``length`` bytes has."""
    return -(-length // BLOCK)


def of(data: bytes) -> tuple[str, ...]:
    """The checksums of a small file."""
    return tuple(digest(block) for block in blocks([memoryview(data)]))
