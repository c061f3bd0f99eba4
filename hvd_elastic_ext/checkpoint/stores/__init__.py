"""Where checkpoints lie: folders of files, one folder a checkpoint.

Belongs here: the port ``Store``, and one module for each kind of storage. All pass one contract suite
(``tests/contract/checkpoint``).

Never here: what is in the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.core.errors import UsageError


class Store(Protocol):
    """Every method raises :class:`StoreFailed` for what may work later, :class:`Permanent` for what will not.

    Names of folders and files are single names, not paths.
    """

    where: str
    """For messages: the folder, or the URL."""
    threads: int
    """How many reads at once are worth while."""

    def folders(self) -> list[str]:
        """Names of all folders, in any order; empty if the store itself is not there yet."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Files in ``folder`` and their lengths; empty if it is not there. Links and folders are no files."""

    def write(self, folder: str, file: str, blocks: Iterable[Sequence[memoryview]], *, length: int) -> None:
        """Write a new file of ``length`` bytes; it is on storage when this returns. The folder is made.

        An interrupted write may leave a partial file. Readers never accept it.
        """

    def put(self, folder: str, file: str, data: bytes) -> None:
        """Write a small file that is there whole or not at all, in place of one that is there. On storage on return."""

    def read(self, folder: str, file: str, start: int, into: Sequence[memoryview]) -> None:
        """Fill ``into``, one after another, from byte ``start`` on. Any number of threads may.

        Raises :class:`Missing` if there is no such file, :class:`Unreadable`, and ``EOFError`` if it is too short.
        """

    def remove(self, folder: str, file: str) -> None:
        """Remove a file, for good when this returns; nothing happens if it is not there."""

    def remove_folder(self, folder: str) -> None:
        """Remove all that is left of a folder; nothing happens if it is not there."""


def open_store(where: str, options: Mapping[str, Any] | None = None) -> Store:
    """The store at a path or a URL (``s3://bucket/folder``); ``options`` are fsspec's for that kind of URL.

    Raises :class:`UsageError` for a kind of URL that nothing here can open.
    """
    if not where:
        raise UsageError("an empty path is no place for checkpoints; give a folder or a URL such as s3://bucket/folder")
    scheme, found, rest = where.partition("://")
    if not found:
        return LocalStore(Path(where))
    if scheme in ("file", "local"):
        return LocalStore(Path(rest))
    from hvd_elastic_ext.checkpoint.stores.remote import open_remote  # fsspec is for those who have such a store

    return open_remote(where, options or {})
