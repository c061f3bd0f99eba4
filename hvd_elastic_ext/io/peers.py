"""Finds the user at the other end of a connection within this machine.

It imports little of the standard library, and nothing else: the agent loads this, too, and starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import struct
from collections.abc import Callable
from typing import Final

Address = tuple[str, int]
"""An IPv4 address and a port."""
OwnerLookup = Callable[[Address, Address], int | None]
"""A function from the other and this end of a TCP connection over IPv4 to the user who owns the other end's socket.

None if no process has that socket any more, or if it is not connected. Raises ``OSError`` if this cannot be found out.
"""

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ERROR: Final = 2
_ANY_COOKIE: Final = b"\xff" * 8
_HEADER: Final = 16
_UID: Final = _HEADER + 64
"""Offset of the owner in an answer: behind the message's header and the earlier fields of ``inet_diag_msg``."""
_ESTABLISHED: Final = 1
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_PROC: Final = "/proc/net/tcp"


@functools.cache
def owner_lookup() -> OwnerLookup | None:
    """Return the function that finds the user of a connection on this kernel; None if there is none.

    It is tested once, with a connection of this process to itself. Raises ``OSError`` without enough resources for such
    a connection; the next call tries again.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=5.0) as own,
    ):
        for lookup in (owner_by_netlink, owner_by_proc):
            try:
                if lookup(own.getsockname(), own.getpeername()) == os.geteuid():
                    return lookup
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    raise
    return None


def owner(connection: socket.socket, lookup: OwnerLookup) -> int | None:
    """Return the user at the other end of an open TCP connection over IPv4; None if unknown.

    Also None if the other end is closed: then the kernel lists it as root's.
    """
    try:
        uid = lookup(connection.getpeername(), connection.getsockname())
    except (OSError, ValueError):
        return None
    # As long as this end is connected, no other process can have the address and port of the other end.
    return uid if is_whole(connection) else None


def is_whole(connection: socket.socket) -> bool:
    """Whether a TCP connection is open in both directions."""
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
    except OSError:
        return False


def is_trusted(uid: int | None) -> bool:
    """Whether this is the process's own user or root."""
    return uid is not None and uid in (0, os.geteuid())


class KernelLookup:
    """Asks the kernel about sockets, over one connection from the first question on: see :data:`OwnerLookup`."""

    def __init__(self) -> None:
        self._kernel: socket.socket | None = None
        self._asked = 0

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def __call__(self, theirs: Address, ours: Address) -> int | None:
        """Return the user of a socket; the kernel answers while it is asked."""
        if self._kernel is None:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _SOCK_DIAG)
        self._asked = self._asked % 0xFFFFFFFF + 1
        ports = struct.pack("!HH", theirs[1], ours[1])
        addresses = b"".join(socket.inet_aton(address).ljust(16, b"\0") for address, _ in (theirs, ours))
        which = ports + addresses + bytes(4) + _ANY_COOKIE
        question = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + which
        header = struct.pack("=IHHII", _HEADER + len(question), _BY_FAMILY, _REQUEST, self._asked, 0)
        self._kernel.sendto(header + question, (0, 0))
        answer = self._kernel.recv(4096)
        while len(answer) >= _HEADER and struct.unpack_from("=I", answer, 8)[0] != self._asked:  # one had failed here
            answer = self._kernel.recv(4096)
        if len(answer) < _UID + 8 or struct.unpack_from("=H", answer, 4)[0] == _ERROR:
            return None
        uid, inode = struct.unpack_from("=II", answer, _UID)
        return _owner_of_open(state=answer[_HEADER + 1], uid=uid, inode=inode)


def owner_by_netlink(theirs: Address, ours: Address) -> int | None:
    """Ask the kernel about one socket: see :data:`OwnerLookup`."""
    with contextlib.closing(KernelLookup()) as lookup:
        return lookup(theirs, ours)


def owner_by_proc(theirs: Address, ours: Address) -> int | None:
    """Search all of /proc/net/tcp, which takes milliseconds on a busy host: see :data:`OwnerLookup`."""
    wanted = [_in_proc(theirs), _in_proc(ours)]
    with open(_PROC, encoding="ascii") as lines:  # noqa: PTH123 - pathlib takes long to load
        for line in lines:
            words = line.split()
            if words[1:3] == wanted:
                return _owner_of_open(state=int(words[3], 16), uid=int(words[7]), inode=int(words[9]))
    return None


def _in_proc(end: Address) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{number:08X}:{end[1]:04X}"


def _owner_of_open(*, state: int, uid: int, inode: int) -> int | None:
    """Return the owner of a socket that a process has open. Sockets without a process are listed as root's."""
    return uid if state == _ESTABLISHED and inode else None


def user_of(connection: socket.socket) -> int:
    """Return the user at the other end of a UNIX socket. If this end has connected, it is the user who listens."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
