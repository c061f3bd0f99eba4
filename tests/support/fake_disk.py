"""A disk in memory that fails and loses data as planned. It has the functions of :mod:`os` that stores use.

It guarantees what POSIX guarantees, and no more. Data that was not flushed with ``fsync`` stays until
:meth:`Disk.after`. Then the way in which the machine ended decides what is left: all of it, nothing of it, or names
without bytes. A fault is planned for a call, counted from 0.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Fault(Enum):
    """The fault at the planned call."""

    NONE = "nothing"
    ERROR = "EIO, once"
    FULL = "ENOSPC, and from then on for all that writes"
    GONE = "ESTALE, and from then on for everything"
    KILLED = "the process is gone"
    """Half of the planned write is done before."""


class End(Enum):
    """How the machine or the process ended."""

    KILLED = "the process alone: nothing is lost"
    POWER = "what was not flushed is as it was"
    NAMES = "names are there, flushed or not; of bytes that were not flushed the first half is"
    LAST = "of names that were not flushed the last one that changed in each folder is there, and the others are not"


class Killed(BaseException):
    """The process has ended: none of its code runs any more, not even its handling of errors."""


@dataclass
class Node:
    """A file or a folder. ``flushed``, ``names``: the content that is safe on the disk."""

    data: bytearray | None = None
    entries: dict[str, Node] = field(default_factory=dict)
    flushed: bytes = b""
    names: dict[str, Node] = field(default_factory=dict)
    last: tuple[str, Node | None] | None = None
    """The name that changed last and its new node, if that change is not flushed."""

    @property
    def is_folder(self) -> bool:
        return self.data is None

    def put(self, name: str, node: Node | None) -> None:
        """Let ``name`` mean ``node``; None removes it."""
        _change_name(self.entries, name, node)
        self.last = name, node


class Disk:
    """See the module's docstring. Takes the place of :mod:`os` in :class:`LocalStore`."""

    def __init__(self, root: Node | None = None, *, fault: Fault = Fault.NONE, at: int = -1) -> None:
        self.root = root or Node()
        self.calls = 0
        """The number of calls so far that change something."""
        self.struck = False
        self._fault, self._at = fault, at
        self._open: dict[int, Node] = {}
        self._past_cache: set[int] = set()
        self._next = 100

    def after(self, end: End) -> Disk:
        """Return a disk without faults, with the content that this one has after ``end``."""
        return Disk(_survivor(self.root, end))

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        folder, name = self._at_path(path, dir_fd)
        if flags & os.O_CREAT:
            self._change()
            if name in folder.entries:
                raise _error(errno.EEXIST)
            folder.put(name, Node(bytearray()))
        else:
            self._look()
        node = folder if name == "" else folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT)
        if flags & os.O_DIRECTORY and not node.is_folder:
            raise _error(errno.ENOTDIR)
        self._next += 1
        self._open[self._next] = node
        if flags & os.O_DIRECT:
            self._past_cache.add(self._next)
        return self._next

    def close(self, fd: int) -> None:
        del self._open[fd]

    def fstat(self, fd: int) -> os.stat_result:
        self._look()
        return _facts(self._open[fd])

    def stat(self, path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        self._look()
        folder, name = self._at_path(path, dir_fd)
        return _facts(folder if name == "" else _there(folder, name))

    def listdir(self, path: int) -> list[str]:
        self._look()
        return list(self._open[path].entries)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._change()
        folder, name = self._at_path(path, dir_fd)
        if name in folder.entries:
            raise _error(errno.EEXIST)
        folder.put(name, Node())

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int:
        data = b"".join(buffers)
        target = self._open[fd].data
        assert target is not None
        assert len(target) >= offset, "there is no hole"
        if fd in self._past_cache and (offset % 512 or any(len(buffer) % 512 for buffer in buffers)):
            raise _error(errno.EINVAL)
        half = data[: len(data) // 2]

        def put(some: bytes) -> None:
            target[offset : offset + len(some)] = some

        self._change(half=lambda: put(half))
        put(data)
        return len(data)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int:
        self._look()
        data = self._open[fd].data
        assert data is not None
        done = 0
        for buffer in buffers:
            got = data[offset + done : offset + done + len(buffer)]
            buffer[: len(got)] = got
            done += len(got)
        return done

    def fsync(self, fd: int) -> None:
        self._change()
        node = self._open[fd]
        if node.data is not None:
            node.flushed = bytes(node.data)
        node.names, node.last = dict(node.entries), None

    def rename(self, src: str, dst: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self._change()
        source, name = self._at_path(src, src_dir_fd)
        target, other = self._at_path(dst, dst_dir_fd)
        node = _there(source, name)
        source.put(name, None)
        target.put(other, node)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        self._change()
        folder, name = self._at_path(path, dir_fd)
        if _there(folder, name).is_folder:
            raise _error(errno.EISDIR)
        folder.put(name, None)

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        self._change()
        folder, name = self._at_path(path, dir_fd)
        if _there(folder, name).entries:
            raise _error(errno.ENOTEMPTY)
        folder.put(name, None)

    def _at_path(self, path: str, dir_fd: int | None) -> tuple[Node, str]:
        """Return the folder and the last name of a path. Absolute paths begin at the root, whose own name is empty."""
        if dir_fd is not None:
            return self._open[dir_fd], path
        folder = self.root
        *above, name = path.strip("/").split("/")
        for step in above:
            folder = _there(folder, step)
        return folder, name

    def _look(self) -> None:
        if self.struck and self._fault in (Fault.GONE, Fault.KILLED):
            raise self._failure()

    def _change(self, half: Callable[[], None] | None = None) -> None:
        """Count a call that changes something. Let it fail if that is planned; a write does ``half`` before."""
        self._look()
        number, self.calls = self.calls, self.calls + 1
        if number == self._at and self._fault is not Fault.NONE:
            self.struck = True
            if half is not None and self._fault is not Fault.GONE:
                half()
            raise self._failure()
        if self.struck and self._fault is Fault.FULL and half is not None:
            raise self._failure()

    def _failure(self) -> BaseException:
        codes = {Fault.ERROR: errno.EIO, Fault.FULL: errno.ENOSPC, Fault.GONE: errno.ESTALE}
        return Killed() if self._fault is Fault.KILLED else _error(codes[self._fault])


def _survivor(node: Node, end: End) -> Node:
    if node.data is not None:
        kept = bytes(node.data) if end is End.KILLED else node.flushed
        if end is End.NAMES and not kept:
            kept = bytes(node.data[: len(node.data) // 2])
        return Node(bytearray(kept), flushed=kept)
    names = dict(node.names if end in (End.POWER, End.LAST) else node.entries)
    if end is End.LAST and node.last is not None:
        _change_name(names, *node.last)
    entries = {name: _survivor(inner, end) for name, inner in names.items()}
    return Node(entries=entries, names=dict(entries))


def _change_name(names: dict[str, Node], name: str, node: Node | None) -> None:
    names.pop(name, None)
    if node is not None:
        names[name] = node


def _facts(node: Node) -> os.stat_result:
    mode = stat.S_IFDIR if node.is_folder else stat.S_IFREG
    return os.stat_result((mode | 0o755, 0, 0, 1, 0, 0, len(node.data or b""), 0, 0, 0))


def _there(folder: Node, name: str) -> Node:
    node = folder.entries.get(name)
    if node is None:
        raise _error(errno.ENOENT)
    return node


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
