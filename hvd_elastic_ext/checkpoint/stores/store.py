"""What every kind of storage can do, and which of them a path or a URL names.

A new kind is a module beside this one with a class that has these methods, its line in :func:`open_store`, and its row
in ``tests/contract/checkpoint/conftest.py``: the suite there says whether it keeps what :class:`Store` promises. A URL
for which fsspec has a driver needs only that row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.core.errors import UsageError


class Store(Protocol):
    """The interface of a store. Every method raises :class:`StoreFailed` for a temporary error and :class:`Permanent`
    for others.

    Names of folders and files are single names, not paths.
    """

    where: str
    """For messages: the folder, or the URL."""
    threads: int
    """Useful number of concurrent reads."""

    def folders(self) -> list[str]:
        """Return the names of all folders, in any order; none if the store does not exist yet."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the files in ``folder`` with their lengths; none if it does not exist. Links and folders do not
        count."""

    def write(self, folder: str, file: str, blocks: Iterable[Sequence[memoryview]], *, length: int) -> None:
        """Write a new file of ``length`` bytes; it is durable on return. Creates the folder.

        An interrupted write may leave a partial file. Readers never accept it.
        """

    def put(self, folder: str, file: str, data: bytes) -> None:
        """Write or replace a small file atomically; it is durable on return."""

    def read(self, folder: str, file: str, start: int, into: Sequence[memoryview]) -> None:
        """Read from byte ``start`` on into the buffers ``into``, one after another. Thread-safe.

        Raises :class:`Missing` if there is no such file, :class:`Unreadable`, and ``EOFError`` if it is too short.
        """

    def remove(self, folder: str, file: str) -> None:
        """Remove a file; the removal is durable on return. Does nothing if it does not exist."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its remaining files. Does nothing if it does not exist."""


# --- which one a path or a URL names


def open_store(where: str, options: Mapping[str, Any] | None = None) -> Store:
    """Return the store at a path or a URL (``s3://bucket/folder``); ``options`` are fsspec's for that kind of URL.
    Raises :class:`UsageError` for a kind of URL without a driver.
    """
    if not where:
        raise UsageError(
            "an empty path is not a place for checkpoints; give a folder or a URL such as s3://bucket/folder"
        )
    scheme, found, rest = where.partition("://")
    if not found:
        return LocalStore(Path(where))
    if scheme in ("file", "local"):
        return LocalStore(Path(rest))
    from hvd_elastic_ext.checkpoint.stores.fsspec_store import open_fsspec  # only this needs fsspec

    return open_fsspec(where, options or {})
