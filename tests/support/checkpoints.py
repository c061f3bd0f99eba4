"""Commits without torch, in the form in which a side of the memory holds them, and the checks of checkpoints of
them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hvd_elastic_ext.checkpoint.archive import catalog, read, results, write
from hvd_elastic_ext.checkpoint.format import result_file, tensor_places
from hvd_elastic_ext.checkpoint.format.errors import Damaged
from hvd_elastic_ext.checkpoint.format.manifest import File, Manifest, name_of
from hvd_elastic_ext.checkpoint.format.result_file import Head
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.commit_record import Identity, Record

Row = list[Any]
ROWS: Sequence[Row] = (
    ["float32", [8, 5], [5, 1], "cpu", 1],
    ["int64", [], [], "cpu", 0],
    ["float32", [2, 3, 4, 5], [60, 1, 15, 3], "cuda", 1],
    ["bfloat16", [0, 7], [7, 1], "cpu", 0],
    ["complex128", [3], [1], "cpu", 1],
    ["uint8", [70], [1], "cpu", 0],
)
"""A few tensors: of several types, one with another memory layout, one empty; half of them differ between ranks."""


@dataclass(frozen=True)
class Held:
    """A commit as it is in memory, after the page of the side."""

    record: Record
    commit: bytes
    tree: Any
    local: Any

    @property
    def name(self) -> str:
        return name_of(self.record.identity)

    @property
    def data(self) -> bytes:
        return self.commit[: self.record.data]

    @property
    def layout(self) -> bytes:
        return self.commit[self.record.data : self.record.data + self.record.layout]


def identity(number: int = 1, *, generation: int = 1, incarnation: int = 0, lineage: int = 7) -> Identity:
    return Identity(lineage, incarnation, generation, number)


def held(
    which: Identity | None = None, *, rows: Sequence[Row] = ROWS, seed: int = 0, step: int = 40, call: int = 0
) -> Held:
    """Return a commit in which every byte depends on ``seed``. The gaps between tensors are zero, as after a load."""
    layout = json.dumps(list(rows), separators=(",", ":")).encode()
    placed = tensor_places.decode(layout)
    data = bytearray(random.Random(seed).randbytes(placed.length))
    for start, end in placed.gaps:
        data[start:end] = bytes(end - start)
    tree = {"model": {"weight": [seed, 0.5]}, trees.VALUES: {"epoch": seed}}
    local = {"rng": [seed, [1, 2]]}
    written = trees.encode({name: json.dumps(part) for name, part in tree.items()})
    own = json.dumps(local).encode()
    record = Record(
        which or identity(), step, placed.loose, placed.length, len(layout), len(written), len(own), call=call
    )  # fmt: skip
    return Held(record, bytes(data) + layout + written + own, tree, local)


def result_of(commit: Held, *, value: str = "null", **more: Any) -> bytes:
    """Return the result of a call whose State ended with the content of ``commit``."""
    record = commit.record
    head = Head("program", value, record.loose, record.data, record.layout, record.tree, **more)
    return result_file.encode_head(head) + commit.commit[: record.shared]


@contextmanager
def past(*contents: bytes) -> Iterator[int]:
    """Give a slot's memory with the results of the calls 0, 1, …; each ended after ten more steps."""
    descriptor = os.memfd_create("past")
    try:
        for call, content in enumerate(contents):
            append(descriptor, content, call)
        yield descriptor
    finally:
        os.close(descriptor)


def append(descriptor: int, content: bytes, call: int) -> None:
    """Append the result of ``call``."""
    assert call_results.append(descriptor, [content], call=call, step=10 * call, number=call) is None


def results_in(descriptor: int) -> list[bytes]:
    """Return the content of each result in a slot's memory."""
    return [bytes(call_results.read(descriptor, entry)) for entry in call_results.entries(descriptor)]


def save(store: Store, commit: Held, *, parts: int = 2, past: int | None = None, **sealed: Any) -> Manifest:
    """Write the parts of all ranks, one after another, and the results in ``past``, and seal the checkpoint."""
    files = save_unsealed(store, commit, parts=parts)
    finished = () if past is None else results.write(store, past, commit.record.call)
    return write.seal(store, commit.record, files, parts=parts, world=parts, results=finished, **sealed)


def demand_same(store: Store, commit: Held, *, rank: int = 0) -> None:
    """Load the checkpoint, and compare it with the commit that was saved."""
    checkpoint = read.opened(store, commit.name)
    local = checkpoint.local(rank)
    assert local is not None
    memory = bytearray(b"\xff" * (checkpoint.record(local).total + 10))
    record = checkpoint.fill(memoryview(memory), local)
    assert record.identity == commit.record.identity
    assert (record.step, record.loose, record.stored) == (commit.record.step, commit.record.loose, True)
    assert bytes(memory[: record.data]) == commit.data
    assert bytes(memory[record.data : record.data + record.layout]) == commit.layout
    assert json.loads(memory[record.data + record.layout : record.shared]) == commit.tree
    assert json.loads(memory[record.shared : record.total]) == commit.local
    assert memory[record.total :] == b"\xff" * 10


def newest_intact(store: Store) -> tuple[str | None, dict[str, str]]:
    """Return the newest checkpoint without damage, and by name why newer ones are damaged."""
    passed_over: dict[str, str] = {}
    for entry in catalog.listing(store):
        try:
            if entry.sealed:
                read.verify(store, entry.name)
                return entry.name, passed_over
        except Damaged as error:
            passed_over[entry.name] = error.why
    return None, passed_over


def save_unsealed(store: Store, commit: Held, *, parts: int = 2) -> list[File]:
    """Write the parts as :func:`save` does, without the seal."""
    written = memoryview(commit.commit)
    return [
        file
        for rank in range(parts)
        for file in write.write_part(store, commit.record, written, part=rank, parts=parts, rank=rank)
    ]
