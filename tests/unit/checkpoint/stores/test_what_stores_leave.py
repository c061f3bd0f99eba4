"""What a store leaves behind when it cannot put a file, and what fsspec may leave out of an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hvd_elastic_ext.checkpoint.format.errors import StoreFailed
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.checkpoint.stores.remote import RemoteStore


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
    store = RemoteStore("memory://x", Curt(), "/x", "memory")
    assert store.folders() == []
    assert store.sizes("one") == {}


def test_a_read_that_fails_says_why_though_the_size_is_unknown() -> None:
    store = RemoteStore("memory://x", Curt(), "/x", "memory")
    with pytest.raises(StoreFailed, match="the line is cut"):
        store.read("one", "file", 0, [memoryview(bytearray(4))])
