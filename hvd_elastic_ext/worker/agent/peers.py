"""Whose process is at the other end of a connection within this machine."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ERROR: Final = 2
_ANY_COOKIE: Final = b"\xff" * 8
_UID_OFFSET: Final = 16 + 64
"""Of the owner in an answer: behind the message's header and all of ``inet_diag_msg`` that comes before."""


def owner(connection: socket.socket) -> int | None:
    """The user whose socket is connected to this end of a TCP connection over IPv4; None if that cannot be told.

    One question to the kernel about one socket: a look through all that
    /proc/net/tcp lists would cost milliseconds on a busy host.
    """
    try:
        (theirs, their_port), (ours, our_port) = connection.getpeername(), connection.getsockname()
        ports = struct.pack("!HH", their_port, our_port)
        addresses = b"".join(socket.inet_aton(address).ljust(16, b"\0") for address in (theirs, ours))
        which = ports + addresses + bytes(4) + _ANY_COOKIE
        question = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + which
        header = struct.pack("=IHHII", 16 + len(question), _BY_FAMILY, _REQUEST, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _SOCK_DIAG) as kernel:
            kernel.sendto(header + question, (0, 0))
            answer = kernel.recv(4096)
    except (OSError, ValueError):
        return None
    if len(answer) < _UID_OFFSET + 4 or struct.unpack_from("=H", answer, 4)[0] == _ERROR:
        return None
    uid: int = struct.unpack_from("=I", answer, _UID_OFFSET)[0]
    return uid


def is_trusted(uid: int | None) -> bool:
    """True for this process's own user and for root, and where nothing can be told."""
    return uid is None or uid in (0, os.geteuid())


def user_of(connection: socket.socket) -> int:
    """The user at the other end of a UNIX socket."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
