"""Whatever a commit holds and however many write it: what comes back is what was there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.archive import read, write
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from tests.support.checkpoints import demand_same, held, identity, save
from tests.support.fake_disk import Disk
from tests.unit.checkpoint.layouts import layouts


@given(layouts, st.integers(1, 6), st.integers(0, 1 << 30))
def test_what_was_saved_comes_back(rows: list[Any], parts: int, seed: int) -> None:
    store, commit = LocalStore(Path("/store"), Disk()), held(identity(3), rows=rows, seed=seed)
    save(store, commit, parts=parts)
    read.verify(store, commit.name)
    demand_same(store, commit, rank=parts - 1)


@given(layouts, st.integers(2, 5))
def test_what_may_differ_among_ranks_is_the_lowest_ones(rows: list[Any], parts: int) -> None:
    store, commit = LocalStore(Path("/store"), Disk()), held(rows=rows, seed=1)
    files = []
    for rank in range(parts):
        loose = commit.record.loose if rank else 0
        own = memoryview(bytes(loose) + commit.commit[loose:])
        files += write.write_part(store, commit.record, own, part=rank, parts=parts, rank=rank)
    write.seal(store, commit.record, files, parts=parts, world=parts)
    demand_same(store, commit)


def test_what_lay_between_tensors_does_not_come_back() -> None:
    store, commit = LocalStore(Path("/store"), Disk()), held(seed=1)
    start, end = read.tensor_places.decode(commit.layout).gaps[0]
    dirty = memoryview(commit.commit[:start] + b"\xaa" * (end - start) + commit.commit[end:])
    files = write.write_part(store, commit.record, dirty, part=0, parts=1, rank=0)
    write.seal(store, commit.record, files, parts=1, world=1)
    demand_same(store, commit)
