"""Stores checkpoints through fsspec: in object stores, and in file systems that are not mounted.

It does not need renames, or a fixed order in which writes become visible: each file has a unique name, and the
manifest, one small object, lists all files with their checksums.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.checkpoint.format.errors import Missing, StoreFailed
from hvd_elastic_ext.checkpoint.stores.local import FOR_GOOD
from hvd_elastic_ext.core.errors import ElasticError, Permanent, UsageError

WITHOUT_FOLDERS: Final = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss"}
"""Stores in which a folder is a prefix of names; creating one there could create a bucket by mistake."""
THREADS: Final = 8
"""Reads at the same time from a driver that may be called by several threads."""
PART: Final = 16 << 20
"""Bytes that are sent in one part, and held in memory meanwhile."""
PARTS: Final = 9_000
"""Most parts of one object. S3 accepts 10,000."""


class FsspecStore:
    """See :class:`Store`."""

    def __init__(self, where: str, files: Any, root: str, scheme: str) -> None:
        self.where = where.rstrip("/")
        self._files = files
        self._root = root.rstrip("/")
        self._makes_folders = scheme not in WITHOUT_FOLDERS
        shared = _takes_threads(files)
        self.threads = THREADS if shared else 1
        self._turn = contextlib.nullcontext() if shared else threading.RLock()

    def folders(self) -> list[str]:
        """Asks the store each time, without the cache of fsspec."""
        return [name for name, found in self._listed() if found.get("type") == "directory"]

    def sizes(self, folder: str) -> dict[str, int]:
        """Asks the store each time, without the cache of fsspec."""
        return {
            name: int(found.get("size") or 0) for name, found in self._listed(folder) if found.get("type") == "file"
        }

    def write(self, folder: str, file: str, blocks: Iterable[Sequence[memoryview]], *, length: int) -> None:
        """Sends parts of :data:`PART` bytes; larger ones if the file would have more than :data:`PARTS` parts."""
        with self._store_errors(folder, file):
            self._make(folder)
            opened = self._files.open(self._path(folder, file), "wb", block_size=max(PART, -(-length // PARTS)))
            try:
                for block in blocks:
                    for piece in block:
                        opened.write(piece)
            except BaseException:
                _give_up(opened)
                raise
            opened.close()

    def put(self, folder: str, file: str, data: bytes) -> None:
        """Sends all bytes in one call. The store determines whether this replaces a file atomically."""
        with self._store_errors(folder, file):
            self._make(folder)
            self._files.pipe_file(self._path(folder, file), data)

    def read(self, folder: str, file: str, start: int, into: Sequence[memoryview]) -> None:
        """Needs memory for a second copy of the requested bytes. Never raises :class:`Unreadable`."""
        length = sum(map(len, into))
        path = self._path(folder, file)
        with self._store_errors(folder, file):
            try:
                data = self._files.cat_file(path, start=start, end=start + length) if length else b""
            except FileNotFoundError:
                raise Missing(f"{self.where}/{folder}/{file}") from None
            except Exception:
                size = self._files.size(path)
                if size is not None and size < start + length:
                    raise EOFError from None  # some stores refuse to read beyond the end
                raise
        if len(data) != length:
            raise EOFError
        rest = memoryview(data)
        for piece in into:
            piece[:], rest = rest[: len(piece)], rest[len(piece) :]

    def remove(self, folder: str, file: str) -> None:
        """Removes the file with one call of fsspec. A missing file is not an error."""
        path = self._path(folder, file)
        with self._store_errors(folder, file), contextlib.suppress(FileNotFoundError):
            try:
                self._files.rm_file(path)
            except Exception:  # not every driver has FileNotFoundError for it
                self._files.invalidate_cache()
                if self._files.exists(path):
                    raise

    def remove_folder(self, folder: str) -> None:
        """Also removes the folders in it."""
        with self._store_errors(folder), contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(folder), recursive=True)

    def _listed(self, *names: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        path = self._path(*names)
        with self._store_errors(*names):
            self._files.invalidate_cache()  # others write there, too
            try:
                entries = self._files.ls(path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                entries = []
        for entry in entries:
            name = entry["name"].rstrip("/").rpartition("/")[2]
            # An object store may list the folder itself, as an empty object of that name.
            if name and entry["name"].strip("/") != path.strip("/"):
                yield name, entry

    def _make(self, folder: str) -> None:
        if self._makes_folders:
            self._files.makedirs(self._path(folder), exist_ok=True)

    def _path(self, *names: str) -> str:
        return "/".join([self._root, *names])

    @contextlib.contextmanager
    def _store_errors(self, *names: str) -> Iterator[None]:
        with _as_our_errors("/".join([self.where, *names])), self._turn:
            yield


def open_fsspec(where: str, options: Mapping[str, Any]) -> FsspecStore:
    """Return the store at a URL. Raises :class:`UsageError` for a kind of URL without a driver."""
    scheme = where.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise UsageError(f"{where}: needs fsspec; pip install fsspec") from None
    with _as_our_errors(where):  # some drivers connect when they are made
        try:
            files, root = fsspec.core.url_to_fs(where, **options)
            if not _takes_threads(files):  # fsspec shares it, and its connection, among all stores of one place
                files = type(files)(*files.storage_args, **{**files.storage_options, "skip_instance_cache": True})
        except ImportError as error:
            raise UsageError(f"{where}: {error}") from None
        except (ValueError, TypeError) as error:
            raise UsageError(f"{where}: {error}; give a folder, or a URL such as s3://bucket/folder") from None
    if not root.strip("/") and scheme != "memory":
        raise UsageError(f"{where} does not name a bucket; give one, such as {scheme}://bucket/folder")
    return FsspecStore(where, files, root, scheme)


def _takes_threads(files: Any) -> bool:
    """Whether several threads may call a driver of fsspec at once.

    Drivers of object stores may be: they do their work in one event loop. Others, such as FTP's, may have only one
    connection, which two calls at once mix up. fsspec does not say which, so all of them get one call at a time.
    """
    inner = getattr(files, "fs", None)  # of a driver that wraps another one
    kinds = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return (inner is None or _takes_threads(inner)) and (files.async_impl or not {"memory", "file"}.isdisjoint(kinds))


def _give_up(opened: Any) -> None:
    """Abandon an unfinished file. Closing it would make it look complete."""
    with contextlib.suppress(Exception):
        opened.discard()
    with contextlib.suppress(Exception):
        opened.closed = True


@contextlib.contextmanager
def _as_our_errors(where: str) -> Iterator[None]:
    try:
        yield
    except (ElasticError, EOFError):
        raise
    except PermissionError as error:
        raise Permanent(f"{where}: no permission ({error}); give credentials that may read and write there") from error
    except FileNotFoundError as error:
        raise Permanent(f"{where}: {error}; make the bucket or folder first") from error
    except OSError as error:
        if error.errno in FOR_GOOD or isinstance(error, (FileExistsError, NotADirectoryError)):
            why = error.strerror or error
            raise Permanent(f"{where}: {why}; give a folder that this user may write to") from error
        raise StoreFailed(where, f"{type(error).__name__}: {error}") from error
    except Exception as error:  # each library behind fsspec has its own errors
        raise StoreFailed(where, f"{type(error).__name__}: {error}") from error
