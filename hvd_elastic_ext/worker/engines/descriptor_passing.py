"""What a slot's program lets the rank that ``mpirun`` starts have: its command, environment, directory and descriptors.

Both are of one user on one host, and find each other by an abstract socket, of which nothing is left behind. Each asks
the kernel whose process the other is: a stranger gets nothing, and nothing of a stranger's is run.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

STREAMS: Final = ("stdout", "stderr")
_CREDENTIALS: Final = struct.Struct("3i")
_LENGTH: Final = struct.Struct("!I")
_MOST_DESCRIPTORS: Final = 64


class Handed(NamedTuple):
    """``descriptors``: their numbers in the process that got them, by what they are to be known as there."""

    argv: Sequence[str]
    env: Mapping[str, str]
    directory: str
    descriptors: Mapping[str, int]


def address(mark: str, generation: int, rank: int) -> str:
    """Where the slot of ``rank`` listens in a world.

    Every user can read which names are taken, and take others. From one of these nobody who does not know the
    mark can tell another.
    """
    name = hmac.new(mark.encode(), f"{os.geteuid()}/{generation}/{rank}".encode(), "sha256").hexdigest()
    return f"\0hvd-elastic/{name}"


def is_ours(connection: socket.socket) -> bool:
    """Whether the other side is a process of this user, or of root."""
    facts = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(facts)
    return user in (os.geteuid(), 0)


def hand_over(connection: socket.socket, handed: Handed) -> None:
    """Give everything away. Raises ``OSError`` if nobody takes it."""
    names = list(handed.descriptors)
    text = json.dumps(
        {"argv": list(handed.argv), "env": dict(handed.env), "directory": handed.directory, "names": names}
    ).encode("ascii")
    socket.send_fds(connection, [_LENGTH.pack(len(text))], list(handed.descriptors.values()))
    connection.sendall(text)


def take_over(connection: socket.socket) -> Handed:
    """Get everything. Raises ``OSError`` if the other side has gone."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_DESCRIPTORS)
    head += _read(connection, _LENGTH.size - len(head))
    facts: dict[str, Any] = json.loads(_read(connection, _LENGTH.unpack(head)[0]))
    named = dict(zip(facts["names"], descriptors, strict=True))
    return Handed(facts["argv"], facts["env"], facts["directory"], named)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the other side has gone")
        data += piece
    return bytes(data)
