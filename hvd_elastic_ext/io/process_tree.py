"""Trees of processes: finds all descendants, and ends them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess

KILL_AGAIN_S: Final = 0.02
"""Seconds between two looks for processes that started while others were killed."""
CLEANER_S: Final = 1.0
"""Seconds that Python's cleaner of shared memory may live longer than all other processes."""
GIVE_UP_S: Final = 20.0
"""Seconds of killing after which living processes count as impossible to kill: they belong to another user, or the
kernel blocks them. On a busy machine the kernel takes seconds to free the memory of a large process.
"""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_prctl: Final = ctypes.CDLL(None, use_errno=True).prctl


def become_subreaper() -> None:
    """Make this process the parent of every orphan among its descendants, instead of process 1."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel kill this process, or send it signal ``number``, when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_by_pipe(child: subprocess.Popen[bytes], *, within_s: float) -> None:
    """Close the pipe that a child ends with, and wait for its end; kill it if that takes too long."""
    from subprocess import TimeoutExpired  # agents need this module, and start in milliseconds

    assert child.stdin is not None
    with contextlib.suppress(OSError):
        child.stdin.close()
    try:
        child.wait(within_s)
    except TimeoutExpired:
        child.kill()
        child.wait()


def hand_over(child: subprocess.Popen[bytes]) -> None:
    """Leave a child that may outlive this process to whoever adopts it: the library must not ask for its end."""
    if child.returncode is None:
        child.returncode = 0


def reap(pids: Iterable[int], *, within_s: float) -> None:
    """Wait for these killed children, but not for ever."""
    left, until = set(pids), time.monotonic() + within_s
    while left and time.monotonic() < until:
        for pid in list(left):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            left.discard(pid)
        if left:
            time.sleep(0.002)


def fork() -> int:
    """Fork this process. In the child every signal stays blocked: its handlers would report them to this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return pid


def descendants(root: int, *, but: Iterable[int] = ()) -> list[int]:
    """Return all live descendants of ``root``, parents first, without ``but`` and their descendants.

    This reads the parent of every process: the kernel's own list of children does
    not contain those that threads started, and not every kernel has it. The look
    takes time, so it may miss a process whose parent ends meanwhile.
    """
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes long to load
        if not name.isdigit() or (state := _state(int(name))) is None:
            continue
        pid, (parent, has_ended) = int(name), state
        children.setdefault(parent, []).append(pid)
        if has_ended:
            ended.add(pid)
    spared = set(but)
    found = [child for child in children.get(root, []) if child not in spared]
    for pid in found:  # the list grows here; ended processes count: their children may have been read before
        found += [child for child in children.get(pid, []) if child not in spared]
    return [pid for pid in found if pid not in ended]


def _state(pid: int) -> tuple[int, bool] | None:
    """The parent of ``pid``, and whether it has ended but is not reaped yet; None if there is no such process."""
    try:
        state, parent, *others = stat_of(pid)
        # If only the first thread has ended, the process looks like a zombie while its other threads continue.
        return int(parent), state in b"ZX" and int(others[15]) <= 1
    except (OSError, ValueError, IndexError):
        return None


def stat_of(process: int | str) -> list[bytes]:
    """The fields of ``/proc/PROCESS/stat`` after the name: state, parent … Raises ``OSError`` if it is gone."""
    with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123 - as above
        return file.read().rpartition(b")")[2].split()  # the name in parentheses may contain anything, parentheses too


def open_files(pid: int) -> list[str]:
    """Return the paths of all open files of a process, also of removed files; empty if it has ended."""
    found = []
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(folder):  # noqa: PTH208 - as above
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"{folder}/{descriptor}").removesuffix(" (deleted)"))  # noqa: PTH115
    return found


def send(pids: Iterable[int], *numbers: int) -> None:
    """Send the signals to each process. Skip processes that are gone or that this one may not signal."""
    for pid in pids:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill(pids: Iterable[int], *, cleaners: bool) -> None:
    """Send SIGKILL to each process; to Python's cleaners of shared memory only with ``cleaners``.

    A cleaner ends by itself when no process holds its pipe any more. Before, it
    removes the files that killed processes have left in /dev/shm.
    """
    send((pid for pid in pids if cleaners or not _is_cleaner(pid)), signal.SIGKILL)


def _is_cleaner(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - as above
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False


class Strays:
    """Kills processes of killed supervisors until none is left."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._empty_looks = 0

    def gone(self, now: float, supervisors: Iterable[int], *, warn: Callable[[str], None]) -> bool:
        """Kill all descendants but ``supervisors`` and theirs. Return True if none is left, or none can be killed."""
        since = now - self._since
        strays = descendants(os.getpid(), but=supervisors)
        kill(strays, cleaners=since >= CLEANER_S)
        self._empty_looks = 0 if strays else self._empty_looks + 1
        # One look takes time, and may miss a process whose parent ends meanwhile.
        if since < GIVE_UP_S and self._empty_looks < 2:
            return False
        if strays:
            warn(f"processes that cannot be killed remain: {strays}")
        return True
