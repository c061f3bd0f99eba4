"""A slot's program of the engine ``mpirun``: it hands the slot's resources to the rank, and ends with it.

The agent treats it as the training process: it returns the rank's exit code and forwards signals.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages import slot_protocol as names
from hvd_elastic_ext.worker.engines.mpirun_handover import Handover, address, is_ours, send_handover
from hvd_elastic_ext.worker.engines.slot_link import LauncherLink
from hvd_elastic_ext.worker.engines.slot_standby import Membership, NotNeeded, WaitingSlot

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
