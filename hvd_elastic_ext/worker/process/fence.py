"""Closes the connections of a lost world, so that no peer waits on them.

An example with Horovod 0.28.1, Gloo and three ranks: one rank is killed, a second one notices and leaves its world,
but its connections to the third stay open. The third then waits for Gloo's timeout of 30 s. It notices at once if
the second one shuts them down. A silent peer is cut off in the same way, by a thread that does not wait for it.

Gloo (pair.cc, ``signalException``) reports the end of a connection to every process that waits on it, except to a
sender that has sent only a part of its data: that one waits 30 s. So a process leaves its world in order if possible.
First Horovod's thread ends (``hvd.shutdown()``; its peers agree to it). Then the process reads all data that is left on
the connections, so that no peer is in the middle of a send, and cuts them. While the thread still runs, the process
cuts only a silent peer, or after :data:`LINGER_S` all connections. It first shuts down reading: Gloo sees the end and
closes the connection itself, and a sender in Gloo notices. A moment later it fully shuts down the connections that are
still open, so that the peers notice.

Only network sockets that appear while Horovod forms its world are shut down. Sockets of user code are not, unless a
library opens them at that time without Python.
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
"""Seconds that Gloo gets to close ended connections; it needs a millisecond."""

LINGER_S: Final = 2.0
"""Seconds that Horovod's thread gets to end. If all peers answer, it needs one cycle of 1 ms."""

QUIET_S: Final = 0.003
"""Seconds without data after which a connection counts as empty: no peer is in the middle of a send."""

DRAIN_S: Final = 0.25
"""Most seconds to read the data that is left on connections."""

Socket = tuple[int, int]
"""A descriptor and its inode. The inode distinguishes sockets, because descriptors are used again."""


@dataclass(frozen=True, slots=True)
class _Joining:
    """A join under way."""

    before: frozenset[Socket]
    """The sockets that were open at its start."""
    pythons: WeakSet[socket.socket]
    """The sockets that user code has opened since."""

    def opened(self) -> frozenset[Socket]:
        theirs = {socket.socket.fileno(opened) for opened in list(self.pythons)}
        return frozenset(one for one in open_sockets() - self.before if one[0] not in theirs)


