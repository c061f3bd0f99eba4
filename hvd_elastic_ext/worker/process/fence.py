"""Close a lost world's connections, so that no peer waits on them, nor this process on a peer.

Seen on Horovod 0.28.1 with three ranks and Gloo: one is killed, a second
notices, leaves its world and waits for the next one, but its connections to the
third stay open. The third waits on them for Gloo's whole timeout, 30 s. Shutting
them down makes it notice at once. A peer that has gone silent is cut off in the
same way, from a thread that does not wait for it.

Gloo (pair.cc, ``signalException``) tells everybody who waits on a connection of its
end, but for one: who has handed over something to send that is not all sent. That
one waits out Gloo's 30 s. So a world is left in good order where that is possible:
Horovod's own thread ends first (``hvd.shutdown()``; its peers agree to end with
it), and only then are the connections cut, read empty before, so that no peer is in
the middle of sending. While that thread still runs, only what it would wait for in
vain is cut: a silent peer, or all once it has taken :data:`LINGER_S` to end. And
then for reading first: Gloo sees the end and closes the connection by itself, and
a sender that comes at that very moment is told. What nobody has closed a moment
later is shut altogether, so that the peer notices.

Only network sockets that appeared while Horovod formed its world are touched;
those of the user's own code are not, unless a library that does without Python's
sockets opened them in that very time.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

CLOSING_S: Final = 0.03
"""How long Gloo may take to close connections at whose end it has arrived; it needs a millisecond."""

LINGER_S: Final = 2.0
"""How long Horovod's thread may take to end. With peers that answer it takes a cycle, 1 ms."""

QUIET_S: Final = 0.003
"""A connection on which nothing has come for so long is empty: nobody is in the middle of sending."""

DRAIN_S: Final = 0.25
"""How long at most connections are read empty."""

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

    def leaving(self, leave: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that leaves the world: its connections are closed when Horovod's thread has ended.

        If it does not end within :data:`LINGER_S`, because a peer does not answer, they are cut under its hands.
        """

        @functools.wraps(leave)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            world = self._sockets
            impatience = threading.Timer(LINGER_S, _cut, [world, self._spared])
            impatience.daemon = True
            impatience.start()
            try:
                return leave(*args, **kwargs)
            finally:
                impatience.cancel()
                impatience.join()
                _drain(world)
                _cut(world, self._spared)
                with self._lock:
                    self._sockets -= world

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
            cut = _shut_for_reading(sockets, wanted, self._spared)
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


def _cut(world: Collection[Socket], spared: Collection[int]) -> None:
    _close_down(_shut_for_reading(world, None, spared))


def _drain(world: Collection[Socket]) -> None:
    """Read connections that nobody here reads any more, until nothing comes: who sends on them is let through."""
    deadline = time.monotonic() + DRAIN_S
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for known in world:
            if (copy := _copy(known)) is not None:
                selector.register(stack.enter_context(copy), selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            ready = selector.select(QUIET_S)
            if not ready:
                return
            for key, _ in ready:
                if not _read(cast(socket.socket, key.fileobj)):
                    selector.unregister(key.fileobj)


def _read(copy: socket.socket) -> bool:
    """Read what there is; False at the connection's end."""
    try:
        return bool(copy.recv(1 << 20, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True  # Gloo's thread was faster
    except OSError:
        return False


def _shut_for_reading(
    sockets: Collection[Socket], wanted: frozenset[str] | None, spared: Collection[int]
) -> list[Socket]:
    return [known for known in sockets if _shut_down(known, wanted, spared, how=socket.SHUT_RD)]


def _close_down(cut: Collection[Socket]) -> None:
    """Shut for good what has not been closed by its owner in the meantime."""
    deadline = time.monotonic() + CLOSING_S
    while (left := open_sockets().intersection(cut)) and time.monotonic() < deadline:
        time.sleep(0.001)
    for known in left:
        _shut_down(known, None, (), how=socket.SHUT_RDWR)


def _shut_down(known: Socket, wanted: frozenset[str] | None, spared: Collection[int], *, how: int) -> bool:
    """Shut down one connected socket, if it is still the one that was known, and to one of those ``wanted``."""
    copy = _copy(known)
    if copy is None:
        return False
    with copy:
        try:
            if not _is_meant(copy, wanted, spared):
                return False
            copy.shutdown(how)
        except OSError:
            return False  # not connected (any more)
        return True


def _copy(known: Socket) -> socket.socket | None:
    """The connection itself under a number that cannot be closed under our hands; None if it is another one by now."""
    descriptor, inode = known
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    status = os.fstat(duplicate)
    if not stat.S_ISSOCK(status.st_mode) or status.st_ino != inode:
        os.close(duplicate)
        return None
    copy = socket.socket(fileno=duplicate)
    if copy.family not in (socket.AF_INET, socket.AF_INET6):
        copy.close()
        return None  # Horovod's are all of these families
    return copy


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
