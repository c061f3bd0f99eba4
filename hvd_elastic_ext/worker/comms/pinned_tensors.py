"""Keep what Horovod reduces alive for as long as Horovod's own thread may hold it.

Seen on Horovod 0.28.1 with torch 2.13: a peer is lost while operations are on
their way, and the process hangs for good. Horovod's thread, on its way out,
frees the tensors that are waiting while it holds the lock of its table of
process sets. Where its reference is the last but the Python object's, torch
needs the interpreter for that. The training thread has the interpreter, and
waits for that very lock: Horovod's functions that begin an operation do not
let go of the interpreter.

One more C++ reference to each tensor, and torch needs no interpreter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

_WAIT = "horovod_torch_wait_and_clear"


class PinnedLibrary:
    """Horovod's native library, with the tensors of operations on their way pinned. All else is passed on.

    An operation that went well lets go of its tensors; one that failed does
    only when :meth:`forget` says that its world's thread has ended.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._pins: dict[int, list[Tensor]] = {}
        self._failed: list[list[Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if not callable(found):
            return found
        passed_on = self._waiting(found) if name == _WAIT else self._pinning(found)
        setattr(self, name, passed_on)  # so that the next call does not come by here
        return passed_on

    def forget(self) -> None:
        """Let go of everything: the thread that held it has ended."""
        self._pins.clear()
        self._failed.clear()

    def _pinning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def beginning(*args: Any) -> Any:
            pins = [_pin(tensor) for tensor in {id(tensor): tensor for tensor in _tensors(args)}.values()]
            handle = begin(*args)
            if pins:
                self._pins[handle] = pins
            return handle

        return beginning

    def _waiting(self, wait: Callable[[int], Any]) -> Callable[[int], Any]:
        @functools.wraps(wait)
        def waiting(handle: int) -> Any:
            try:
                result = wait(handle)
            except RuntimeError:
                if handle in self._pins:
                    self._failed.append(self._pins.pop(handle))
                raise
            self._pins.pop(handle, None)
            return result

        return waiting


def _tensors(args: Iterable[Any]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _tensors(arg)


def _pin(tensor: Tensor) -> Tensor:
    """Return what holds a C++ reference to ``tensor``: a gradient is held by the one it belongs to. Takes no memory."""
    holder = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
    holder.grad = tensor
    return holder
