"""Keeps tensors alive while Horovod's thread may use them.

With Horovod 0.28.1 and torch 2.13 a process can hang for ever when a peer is lost during operations. Horovod's
thread ends, and frees the waiting tensors while it holds the lock of its process sets. If only the Python object has
another reference to a tensor, torch needs the interpreter lock to free it. But the training thread holds that lock,
and waits for the lock of the process sets: Horovod's functions that begin an operation do not release the interpreter
lock.

One more C++ reference to each tensor avoids this.

Horovod waits for an operation awake: it looks, yields the processor, and looks again. That is quickest where each rank
has a core. Where ranks share cores, it takes time from those that are waited for, so this library waits asleep there: a
step of three ranks on two cores took 5 ms instead of 9 ms in the median. It also sleeps in a sync: there launcher and
agents are at work, too, and one operation of two ranks on two cores took up to 40 ms instead of 11 ms.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

PAUSE_S: Final = 200e-6
"""Seconds of sleep between two checks of an operation: a fifth of a cycle of Horovod (1 ms)."""

_WAIT: Final = "horovod_torch_wait_and_clear"


class PinnedLibrary:
    """Horovod's native library, with the tensors of pending operations pinned.

    A successful operation releases its tensors. A failed one keeps them until :meth:`forget`, when its world's thread
    has ended.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self.operations = 0
        """Operations with tensors that have begun."""
        self._pins: dict[int, list[Tensor]] = {}
        self._failed: list[list[Tensor]] = []
        self.asleep = False
        """Whether waits sleep: see :func:`share_cores`."""
        self.around_wait: Callable[[], AbstractContextManager[None]] = nullcontext
        """The context that is entered around each wait for other ranks."""

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(self._library, name)
        if not callable(theirs):
            return theirs
        passed_on = self._waiting(theirs) if name == _WAIT else self._pinning(theirs)
        setattr(self, name, passed_on)  # so that the next call skips this method
        return passed_on

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        """Context in which waits sleep, however many cores there are."""
        before, self.asleep = self.asleep, True
        try:
            yield
        finally:
            self.asleep = before

    def forget(self) -> None:
        """Release all tensors. Call it when the thread that used them has ended."""
        self._pins.clear()
        self._failed.clear()

    def _pinning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def beginning(*args: Any) -> Any:
            pins = [pin(tensor) for tensor in {id(tensor): tensor for tensor in _tensors(args)}.values()]
            handle = begin(*args)
            if pins:
                self._pins[handle] = pins
                self.operations += 1
            return handle

        return beginning

    def _waiting(self, wait: Callable[[int], Any]) -> Callable[[int], Any]:
        poll = self._library.horovod_torch_poll

        @functools.wraps(wait)
        def waiting(handle: int) -> Any:
            try:
                with self.around_wait():
                    while self.asleep and not poll(handle):
                        time.sleep(PAUSE_S)
                    result = wait(handle)
            except RuntimeError:
                if handle in self._pins:
                    self._failed.append(self._pins.pop(handle))
                raise
            self._pins.pop(handle, None)
            return result

        return waiting


def share_cores(ranks: int, *, quota: str = "/sys/fs/cgroup/cpu.max") -> bool:
    """Return whether this host has more ``ranks`` than cores for them: those of its container, if the kernel says so.

    A rank may be bound to a core of its own. Its parent is not.
    """
    cores: float = len(os.sched_getaffinity(0))
    with suppress(OSError):  # it has ended
        cores = max(cores, len(os.sched_getaffinity(os.getppid())))
    try:
        share, _, period = Path(quota).read_text(encoding="ascii").partition(" ")
        cores = min(cores, int(share) / int(period))
    except (OSError, ValueError):  # no limit: "max", or no such file
        pass
    return ranks > cores


def _tensors(args: Iterable[Any]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _tensors(arg)


def pin(tensor: Tensor) -> Tensor:
    """Return an object that holds a C++ reference to ``tensor``, as its gradient. It needs no memory of its own."""
    holder = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
    holder.grad = tensor
    return holder
