"""What every store does, whatever it is on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hvd_elastic_ext.checkpoint.archive import catalog, write
from hvd_elastic_ext.checkpoint.archive.catalog import Retention
from hvd_elastic_ext.checkpoint.format.errors import Missing, StoreFailed
from hvd_elastic_ext.checkpoint.stores.store import Store
from tests.contract.checkpoint.conftest import Opener
from tests.support import checkpoints
from tests.support.checkpoints import demand_same, held, identity, newest_intact, save


def blocks(*pieces: bytes) -> Iterator[list[memoryview]]:
    for piece in pieces:
        yield [memoryview(piece[: len(piece) // 2]), memoryview(piece[len(piece) // 2 :])]


def read(store: Store, folder: str, file: str, start: int, length: int) -> bytes:
    data = bytearray(length)
    half = length // 2
    store.read(folder, file, start, [memoryview(data)[:half], memoryview(data)[half:]])
    return bytes(data)


def test_a_store_that_is_not_there_yet_is_empty(store: Store) -> None:
    assert store.folders() == []
    assert store.sizes("nobody") == {}
    store.remove("nobody", "nothing")
    store.remove_folder("nobody")


def test_what_was_written_is_read_from_anywhere(store: Store, opener: Opener) -> None:
    store.write("one", "file.bin", blocks(b"abcdef", b"ghi"), length=9)
    again = opener()
    assert again.folders() == ["one"]
    assert again.sizes("one") == {"file.bin": 9}
    assert read(again, "one", "file.bin", 0, 9) == b"abcdefghi"
    assert read(again, "one", "file.bin", 4, 3) == b"efg"
    assert read(again, "one", "file.bin", 9, 0) == b""


def test_a_file_may_be_empty_and_large(store: Store) -> None:
    large = bytes(range(256)) * (18 << 12)  # more than one part of an upload
    store.write("one", "large", blocks(large[: 9 << 20], large[9 << 20 :]), length=len(large))
    store.write("one", "empty", iter(()), length=0)
    assert store.sizes("one") == {"large": len(large), "empty": 0}
    assert read(store, "one", "large", 17 << 20, 1000) == large[17 << 20 : (17 << 20) + 1000]


@pytest.mark.parametrize("start", [0, 3, 6, 100])
def test_reading_beyond_the_end_is_told(store: Store, start: int) -> None:
    store.write("one", "file", blocks(b"abcdef"), length=6)
    with pytest.raises(EOFError):
        read(store, "one", "file", start, 7)


def test_reading_what_is_not_there_is_told(store: Store) -> None:
    with pytest.raises(Missing):
        read(store, "one", "file", 0, 1)
    store.write("one", "other", blocks(b"a"), length=1)
    with pytest.raises(Missing):
        read(store, "one", "file", 0, 1)


def test_a_try_to_write_leaves_nothing(store: Store, opener: Opener) -> None:
    write.probe(store)
    assert opener().folders() == []


def test_a_small_file_is_replaced(store: Store, opener: Opener) -> None:
    store.put("one", "small", b"before")
    store.put("one", "small", b"behind it")
    assert opener().sizes("one") == {"small": 9}
    assert read(opener(), "one", "small", 0, 9) == b"behind it"


def test_a_file_that_was_not_finished_is_no_whole_one(store: Store) -> None:
    def fails() -> Iterator[list[memoryview]]:
        yield [memoryview(b"abc")]
        raise OSError("the source is gone")

    with pytest.raises(StoreFailed):
        store.write("one", "file", fails(), length=6)
    assert store.sizes("one").get("file", 0) < 6


def test_what_was_removed_is_gone_at_once(store: Store, opener: Opener) -> None:
    for name in ("a", "b", "c"):
        store.write("one", name, blocks(b"x"), length=1)
    store.write("two", "a", blocks(b"x"), length=1)
    store.remove("one", "b")
    assert opener().sizes("one").keys() == {"a", "c"}
    store.remove_folder("one")
    assert opener().folders() == ["two"]
    assert opener().sizes("one") == {}


def test_what_others_write_is_seen(store: Store, opener: Opener) -> None:
    other = opener()
    assert store.folders() == []
    other.write("one", "a", blocks(b"x"), length=1)
    assert store.folders() == ["one"]
    assert store.sizes("one") == {"a": 1}
    other.write("one", "b", blocks(b"xy"), length=2)
    assert store.sizes("one") == {"a": 1, "b": 2}


def test_threads_read_one_file_together(store: Store) -> None:
    data = bytes(range(256)) * 400
    store.write("one", "file", blocks(data), length=len(data))
    found: dict[int, bytes] = {}

    def take(start: int) -> None:
        found[start] = read(store, "one", "file", start, 25_600)

    threads = [threading.Thread(target=take, args=(start,)) for start in range(0, len(data), 25_600)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"".join(found[start] for start in sorted(found)) == data


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_checkpoint_comes_back_as_it_was(store: Store, opener: Opener, parts: int) -> None:
    commit = held(seed=parts)
    save(store, commit, parts=parts, facts={"job": "digits"})
    (entry,) = catalog.listing(opener())
    assert (entry.name, entry.whole, entry.step, entry.world) == (commit.name, True, 40, parts)
    assert entry.facts == {"job": "digits"}
    for rank in range(parts):
        demand_same(opener(), commit, rank=rank)


def test_before_it_is_sealed_there_is_none(store: Store) -> None:
    commit = held()
    save(store, commit)
    later = held(identity(2), seed=1)
    checkpoints.save_unsealed(store, later)
    assert newest_intact(store) == (commit.name, {})


def test_a_damaged_one_is_passed_over_with_the_reason(store: Store) -> None:
    first, second = held(), held(identity(2), seed=1)
    save(store, first)
    made = save(store, second)
    shard = next(file for file in made.files if file.kind == "shard")
    data = bytearray(read(store, second.name, shard.name, 0, shard.bytes))
    data[-1] ^= 1
    store.put(second.name, shard.name, bytes(data))
    assert [entry.whole for entry in catalog.listing(store)] == [True, True], "lengths alone do not tell"
    newest, passed_over = newest_intact(store)
    assert newest == first.name
    assert "block 0 of 1 is not what was written" in passed_over[second.name]


def test_files_of_an_attempt_before_go_when_there_is_a_newer_one(store: Store) -> None:
    commit = held()
    checkpoints.save_unsealed(store, commit)
    made = save(store, commit)
    catalog.prune(store, Retention())
    assert len(store.sizes(commit.name)) == 2 * len(made.files) + 1, "they may be written yet"
    save(store, held(identity(2), seed=2))
    catalog.prune(store, Retention())
    assert store.sizes(commit.name).keys() == {"manifest.json", *(file.name for file in made.files)}
    demand_same(store, commit)


def test_pruning_removes_the_oldest_whole_and_leaves_the_rest_as_it_was(store: Store, opener: Opener) -> None:
    commits = [held(identity(number), seed=number) for number in range(1, 6)]
    for commit in commits:
        save(store, commit)
    removed = catalog.prune(store, Retention(last=2))
    assert [named.name for named in removed] == [commit.name for commit in commits[:3]]
    assert sorted(opener().folders()) == [commit.name for commit in commits[3:]]
    demand_same(opener(), commits[4])
