"""Hands a slot's command, environment, directory and descriptors to the rank that ``mpirun`` starts.

Both run as one user on one host, and meet at an abstract socket, which leaves no file. Each gets the user of the other
from the kernel: it sends nothing to other users, and runs nothing from them.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.peers import is_trusted, user_of

_LENGTH: Final = struct.Struct("!I")
_MOST_DESCRIPTORS: Final = 64


class Handover(NamedTuple):
    """``descriptors``: their numbers in this process by name."""

    argv: Sequence[str]
    env: Mapping[str, str]
    directory: str
    descriptors: Mapping[str, int]


def address(mark: str, generation: int, rank: int) -> str:
    """Return the address at which the slot of ``rank`` listens in a world.

    Every user can list and use abstract names. So this name cannot be computed without the mark.
    """
    name = hmac.new(mark.encode(), f"{os.geteuid()}/{generation}/{rank}".encode(), "sha256").hexdigest()
    return f"\0hvd-elastic/{name}"


def is_ours(connection: socket.socket) -> bool:
    """Whether the other side is a process of this user or of root. Asks the kernel."""
    return is_trusted(user_of(connection))


def send_handover(connection: socket.socket, handover: Handover) -> None:
    """Send everything. Raises ``OSError`` if the other side is gone."""
    names = list(handover.descriptors)
    text = to_text(
        {"argv": list(handover.argv), "env": dict(handover.env), "directory": handover.directory, "names": names}
    ).encode("ascii")
    socket.send_fds(connection, [_LENGTH.pack(len(text))], list(handover.descriptors.values()))
    connection.sendall(text)


def receive_handover(connection: socket.socket) -> Handover:
    """Receive everything. Raises ``OSError`` if the other side is gone."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_DESCRIPTORS)
    head += _read(connection, _LENGTH.size - len(head))
    facts: dict[str, Any] = json.loads(_read(connection, _LENGTH.unpack(head)[0]))
    named = dict(zip(facts["names"], descriptors, strict=True))
    return Handover(facts["argv"], facts["env"], facts["directory"], named)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the other side is gone")
        data += piece
    return bytes(data)
