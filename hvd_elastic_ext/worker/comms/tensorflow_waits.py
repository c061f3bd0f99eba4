"""Whether this process waits for other ranks within a graph of TensorFlow.

A collective of a graph waits in C++, where nobody can hook it at a cost that a step would not notice. So each heartbeat
looks at the main thread. It waits if it runs a graph, and neither a thread of this process nor Python code that the
graph calls has done anything for a while. Horovod's own threads do not count: its loop is never at rest.

A graph that reads data, such as that of ``fit``, may wait for these instead. It does if they come from Python, or if a
thread that Python does not know waits for a file or a connection now: ranks that wait for one another do so only in
Horovod's threads. That is also how a process looks whose data tf.data's service owes it: the thread with the call polls
the connection, and no longer does once the data are there (2.15 and 2.21). A thread that also polls while the main
thread is in no graph, such as one of a message queue, does not count: it always polls. Data for which nobody waits in
the kernel, such as those of a library that sleeps and looks, cannot be told apart: Horovod does not tell which of its
operations are under way. A GPU is not seen to compute, so with one nothing is said.
"""

from __future__ import annotations

import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Final

from hvd_elastic_ext.worker.comms.main_thread import MainThreadWaits, seconds_of

GRAPH: Final = ("/tensorflow/python/eager/execute.py", "/tensorflow/python/client/session.py")
"""Where the Python code is that runs a graph."""
PYTHON: Final = "/tensorflow/python/ops/script_ops.py"
"""Where a graph calls Python code: for data from a generator, and in ``tf.py_function``."""
_TASKS: Final = Path("/proc/self/task")
_READING: Final = {  # read, pread64, readv, preadv, recvfrom, recvmsg, connect, openat
    "x86_64": frozenset({"0", "17", "19", "295", "45", "47", "42", "257"}),
    "aarch64": frozenset({"63", "67", "65", "69", "207", "212", "203", "56"}),
}.get(platform.machine(), frozenset())
"""Numbers of the kernel's calls in which a thread waits for data."""
_POLLING: Final = {  # poll, select, pselect6, ppoll, epoll_wait, epoll_pwait, epoll_pwait2
    "x86_64": frozenset({"7", "23", "270", "271", "232", "281", "441"}),
    "aarch64": frozenset({"72", "73", "22", "441"}),
}.get(platform.machine(), frozenset())
"""Those in which it waits for one of several connections."""
_WAITING: Final = _READING | _POLLING
ALWAYS: Final = 3
"""Looks outside of a graph, one after another, at which a thread polls that always does."""
_ALWAYS_POLLS: Final = "event_engine"
"""The name of gRPC's own threads, one of which polls whether or not somebody waits for an answer."""


class TensorFlowWaits(MainThreadWaits):
    """Looks at this process, at each heartbeat. ``at_rest``: threads whose computation does not count.

    ``has_gpu``: whether graphs may run on a GPU. ``computed_s``: seconds that all threads but those have computed.
    ``reading``: whether one of all threads but those waits for data. ``polling``: those that wait for one of several
    connections.
    """

    def __init__(
        self,
        at_rest: Callable[[], Collection[int]],
        has_gpu: Callable[[], bool],
        *,
        now: Callable[[], float] = time.monotonic,
        computed_s: Callable[[Collection[int]], float] | None = None,
        reading: Callable[[Collection[int]], bool] | None = None,
        polling: Callable[[], set[int]] | None = None,
    ) -> None:
        count = computed_s or seconds_computed
        self._at_rest, self._has_gpu = at_rest, has_gpu
        self._reading, self._polling = reading or reads, polling or polls
        self._polled: deque[set[int]] = deque(maxlen=ALWAYS)
        """The threads that polled at each of the last looks outside of a graph."""
        super().__init__(self._place, lambda where, main: count({*at_rest(), threading.get_native_id()}), now)

    def _place(self, frame: FrameType | None) -> str | None:
        if frame is None or self._has_gpu():
            return None
        if not frame.f_code.co_filename.endswith(GRAPH):
            self._polled.append(self._polling())
            return None
        if any(map(_is_called_by_a_graph, sys._current_frames().values())):
            return None
        pythons = {each.native_id for each in threading.enumerate() if each.native_id is not None}
        always = set.intersection(*self._polled) if len(self._polled) == ALWAYS else ()
        return None if self._reading({*self._at_rest(), *pythons, *always}) else GRAPH[0]


def _is_called_by_a_graph(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(PYTHON):
            return True
        frame = frame.f_back
    return False


def seconds_computed(but: Collection[int]) -> float:
    """Seconds that the living threads of this process have computed, but for these."""
    total = 0.0
    for thread in threads() - set(but):
        try:
            total += seconds_of(_TASKS / str(thread) / "stat")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return total


def reads(but: Collection[int]) -> bool:
    """Whether a thread of this process, but for these, waits in the kernel for data of a file or a connection."""
    return any(_waits_in(thread, _WAITING) for thread in threads() - set(but))


def polls() -> set[int]:
    """The threads of this process that wait in the kernel for one of several connections."""
    return {thread for thread in threads() if _waits_in(thread, _POLLING)}


def _waits_in(thread: int, calls: Collection[str]) -> bool:
    """Whether a thread waits in one of these calls of the kernel, and is not one of gRPC's that always poll."""
    try:
        number = (_TASKS / str(thread) / "syscall").read_text().partition(" ")[0]
        if number not in calls:
            return False
        return number in _READING or (_TASKS / str(thread) / "comm").read_text().strip() != _ALWAYS_POLLS
    except OSError:
        return False  # it has ended, or the kernel does not say


def threads() -> set[int]:
    """Native numbers of this process's threads."""
    return {int(entry.name) for entry in _TASKS.iterdir()}
