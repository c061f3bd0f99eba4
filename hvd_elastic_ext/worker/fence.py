"""Close a lost world's connections, so that no peer waits on them.

Seen on Horovod 0.28.1 with three ranks and Gloo: one is killed, a second
notices, leaves its world and waits for the next one, but its connections to the
third stay open. The third waits on them for Gloo's whole timeout, 30 s. Shutting
them down makes it notice at once.

Only sockets that appeared while Horovod formed its world are touched; those of
the user's own code are not.
"""

from __future__ import annotations

import functools
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Socket = tuple[int, int]
"""A descriptor of this process and the inode behind it: descriptors are used again, inodes tell them apart."""


class Fence:
    """Knows the sockets of the present world, and can shut them down."""

    def __init__(self) -> None:
        self._sockets: frozenset[Socket] = frozenset()

    def watching(self, join: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that joins a world: the sockets that it opens are the world's."""

        @functools.wraps(join)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            before = open_sockets()
            try:
                return join(*args, **kwargs)
            finally:
                self._sockets = open_sockets() - before

        return watched

    def cut(self) -> int:
        """Shut down the world's connections; how many there were. Nobody can be waiting on this process then."""
        sockets, self._sockets = self._sockets, frozenset()
        return sum(map(_shut_down, sockets))


def open_sockets() -> frozenset[Socket]:
    """All sockets of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = entry.readlink().name
        except OSError:
            continue  # closed since it was listed
        if target.startswith("socket:["):
            found.add((int(entry.name), int(target[len("socket:[") : -1])))
    return frozenset(found)


def _shut_down(known: Socket) -> bool:
    """Shut down one connected socket, if it is still the one that was known."""
    descriptor, inode = known
    try:
        # A duplicate cannot be closed under our hands, so what is checked is what is shut down.
        duplicate = os.dup(descriptor)
    except OSError:
        return False
    status = os.fstat(duplicate)
    if not stat.S_ISSOCK(status.st_mode) or status.st_ino != inode:
        os.close(duplicate)
        return False
    with socket.socket(fileno=duplicate) as copy:
        try:
            copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False  # not connected (any more)
        return True
