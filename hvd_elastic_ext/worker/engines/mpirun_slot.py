"""A slot's program of the engine ``mpirun``: it hands the slot's resources to the rank that ``mpirun`` starts, and ends
with it.

Slot and rank run as one user on one host, and meet at an abstract socket, which leaves no file. Each gets the user of
the other from the kernel: it sends nothing to other users, and runs nothing from them. The agent treats the slot's
program as the training process: it returns the rank's exit code and forwards signals.
"""

from __future__ import annotations

import hmac
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages import slot_protocol as names
from hvd_elastic_ext.io.peers import is_trusted, user_of
from hvd_elastic_ext.worker.engines.slot_standby import LauncherLink, Membership, NotNeeded, WaitingSlot

# --- the hand-over


_LENGTH: Final = struct.Struct("!I")
_MOST_DESCRIPTORS: Final = 64


class Handover(NamedTuple):
    """What a rank gets from its slot."""

    argv: Sequence[str]
    env: Mapping[str, str]
    directory: str
    descriptors: Mapping[str, int]
    """Their numbers in this process, by name."""


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


# --- the slot's side


_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def run(slot: WaitingSlot, membership: Membership, env: Mapping[str, str]) -> int:
    """Wait for the rank, hand everything over, and return its exit code. Raises as ``SlotStandby`` does."""
    link, mark = slot.link, slot.environ.get(names.MARK, "")
    place, generation = membership.place, membership.generation
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address(mark, generation, place.rank))
        listener.listen(4)
        connection = _rank(link, listener)
    with connection:
        for number in _PASSED_ON:
            signal.signal(number, lambda number, _: _pass_on(connection, number))
        commits = [int(number) for number in env.get(names.COMMITS, "").split(",") if number.isdigit()]
        descriptors = {"stdout": 1, "stderr": 2, names.LINK: link.descriptor}
        if (past := env.get(RESULTS, "")).isdigit():
            descriptors[RESULTS] = int(past)
        descriptors.update({f"{names.COMMITS}.{index}": number for index, number in enumerate(commits)})
        link.send("entered", generation=generation, rank=place.rank, size=place.size)
        try:
            send_handover(connection, Handover(slot.command, env, os.fspath(Path.cwd()), descriptors))
        except OSError:
            return names.TERMINATED
        link.close()
        return _end_of(connection)


def _rank(link: LauncherLink, listener: socket.socket) -> socket.socket:
    """Return the connection of the rank that belongs to this slot."""
    while True:
        message = link.receive(beside=listener)
        if message is None:
            connection, _ = listener.accept()
            if is_ours(connection):
                return connection
            connection.close()
        elif message["tell"] == "update" and message.get("leave"):
            raise NotNeeded(str(message.get("reason") or "it is not needed"))


def _pass_on(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(to_text({"signal": number}).encode() + b"\n")
    except OSError:
        return  # the other end has ended; the exit code follows


def _end_of(connection: socket.socket) -> int:
    """Return the rank's exit code. If ``mpirun`` kills the rank, for example after another one has failed, it reports
    none."""
    code = names.TERMINATED
    try:
        with connection.makefile("rb") as lines:
            for text in lines:
                status: dict[str, Any] = json.loads(text)
                code = int(status["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return code
    return code
