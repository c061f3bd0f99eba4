"""A slot's program under ``mpirun``: it lets the rank have what is the slot's, and ends as that does.

To the agent it is the training process: its exit code is the rank's, its end is the rank's, and what it is told by
signals it passes on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core import slot_protocol as names
from hvd_elastic_ext.worker.engines.descriptor_passing import Handed, address, hand_over, is_ours
from hvd_elastic_ext.worker.engines.launcher_link import Line
from hvd_elastic_ext.worker.engines.standby import Membership, SentAway
from hvd_elastic_ext.worker.process.link import VARIABLE as LINK

_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def serve(line: Line, argv: Sequence[str], env: Mapping[str, str], *, mark: str, membership: Membership) -> int:
    """Wait for the rank, let it have everything, and return its exit code. Raises as ``StandingBy`` does."""
    place, generation = membership.place, membership.generation
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address(mark, generation, place.rank))
        listener.listen(4)
        connection = _rank(line, listener)
    with connection:
        for number in _PASSED_ON:
            signal.signal(number, lambda number, _: _pass_on(connection, number))
        commits = [int(number) for number in env.get(names.COMMITS, "").split(",") if number.isdigit()]
        descriptors = {"stdout": 1, "stderr": 2, LINK: line.descriptor}
        descriptors.update({f"{names.COMMITS}.{index}": number for index, number in enumerate(commits)})
        line.say("entered", generation=generation, rank=place.rank, size=place.size)
        try:
            hand_over(connection, Handed(argv, env, os.fspath(Path.cwd()), descriptors))
        except OSError:
            return names.TERMINATED
        line.close()
        return _end_of(connection)


def _rank(line: Line, listener: socket.socket) -> socket.socket:
    """The connection of the rank that was started for this slot."""
    while True:
        message = line.hear(beside=listener)
        if message is None:
            connection, _ = listener.accept()
            if is_ours(connection):
                return connection
            connection.close()
        elif message["tell"] == "update" and message.get("leave"):
            raise SentAway(str(message.get("reason") or "it is not needed"))


def _pass_on(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(json.dumps({"signal": number}).encode() + b"\n")
    except OSError:
        return  # it has ended, and that is about to be known


def _end_of(connection: socket.socket) -> int:
    """The rank's exit code. One that ``mpirun`` kills, as it does when another has failed, cannot tell its own."""
    code = names.TERMINATED
    try:
        with connection.makefile("rb") as lines:
            for text in lines:
                said: dict[str, Any] = json.loads(text)
                code = int(said["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return code
    return code
