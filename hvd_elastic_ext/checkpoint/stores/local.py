"""Stores checkpoints in a folder of a local or shared file system.

The folder is opened once, and all operations are relative to it: if its file system is unmounted, nothing is written
below the mount point. Files are new, and flushed together with their names; links are not followed.

If the file system can do it, bytes go from memory to the disk without the system's cache. Copies into the cache need a
hundred times as much processor time, which training needs.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from hvd_elastic_ext.checkpoint.format.errors import Missing, StoreFailed, Unreadable
from hvd_elastic_ext.checkpoint.format.tensor_places import SECTOR
from hvd_elastic_ext.core.errors import Permanent

BATCH: Final = 1000
"""Most buffers that one call writes or reads: the system's limit is 1024."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WITHIN: Final = _FOLDER | os.O_NOFOLLOW
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PAST_CACHE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECT
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK, opening a FIFO waits
FOR_GOOD: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class System(Protocol):
    """The functions of :mod:`os` that a store uses, under the same names."""

    def open(self, path: str, flags: int, mode: int = ..., *, dir_fd: int | None = ...) -> int: ...
    def close(self, fd: int) -> None: ...
    def fstat(self, fd: int) -> os.stat_result: ...
    def stat(self, path: str, *, dir_fd: int | None = ..., follow_symlinks: bool = ...) -> os.stat_result: ...
    def listdir(self, path: int) -> list[str]: ...
    def mkdir(self, path: str, mode: int = ..., *, dir_fd: int | None = ...) -> None: ...
    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int: ...
    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int: ...
    def fsync(self, fd: int) -> None: ...
    def rename(self, src: str, dst: str, *, src_dir_fd: int | None = ..., dst_dir_fd: int | None = ...) -> None: ...
    def unlink(self, path: str, *, dir_fd: int | None = ...) -> None: ...
    def rmdir(self, path: str, *, dir_fd: int | None = ...) -> None: ...


