"""Passes on the output of a training process as it arrives."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.descriptors import CHUNK
from hvd_elastic_ext.agent.event_loop import EventLoop

MAX_AT_END: Final = 1 << 20
"""Most bytes that are read from each pipe after the end of its process."""


class Outputs:
    """The output pipes of one process, by the names of their streams. ``tell`` gets their content, as text."""

    def __init__(self, loop: EventLoop, streams: dict[int, str], *, tell: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._streams = streams
        self._tell = tell

    def listen(self) -> None:
        """From now on pass on output as it comes, except while the loop holds output back."""
        for descriptor in self._streams:
            self._loop.watch(descriptor, functools.partial(self._copy, descriptor), output=True)

    def drain(self) -> None:
        """Pass on the rest in the pipes, up to a limit: a process that still runs may hold them open."""
        for descriptor in list(self._streams):
            read = 0
            while read < MAX_AT_END and (size := self._copy(descriptor)):
                read += size

    def close(self) -> None:
        """Pass on the rest, and nothing after that."""
        self.drain()
        for descriptor in list(self._streams):
            self._end(descriptor)

    def _copy(self, descriptor: int) -> int:
        """Pass on a piece; return its size in bytes."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return 0
        if data:
            self._tell(self._streams[descriptor], data.decode("utf-8", "surrogateescape"))
        else:
            self._end(descriptor)
        return len(data)

    def _end(self, descriptor: int) -> None:
        self._loop.unwatch(descriptor)
        os.close(descriptor)
        del self._streams[descriptor]
