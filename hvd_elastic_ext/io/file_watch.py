"""A file that other programs rewrite: notices its changes, and reads it only when it is whole.

The only importer of watchdog. Both functions look at the present file at the path: a
missed event costs at most one ``relook``.

*When is a file whole?* A file renamed into place is whole at once. A file that a
process has open for writing is not whole, however long that lasts: ``echo … >
hosts`` empties the file before it fills it, and in between no reader can distinguish
"no hosts" from "not yet". The kernel knows whether a file is open, and a request for
a lease shows it. If a lease is not possible (a file of another user, network file
systems), the text counts when it has not changed for :data:`SETTLE` seconds, an
empty one for :data:`SETTLE_EMPTY`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers.api import ObservedWatch
from watchdog.observers.inotify import InotifyEmitter, InotifyObserver
from watchdog.observers.inotify_c import InotifyConstants

from hvd_elastic_ext.core.errors import SourceUnavailable

LOG = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
"""Most bytes of a file. This is more than any host list; a larger file was named by mistake."""

MISSING = "does not exist"
"""The reason for no text, if there is no file."""

SETTLE = 0.03
"""Seconds without a change after which a file counts as whole, if the kernel does not report whether it is open."""

SETTLE_EMPTY = 1.0
"""The same for an empty file, which a writer may have emptied to fill it."""

RELEASE = (0.001, 0.003, 0.006)
"""Pauses in seconds before asking again whether a file is open: the kernel reports its closing a little too early."""

STOP_S = 1.0
"""Seconds that the end of a watch waits for its threads: a file system that hangs may block them for ever."""

MAX_LINKS = 40
"""Most symbolic links that are followed before a path counts as a loop, as in the kernel."""

_MASK = (
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_MOVED_TO
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_CLOSE_WRITE
    | InotifyConstants.IN_ATTRIB
)
# No IN_MODIFY: a half-written file is of no use. No IN_MOVED_FROM: watchdog
# delays it, and every event behind it, for half a second to wait for the event
# of the new name; the removal of a file is never urgent.

_Identity = tuple[int, int]
_Look = tuple[int, int, int, int] | int


class BeingWritten(SourceUnavailable):
    """A process has the file open for writing. Its text is read when that process has closed it."""


class FileWatch:
    """Calls ``on_change``, in a thread of its own, whenever the file at ``path`` may have changed.

    It notices renames over the file, writes in place (when the writer closes the
    file), files and directories that vanish, come back or do not exist yet, and
    changes of every symbolic link on the way. inotify reports them at once; where it
    does not work, a look within ``relook`` seconds finds them. The first call comes
    right after :meth:`start`, so that no change between a reader's first look and
    the watch is missed. Another call comes a ``relook`` after each change, because
    the file may not have been ready at the event. A relative path starts from the
    working directory at construction.

    ``on_change`` never runs twice at the same time; its errors are logged.
    """

    def __init__(self, path: Path, on_change: Callable[[], None], *, relook: float = 1.0) -> None:
        self._path = Path.cwd() / path
        self._on_change = on_change
        self._relook = relook
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._dirs = _Directories(self._path, self._wake.set)
        self._seen: _Look = 0

    def start(self) -> None:
        """Begin to watch. Raises ``RuntimeError`` if called twice."""
        if self._thread is not None:
            raise RuntimeError("a FileWatch is started once")
        self._wake.set()  # only the thread looks at files: the caller must not wait for a file system
        self._thread = threading.Thread(target=self._run, name=f"filewatch {self._path}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch; no call of ``on_change`` begins after this returns. May be repeated.

        A running call, or a look at the file, may block on its file system. This waits for at most :data:`STOP_S`
        seconds, and the thread does not keep the process alive.
        """
        self._stopping = True
        self._wake.set()
        until = time.monotonic() + STOP_S
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)
        self._dirs.close(until=until)

    def _run(self) -> None:
        again = False
        while True:
            woken = self._wake.wait(self._relook)
            self._wake.clear()
            if self._stopping:
                return
            self._dirs.follow()
            before, self._seen = self._seen, _look(self._path)
            changed = woken or before != self._seen
            if changed or again or not self._dirs.complete:
                self._call()
            again = changed

    def _call(self) -> None:
        if self._stopping:  # the look at the file took longer than stop() waits
            return
        try:
            self._on_change()
        except Exception:
            LOG.exception("%s: handling its change failed; still watching", self._path)


