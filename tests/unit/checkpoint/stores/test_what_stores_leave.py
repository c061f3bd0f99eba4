"""What a store leaves behind when it cannot put a file, and what fsspec leaves to its callers."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hvd_elastic_ext.checkpoint.format.errors import StoreFailed
from hvd_elastic_ext.checkpoint.stores.fsspec_store import FsspecStore
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.checkpoint.stores.store import open_store


def test_a_file_that_cannot_be_put_in_place_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "one" / "taken").mkdir(parents=True)
    with pytest.raises(StoreFailed):
        LocalStore(tmp_path).put("one", "taken", b"data")
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["taken"]


class Curt(MemoryFileSystem):  # type: ignore[misc]
    """It tells neither of what type an entry is nor how long a file is, as fsspec allows, and its reads fail."""

    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012 (fsspec's own way)

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        return [{"name": f"{path.rstrip('/')}/plain"}]

    def size(self, path: str) -> None:
        return None

    def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        raise RuntimeError("the line is cut")


def test_an_entry_without_a_type_is_neither_a_folder_nor_a_file() -> None:
    store = FsspecStore("memory://x", Curt(), "/x", "memory")
    assert store.folders() == []
    assert store.sizes("one") == {}


def test_a_read_that_fails_says_why_though_the_size_is_unknown() -> None:
    store = FsspecStore("memory://x", Curt(), "/x", "memory")
    with pytest.raises(StoreFailed, match="the line is cut"):
        store.read("one", "file", 0, [memoryview(bytearray(4))])


def test_a_server_that_does_not_answer_when_a_store_is_opened_is_a_failed_store() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # but it does not listen
        with pytest.raises(StoreFailed, match="ConnectionRefusedError"):
            open_store(f"ftp://127.0.0.1:{bound.getsockname()[1]}/x")


def test_a_driver_that_threads_may_not_share_is_asked_by_one_at_a_time_and_by_one_store() -> None:
    place = "simplecache::memory://one-at-a-time"
    one, other = open_store(place), open_store(place)
    assert isinstance(one, FsspecStore)
    assert isinstance(other, FsspecStore)
    assert one.threads == 1
    assert one._files is not other._files
    assert open_store("memory://many-at-a-time").threads > 1