class Fence:
    """Tracks the sockets of the present world, and shuts them down from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: frozenset[Socket] = frozenset()
        self._joining: list[_Joining] = []
        self._joined = 0
        self._was_cut = False
        self._peers: frozenset[Socket] = frozenset()
        """Connections to the other members; Gloo also listens, and what a script adds it may close itself."""
        self._excluded: set[int] = set()

    def exclude_port(self, port: int | None) -> None:
        """Never cut connections to this port of this machine: the rendezvous proxy of the agent."""
        if port is not None:
            self._excluded.add(port)

    def tracking(self, join: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that joins a world. The sockets that it opens count as those of the world.

        If such functions are nested, the innermost one counts.
        """

        @functools.wraps(join)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            with _noting_pythons() as pythons:
                with self._lock:
                    self._joining.append(_Joining(open_sockets(), pythons))
                    joined, self._was_cut = self._joined, False
                try:
                    return join(*args, **kwargs)
                finally:
                    with self._lock:
                        opened = self._joining.pop().opened()
                        if self._joined == joined:
                            # A call in a process that is in a world already opens no sockets.
                            self._sockets = opened or self._sockets
                            self._peers = frozenset(filter(_is_connected, opened)) if opened else self._peers
                            self._joined += 1

        return watched

    def adding(self, connect: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function that opens further connections within the present world."""

        @functools.wraps(connect)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            with _noting_pythons() as pythons:
                connecting = _Joining(open_sockets(), pythons)
                with self._lock:
                    joined = self._joined
                try:
                    return connect(*args, **kwargs)
                finally:
                    with self._lock:
                        if self._joined == joined and not self._joining:
                            self._sockets |= connecting.opened()

        return watched

    def closing(self, leave: Callable[P, T], *, drain: bool = True) -> Callable[P, T]:
        """Wrap a function that leaves the world: close its connections once Horovod's thread has ended.

        If a silent peer keeps the thread from ending, cut them after :data:`LINGER_S`. ``drain``: nothing else reads
        the connections then, and what is left on them is read first.
        """

        @functools.wraps(leave)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            world = self._sockets
            timer = threading.Timer(LINGER_S, _cut, [world, self._excluded])
            timer.daemon = True
            timer.start()
            try:
                return leave(*args, **kwargs)
            finally:
                timer.cancel()
                timer.join()
                if drain:
                    _drain(world)
                _cut(world, self._excluded)
                with self._lock:
                    self._sockets -= world
                    self._peers -= world

        return watched

    def cut(self) -> int:
        """Shut down the connections of the world, and of one that forms now; return how many there were."""
        return self.shut(self.take())

    def take(self) -> frozenset[Socket]:
        """Return the present connections, for :meth:`shut`. Connections that are opened later are of a later world."""
        with self._lock:
            forming: frozenset[Socket] = self._joining[-1].opened() if self._joining else frozenset()
            sockets, self._sockets = self._sockets | forming, frozenset()
            self._was_cut = True
        return sockets

    @property
    def was_cut(self) -> bool:
        """Whether the connections of the present world, or of one that forms, were cut since the last world formed."""
        return self._was_cut

    def is_broken(self) -> bool:
        """Whether a connection of the present world has ended, or all were cut."""
        with self._lock:
            peers, was_cut = self._peers, self._was_cut
        return was_cut or any(_has_ended(known) for known in peers)

    def shut(self, sockets: Collection[Socket]) -> int:
        """Shut down the connections from :meth:`take`, and return how many there were."""
        return _cut(sockets, self._excluded)


HOROVOD_FENCE: Final = Fence()
"""The fence of ``hvd.init()``."""


def open_sockets() -> frozenset[Socket]:
    """Return all sockets of this process."""
    sockets = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = entry.readlink().name
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            sockets.add((int(entry.name), int(target[len("socket:[") : -1])))
    return frozenset(sockets)


@contextlib.contextmanager
def _noting_pythons() -> Iterator[WeakSet[socket.socket]]:
    """Collect the sockets that Python code opens in this context. Horovod does not use Python sockets."""
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


def _cut(world: Collection[Socket], excluded: Collection[int]) -> int:
    cut = [known for known in world if _shut_down(known, excluded, how=socket.SHUT_RD)]
    _close_down(cut)
    return len(cut)


def _drain(world: Collection[Socket]) -> None:
    """Read the connections until no more data comes, because a peer may be in a send. Nothing else reads them now."""
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
    """Read the available data; False at the end of the connection."""
    try:
        return bool(copy.recv(1 << 20, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True  # Gloo's thread has read everything already
    except OSError:
        return False


def _close_down(cut: Collection[Socket]) -> None:
    """Fully shut down the connections that their owner does not close within :data:`CLOSING_S`."""
    deadline = time.monotonic() + CLOSING_S
    while (left := open_sockets().intersection(cut)) and time.monotonic() < deadline:
        time.sleep(0.001)
    for known in left:
        _shut_down(known, (), how=socket.SHUT_RDWR)


def _shut_down(known: Socket, excluded: Collection[int], *, how: int) -> bool:
    """Shut down a connected socket if it is still the known one and does not lead to the rendezvous proxy."""
    copy = _copy(known)
    if copy is None:
        return False
    with copy:
        try:
            address, port = copy.getpeername()[:2]
            if port in excluded and ipaddress.ip_address(address).is_loopback:
                return False
            copy.shutdown(how)
        except OSError:
            return False  # it is not connected
        return True


def _is_connected(known: Socket) -> bool:
    """Whether the socket has a peer."""
    copy = _copy(known)
    if copy is None:
        return False
    with copy:
        try:
            copy.getpeername()
        except OSError:
            return False
        return True


def _has_ended(known: Socket) -> bool:
    """Whether either end has closed the connection."""
    copy = _copy(known)
    if copy is None:
        return True
    with copy:
        try:
            return not copy.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def _copy(known: Socket) -> socket.socket | None:
    """Duplicate the socket, so that no thread can close it meanwhile; None if the descriptor is another socket now."""
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
        return None  # Horovod uses these families only
    return copy