class _Directories:
    """Inotify watches on each directory through which a path leads. They follow its changes.

    ``complete`` is False while some of them cannot be watched.
    """

    def __init__(self, path: Path, notify: Callable[[], None]) -> None:
        self._path = path
        self._notify = notify
        self._lock = threading.Lock()
        self._dead: set[str] = set()
        self._watches: dict[str, tuple[_Identity, ObservedWatch]] = {}
        self._concerned: frozenset[str] = frozenset()
        self._observer: _Observer | None = None
        self._degraded = False
        self.complete = False
        self._handler = _Handler(self._on_event)

    def follow(self) -> None:
        """Watch the directories the path leads through now, and no others."""
        # A watch reports only what happens after its start, so repeat this until a pass finds nothing new.
        wanted: dict[str, _Identity] = {}
        for _ in range(MAX_LINKS):
            entries = lookups(self._path)
            directories = {str(entry.parent): entry.parent for entry in entries}
            self._concerned = frozenset({*map(str, entries), *directories})
            wanted = {name: i for name, d in directories.items() if (i := _identity(d)) is not None}
            self._drop_all_but(wanted)
            if not self._add(wanted):
                break
        self.complete = wanted.keys() == self._watches.keys()

    def close(self, *, until: float) -> None:
        """End all watches. Wait for their threads until ``until``, in monotonic seconds."""
        observer, self._observer, self._degraded = self._observer, None, True
        if observer is not None:
            observer.stop()
            for thread in (observer, *list(observer.emitters)):
                thread.join(max(0.0, until - time.monotonic()))

    def _drop_all_but(self, wanted: Mapping[str, _Identity]) -> None:
        with self._lock:
            dead, self._dead = self._dead, set()
        for directory, (identity, watch) in list(self._watches.items()):
            if wanted.get(directory) != identity or directory in dead:
                del self._watches[directory]
                if self._observer is not None:
                    self._observer.unschedule(watch)

    def _add(self, wanted: Mapping[str, _Identity]) -> bool:
        added = False
        for directory in wanted.keys() - self._watches.keys():
            watch = self._schedule(directory)
            if watch is not None:
                self._watches[directory] = (wanted[directory], watch)
                added = True
        return added

    def _schedule(self, directory: str) -> ObservedWatch | None:
        if not os.access(directory, os.R_OK) or self._degraded:  # in this order: access() may last beyond close()
            return None  # each relook looks at a directory that cannot be listed
        try:
            if self._observer is None:
                self._observer = _Observer()
                self._observer.start()
            return self._observer.schedule(self._handler, directory)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self._degraded = True
                LOG.warning("%s: no inotify watch is available (%s); polling it instead", self._path, error)
            return None

    def _on_event(self, event: FileSystemEvent) -> None:
        touched = {os.fsdecode(event.src_path), os.fsdecode(event.dest_path)}
        if not touched & self._concerned:
            return
        if event.event_type == "deleted":
            with self._lock:
                self._dead |= touched
        self._notify()


class _Handler(FileSystemEventHandler):
    def __init__(self, tell: Callable[[FileSystemEvent], None]) -> None:
        self._tell = tell

    def on_any_event(self, event: FileSystemEvent) -> None:
        # Watchdog adds "directory modified" to most events; it adds no information.
        if not (event.is_directory and event.event_type == "modified"):
            self._tell(event)


class _Emitter(InotifyEmitter):
    def get_event_mask_from_filter(self) -> Any:
        return _MASK


