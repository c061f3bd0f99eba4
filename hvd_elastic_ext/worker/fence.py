"""Close a lost world's connections, so that no peer waits on them, nor this process on a peer.

Seen on Horovod 0.28.1 with three ranks and Gloo: one is killed, a second
notices, leaves its world and waits for the next one, but its connections to the
third stay open. The third waits on them for Gloo's whole timeout, 30 s. Shutting
them down makes it notice at once. A peer that has gone silent is cut off in the
same way, from a thread that does not wait for it.

A connection is shut for reading first: Gloo sees its end and closes it. Shut for
writing as well, Gloo forgets to tell a sender that comes at that very moment, and
Horovod's thread waits out Gloo's 30 s after all (seen once in a hundred times). What
nobody has closed a moment later is shut altogether, so that the peer notices.

Only network sockets that appeared while Horovod formed its world are touched;
those of the user's own code are not, unless a library that does without Python's
sockets opened them in that very time.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

CLOSING_S: Final = 0.03
"""How long Gloo may take to close connections at whose end it has arrived; it needs a millisecond."""

Socket = tuple[int, int]
"""A descriptor of this process and the inode behind it: descriptors are used again, inodes tell them apart."""


@dataclass(frozen=True, slots=True)
class _Joining:
    """A world is being joined: ``before`` was open then, ``pythons`` came since and are somebody else's."""

    before: frozenset[Socket]
    pythons: WeakSet[socket.socket]

    def opened(self) -> frozenset[Socket]:
        theirs = {socket.socket.fileno(opened) for opened in list(self.pythons)}
        return frozenset(known for known in open_sockets() - self.before if known[0] not in theirs)


class Fence:
    """Knows the sockets of the present world, and can shut them down, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: frozenset[Socket] = frozenset()
        self._joining: list[_Joining] = []
        self._joined = 0
        self._spared: set[int] = set()

    def spare(self, port: int | None) -> None:
        """Never cut connections to this port of this machine: the process's own door."""
        if port is not None:
            self._spared.add(port)

    def watching(self, join: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that joins a world: the sockets that it opens are the world's.

        Where one such function calls another, the inner one knows best.
        """

        @functools.wraps(join)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            with _noting_pythons() as pythons:
                with self._lock:
                    self._joining.append(_Joining(open_sockets(), pythons))
                    joined = self._joined
                try:
                    return join(*args, **kwargs)
                finally:
                    with self._lock:
                        opened = self._joining.pop().opened()
                        if self._joined == joined:
                            # None are opened by a call that finds the process in a world already.
                            self._sockets = opened or self._sockets
                            self._joined += 1

        return watched

    def cut(self, addresses: Collection[str] | None = None) -> int:
        """Shut down the world's connections; how many there were. Nobody can be waiting on this process then.

        With ``addresses`` only those to these peers, the others stay as they are.
        """
        wanted = None if addresses is None else frozenset(map(_plain, addresses))
        with self._lock:
            forming: frozenset[Socket] = self._joining[-1].opened() if self._joining else frozenset()
            sockets = self._sockets | forming
            if wanted is None:
                self._sockets = frozenset()
            cut = [known for known in sockets if _shut_down(known, wanted, self._spared, how=socket.SHUT_RD)]
        _close_down(cut)
        return len(cut)


HOROVODS: Final = Fence()
"""The one that follows ``hvd.init()``."""


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


@contextlib.contextmanager
def _noting_pythons() -> Iterator[WeakSet[socket.socket]]:
    """Note the sockets that Python makes meanwhile: other threads of the script do, Horovod never."""
    made: WeakSet[socket.socket] = WeakSet()
    plain: Any = socket.socket.__init__

    @functools.wraps(plain)
    def noting(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        made.add(self)

    kind: Any = socket.socket
    kind.__init__ = noting
    try:
        yield made
    finally:
        kind.__init__ = plain


def _close_down(cut: Collection[Socket]) -> None:
    """Shut for good what has not been closed by its owner in the meantime."""
    deadline = time.monotonic() + CLOSING_S
    while (left := open_sockets().intersection(cut)) and time.monotonic() < deadline:
        time.sleep(0.001)
    for known in left:
        _shut_down(known, None, (), how=socket.SHUT_RDWR)


def _shut_down(known: Socket, wanted: frozenset[str] | None, spared: Collection[int], *, how: int) -> bool:
    """Shut down one connected socket, if it is still the one that was known, and to one of those ``wanted``."""
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
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return False  # Horovod's are all of these families
        try:
            if not _is_meant(copy, wanted, spared):
                return False
            copy.shutdown(how)
        except OSError:
            return False  # not connected (any more)
        return True


def _is_meant(connection: socket.socket, wanted: frozenset[str] | None, spared: Collection[int]) -> bool:
    """Raises ``OSError`` for a socket without a peer, if that matters."""
    if wanted is None and not spared:
        return True
    address, port = connection.getpeername()[:2]
    if port in spared and ipaddress.ip_address(address).is_loopback:
        return False
    return wanted is None or _plain(address) in wanted


def _plain(address: str) -> str:
    """The same text for an IPv4 address, however it is written."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