class LocalStore:
    """See :class:`Store`. The folder is made when something is written."""

    threads = min(4, os.cpu_count() or 1)

    def __init__(self, root: Path, system: System = os) -> None:
        self.where = str(root)
        self._root = root.absolute()
        self._system = system
        self._opening = threading.Lock()
        self._opened = -1

    def __del__(self) -> None:
        if self._opened >= 0:
            self._system.close(self._opened)

    def folders(self) -> list[str]:
        """Return them without links to folders."""
        with self._store_errors():
            try:
                facts = self._facts(self._top())
            except FileNotFoundError:
                return []
            return [name for name, fact in facts.items() if stat.S_ISDIR(fact.st_mode)]

    def sizes(self, folder: str) -> dict[str, int]:
        """Return only regular files."""
        with self._store_errors(folder):
            try:
                with self._folder(folder) as top:
                    facts = self._facts(top)
            except (FileNotFoundError, NotADirectoryError):
                return {}
            return {name: fact.st_size for name, fact in facts.items() if stat.S_ISREG(fact.st_mode)}

    def write(self, folder: str, file: str, blocks: Iterable[Sequence[memoryview]], *, length: int) -> None:
        """Flushes the file, its name and the folder's name. Raises :class:`StoreFailed` if there is one already."""
        with self._store_errors(folder, file), self._folder(folder, make=True) as top:
            self._write(top, file, blocks)
            self._system.fsync(top)

    def put(self, folder: str, file: str, data: bytes) -> None:
        """Writes and flushes a file of another name, then renames it."""
        draft = f"{file}.{secrets.token_hex(4)}.new"
        with self._store_errors(folder, file), self._folder(folder, make=True) as top:
            self._write(top, draft, [[memoryview(data)]])
            try:
                self._system.rename(draft, file, src_dir_fd=top, dst_dir_fd=top)
            except OSError:
                with contextlib.suppress(OSError):
                    self._system.unlink(draft, dir_fd=top)
                raise
            self._system.fsync(top)

    def read(self, folder: str, file: str, start: int, into: Sequence[memoryview]) -> None:
        """Raises :class:`Unreadable` for an I/O error (``EIO``), and :class:`Missing` also for a folder or a FIFO."""
        path = f"{self.where}/{folder}/{file}"
        with self._store_errors(folder, file):
            try:
                with self._folder(folder) as top:
                    opened = self._system.open(file, _OLD, dir_fd=top)
            except FileNotFoundError:
                raise Missing(path) from None
            try:
                if not stat.S_ISREG(self._system.fstat(opened).st_mode):
                    raise Missing(path)
                for batch in _batches(into):
                    start += self._read_all(opened, batch, start)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise Unreadable(path, error.strerror) from error
            finally:
                self._system.close(opened)

    def remove(self, folder: str, file: str) -> None:
        """Flushes the folder."""
        with self._store_errors(folder, file), contextlib.suppress(FileNotFoundError), self._folder(folder) as top:
            self._system.unlink(file, dir_fd=top)
            self._system.fsync(top)

    def remove_folder(self, folder: str) -> None:
        """Raises :class:`StoreFailed` if there is another folder in it."""
        with self._store_errors(folder), contextlib.suppress(FileNotFoundError):
            with self._folder(folder) as top:
                for name, fact in self._facts(top).items():
                    if not stat.S_ISDIR(fact.st_mode):
                        with contextlib.suppress(FileNotFoundError):
                            self._system.unlink(name, dir_fd=top)
            self._system.rmdir(folder, dir_fd=self._top())
            self._system.fsync(self._top())

    def _facts(self, top: int) -> dict[str, os.stat_result]:
        found = {}
        for name in self._system.listdir(top):
            with contextlib.suppress(FileNotFoundError):  # removed since the listing
                found[name] = self._system.stat(name, dir_fd=top, follow_symlinks=False)
        return found

    def _write(self, top: int, file: str, blocks: Iterable[Sequence[memoryview]]) -> None:
        opened = self._system.open(file, _NEW, 0o666, dir_fd=top)
        try:
            with contextlib.closing(_PastCache(self._system, top, file)) as past_cache:
                start = 0
                for block in blocks:
                    end = start + sum(map(len, block))
                    done = past_cache.write(block, start, end)
                    for batch in _batches(_behind(list(block), done)):
                        done += _write_all(self._system, opened, batch, start + done)
                    start = end
            self._system.fsync(opened)
        except BaseException:
            with contextlib.suppress(OSError):
                self._system.unlink(file, dir_fd=top)  # leave no part of a file, if possible
            raise
        finally:
            self._system.close(opened)

    def _read_all(self, opened: int, pieces: Sequence[memoryview], start: int) -> int:
        rest, done = [piece for piece in pieces if len(piece)], 0
        while rest:
            got = self._system.preadv(opened, rest, start + done)
            if not got:
                raise EOFError
            rest, done = _behind(rest, got), done + got
        return done

    def _top(self, *, make: bool = False) -> int:
        with self._opening:
            if self._opened < 0:
                if make:
                    self._make(self._root)
                self._opened = self._system.open(str(self._root), _FOLDER)
            return self._opened

    def _make(self, folder: Path) -> None:
        """Create a folder and its parents; each name is durable on return."""
        try:
            self._system.stat(str(folder))
        except FileNotFoundError:
            self._make(folder.parent)
            self._make_one(folder)
            above = self._system.open(str(folder.parent), _FOLDER)
            try:
                self._system.fsync(above)
            finally:
                self._system.close(above)

    def _make_one(self, folder: Path) -> None:
        """Create a folder in an existing one."""
        with contextlib.suppress(FileExistsError):
            try:
                self._system.mkdir(str(folder), 0o777)
            except FileNotFoundError as error:  # in /proc, say; stat() raises if the parent is gone
                self._system.stat(str(folder.parent))
                raise Permanent(f"{folder}: no folder can be made in {folder.parent}; give another one") from error

    @contextlib.contextmanager
    def _folder(self, folder: str, *, make: bool = False) -> Iterator[int]:
        top = self._top(make=make)
        if make:
            with contextlib.suppress(FileExistsError):
                self._system.mkdir(folder, 0o777, dir_fd=top)
            self._system.fsync(top)  # also if another writer made the folder: it may have ended before its fsync
        opened = self._system.open(folder, _WITHIN, dir_fd=top)
        try:
            yield opened
        finally:
            self._system.close(opened)

    @contextlib.contextmanager
    def _store_errors(self, *names: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = "/".join([self.where, *names])
            if error.errno in FOR_GOOD:
                raise Permanent(f"{where}: {error.strerror}; give a folder that this user may write to") from error
            remedy = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the storage"
            raise StoreFailed(where, error.strerror or error, remedy) from error


class _PastCache:
    """A second descriptor of a new file, for writes without the system's cache."""

    def __init__(self, system: System, top: int, file: str) -> None:
        self._system = system
        self._copy: mmap.mmap | None = None
        try:
            self._opened = system.open(file, _PAST_CACHE, dir_fd=top)
        except OSError:
            self._opened = -1  # the file system does not support direct writes

    def write(self, block: Sequence[memoryview], start: int, end: int) -> int:
        """Write the bytes of ``block``, from ``start`` to ``end`` of the file, as far as that is possible.

        Return how many bytes were written: whole sectors, at aligned places in the file. Memory that is not aligned is
        copied first.
        """
        length = (end - start) // SECTOR * SECTOR
        if self._opened < 0 or start % SECTOR or not length:
            return 0
        for whole in self._as_one(block, end - start):
            try:
                return _write_all(self._system, self._opened, [whole[:length]], start)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        self.close()
        return 0

    def _as_one(self, block: Sequence[memoryview], length: int) -> Iterator[memoryview]:
        if len(block) == 1:
            yield block[0]
        if self._copy is None or len(self._copy) < length:
            self._copy = mmap.mmap(-1, length)
        at = 0
        for piece in block:
            self._copy[at : at + len(piece)] = piece
            at += len(piece)
        yield memoryview(self._copy)

    def close(self) -> None:
        if self._opened >= 0:
            self._system.close(self._opened)
        self._opened = -1


def _batches(pieces: Sequence[memoryview]) -> Iterator[Sequence[memoryview]]:
    for start in range(0, len(pieces), BATCH):
        yield pieces[start : start + BATCH]


def _write_all(system: System, opened: int, pieces: Sequence[memoryview], start: int) -> int:
    rest, done = list(pieces), 0
    while rest:
        written = system.pwritev(opened, rest, start + done)
        rest, done = _behind(rest, written), done + written
    return done


def _behind(pieces: list[memoryview], done: int) -> list[memoryview]:
    """Return the rest of ``pieces`` after ``done`` bytes."""
    for number, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[number + 1 :]]
        done -= len(piece)
    return []
