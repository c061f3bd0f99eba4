"""Finds, names and removes what a test leaves behind. A test must leave nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.support import marks, namespaces

GRACE_S = float(os.environ.get("HVD_TEST_GRACE_S", "5"))
"""Seconds in which processes and threads may still end after a test."""

OUR_PACKAGES = ("hvd_elastic_ext", "discover", "tests", "watchdog")
"""Daemon threads that these packages started, or that run their code, must end with the test. Others are ignored."""

_PLUMBING = ("threading", "concurrent", "socketserver", "multiprocessing", "logging", "asyncio")
"""Standard modules that start threads for their callers."""

SHARED_MEMORY = Path("/dev/shm")

_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "chromium --type=")
"""Python's own children, which stay as long as the interpreter; and those of a browser, which end with it."""


class Snapshot(NamedTuple):
    """All that a test could add to, at one moment."""

    processes: frozenset[int]
    """Pids of all processes of the machine: only later ones are searched for the mark."""
    threads: frozenset[threading.Thread]
    namespaces: frozenset[str]
    shared_memory: frozenset[str]

    def __or__(self, other: Snapshot) -> Snapshot:
        return Snapshot(*(mine | theirs for mine, theirs in zip(self, other, strict=True)))

    def __sub__(self, other: Snapshot) -> Snapshot:
        return Snapshot(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


NOTHING = Snapshot(frozenset(), frozenset(), frozenset(), frozenset())


def snapshot() -> Snapshot:
    """Return the present state."""
    return Snapshot(
        processes=frozenset(marks.pids()),
        threads=frozenset(threading.enumerate()),
        namespaces=frozenset(namespaces.owned()),
        shared_memory=frozenset(_shared_memory()),
    )


def remove_leaks(mark: str, *, since: Snapshot, but: Snapshot = NOTHING, grace: float = GRACE_S) -> list[str]:
    """Name and remove what is newer than ``since`` and not in ``but``. Threads can only be named.

    ``mark``: the value of the environment mark of all processes that were started meanwhile. Waits up to ``grace``
    seconds for processes and threads that are about to end.
    """
    known = since | but
    deadline = time.monotonic() + grace
    while True:
        pids, threads = _processes(mark, known=known), _threads(known)
        if not (pids or threads) or time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    lines = [f"process {pid}: {marks.command_line(pid)}" for pid in pids]
    lines += [_describe(thread) for thread in threads]
    spaces = sorted(set(namespaces.owned()) - known.namespaces)
    lines += [f"network namespace {name}" for name in spaces]
    marks.kill(pids)
    namespaces.remove(spaces)
    for name in spaces:
        for path in Path(tempfile.gettempdir()).glob(f"{name.rpartition('-')[0]}-*"):
            shutil.rmtree(path, ignore_errors=True)  # the keys of these hosts
    memory = _leaked_memory(mark, known=known)
    while memory and time.monotonic() < deadline:  # another session may own it, and be about to remove it
        time.sleep(0.02)
        memory = _leaked_memory(mark, known=known)
    for name in memory:
        lines.append(f"shared memory {SHARED_MEMORY / name}")
        _remove(SHARED_MEMORY / name)
    return lines


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _carries(value: str, mark: str) -> bool:
    return value == mark or value.startswith(mark + "/")


def _processes(mark: str, *, known: Snapshot) -> list[int]:
    # Two checks: the mark finds processes that have left the tree, the tree finds those without our environment.
    return sorted(
        pid
        for pid in marks.pids()
        if pid not in known.processes
        and (_carries(marks.environment(pid).get(marks.MARK, ""), mark) or os.getpid() in marks.ancestors(pid))
        and marks.start_time(pid) is not None
        and not any(helper in marks.command_line(pid) for helper in _HELPERS)
    )


def _threads(known: Snapshot) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in known.threads and _must_end(thread)]


def _must_end(thread: threading.Thread) -> bool:
    if thread.name.startswith("pytest_timeout"):
        return False
    if isinstance(thread, threading._DummyThread):  # C code has called Python from a thread of its own
        return False
    return not thread.daemon or _package(_home(thread)) in OUR_PACKAGES or _package(_starter(thread)) in OUR_PACKAGES


def _package(module: str) -> str:
    return module.partition(".")[0]


def _home(thread: threading.Thread) -> str:
    """Return the module whose code the thread runs."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", None) or type(thread).__module__)


_starters: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()


def _starter(thread: threading.Thread) -> str:
    """Return the module that started the thread; "" if unknown."""
    return _starters.get(thread, "")


def watch_thread_starts() -> Callable[[], None]:
    """Note from now on which module starts each thread. Return the function that ends that."""
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _package(frame.f_globals.get("__name__", "")) in _PLUMBING:
            frame = frame.f_back
        _starters[thread] = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        original(thread)

    threading.Thread.start = start  # type: ignore[method-assign]
    return lambda: setattr(threading.Thread, "start", original)


def _describe(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
    origin = f"daemon={thread.daemon}, runs {_home(thread)}, started by {_starter(thread) or '?'}"
    return f"thread {thread.name!r} ({origin})\n{where.rstrip()}"


def _shared_memory() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHARED_MEMORY):
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == os.getuid():
                    yield entry.name


def _leaked_memory(mark: str, *, known: Snapshot) -> list[str]:
    names = [name for name in _shared_memory() if name not in known.shared_memory]
    if not names:
        return []
    strangers = _held_by_strangers(mark)
    return sorted(name for name in names if (SHARED_MEMORY / name).exists() and _inode(name) not in strangers)


def _inode(name: str) -> int:
    try:
        return (SHARED_MEMORY / name).stat().st_ino
    except OSError:
        return 0


def _held_by_strangers(mark: str) -> set[int]:
    """Return inodes of shared memory that processes outside this test use: of another user, or of another session.

    Names are not enough: a semaphore is mapped under another name than its final one.
    """
    device = SHARED_MEMORY.stat().st_dev
    held: set[int] = {0}
    for pid in marks.pids():
        if pid == os.getpid() or _carries(marks.environment(pid).get(marks.MARK, ""), mark):
            continue
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                _, _, _, where, inode, *_ = line.split()
                major, _, minor = where.partition(":")
                if os.makedev(int(major, 16), int(minor, 16)) == device:
                    held.add(int(inode))
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    facts = entry.stat()
                    if facts.st_dev == device:
                        held.add(facts.st_ino)
    return held