class _Observer(InotifyObserver):
    def __init__(self) -> None:
        super().__init__()
        self._emitter_class = _Emitter


def lookups(path: Path) -> list[Path]:
    """Return every entry that is looked up on the way to ``path``, with links followed, up to the first missing one.

    ``path`` is absolute. The directories of the entries contain no links.
    """
    found: dict[Path, None] = {}
    here, links = Path("/"), 0
    todo = [*reversed(path.parts)]
    while todo and links <= MAX_LINKS:
        part = todo.pop()
        if part in ("/", ".."):
            here = Path("/") if part == "/" else here.parent
            continue
        entry = here / part
        found[entry] = None
        try:
            if stat.S_ISLNK(entry.lstat().st_mode):
                links += 1
                todo += reversed(entry.readlink().parts)
            else:
                here = entry
        except (OSError, ValueError):
            break
    return list(found)


def read_text(path: Path, *, pause: Callable[[float], None] = time.sleep) -> str:
    """Return the whole text of a file that other programs rewrite. The module says when a file is whole.

    Raises :class:`SourceUnavailable` if it is missing, may not be read, is not a
    regular file, is longer than :data:`MAX_BYTES` or is not UTF-8, and
    :class:`BeingWritten` while it changes or a process has it open for writing.
    Waits up to :data:`SETTLE_EMPTY` seconds, but only for files for which the
    kernel gives no lease.
    """
    where = str(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise SourceUnavailable(repr(where), f"is not a path: {error}") from None
    except OSError as error:
        raise SourceUnavailable(where, _why(error)) from None
    try:
        data = _whole(fd, where, pause=pause)
    except OSError as error:
        raise SourceUnavailable(where, _why(error)) from None
    finally:
        os.close(fd)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SourceUnavailable(where, f"line {line} is not UTF-8 text") from None


def _whole(fd: int, where: str, *, pause: Callable[[float], None]) -> bytes:
    before = os.fstat(fd)
    if not stat.S_ISREG(before.st_mode):
        kind = "a directory" if stat.S_ISDIR(before.st_mode) else "not a regular file"
        raise SourceUnavailable(where, f"is {kind}; name a text file of host:slots lines")
    if before.st_size > MAX_BYTES:
        raise SourceUnavailable(where, f"has {before.st_size} bytes; a host list has at most {MAX_BYTES}")
    try:
        leased = _lease(fd)
        for seconds in RELEASE:
            if leased is not False:
                break
            pause(seconds)
            leased = _lease(fd)
        if leased is False:
            raise BeingWritten(where, "is being written; it is read when its writer closes it")
        data = os.pread(fd, MAX_BYTES + 1, 0)
        if leased:
            return data
    finally:
        with contextlib.suppress(OSError):  # closing the descriptor releases the lease, too
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    pause(SETTLE if data.strip() else SETTLE_EMPTY)
    # A process may have written meanwhile: then the time, the size or the text differs.
    if _print(os.fstat(fd)) != _print(before) or os.pread(fd, MAX_BYTES + 1, 0) != data:
        raise BeingWritten(where, "is being written; it is read when it stands still")
    return data


def _lease(fd: int) -> bool | None:
    """Take a read lease: True if this process has it, False if a process writes the file, None if there are no leases.

    The kernel refuses it while the file is open for writing. While this process holds
    it, a writer waits in its ``open``, before it can empty the file. So it is held only
    for one read, some microseconds. (To ask first and read later is not enough: file
    times are too coarse to show a writer in between.) The signal that reports a
    waiting writer is one without effect.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    return True


def _print(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def _look(path: Path) -> _Look:
    try:
        return _print(path.stat())
    except (OSError, ValueError) as error:
        return getattr(error, "errno", None) or -1


def _identity(directory: Path) -> _Identity | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return MISSING
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be read by this user"
    return (error.strerror or str(error)).lower()
