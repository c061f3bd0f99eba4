"""``python -m hvd_elastic_ext.worker.engines.mpirun_rank GENERATION``: ``mpirun`` starts it once for each rank.

It gets the training command and its resources from its slot, adds the variables of ``mpirun``, and waits for the end.
If the slot's program or the training process ends, it ends the other one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages import slot_protocol as names
from hvd_elastic_ext.io import process_tree
from hvd_elastic_ext.worker.engines.mpirun_slot import Handover, address, is_ours, receive_handover

RANK: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
OF_MPI: Final = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_", "OPAL_", "HFI_", "IPATH_")
"""Prefixes of the variables by which a process finds its MPI peers."""
RENDEZVOUS_S: Final = 60.0
"""Seconds to wait for the slot of this rank. The slot exists, unless this is the wrong host."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the rank and return its exit code."""
    mark, generation = environ.get(names.MARK, ""), int(argv[0])
    rank = next((int(environ[name]) for name in RANK if environ.get(name, "").isdigit()), 0)
    connection = _meet(address(mark, generation, rank))
    if connection is None:
        sys.stderr.write(f"hvd-elastic: rank {rank} finds no slot on {socket.gethostname()}\n")
        return names.NOT_STARTED
    process_tree.become_subreaper()
    with connection:
        try:
            child = _start(receive_handover(connection), environ)
        except OSError as error:
            sys.stderr.write(f"hvd-elastic: rank {rank} cannot be started: {error}\n")
            _tell(connection, names.NOT_STARTED)
            return names.NOT_STARTED
        signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
        threading.Thread(target=_listen, args=(connection, child), daemon=True).start()
        status = child.wait()
        for pid in process_tree.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = status if status >= 0 else 128 - status
        _tell(connection, code)
    return code


def _meet(where: str) -> socket.socket | None:
    """Connect to the slot's program, which may start a moment later."""
    deadline = time.monotonic() + RENDEZVOUS_S
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(where)
            if is_ours(connection):
                return connection
        except ConnectionRefusedError:
            time.sleep(0.05)
        connection.close()
    return None


def _start(handover: Handover, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    descriptors = dict(handover.descriptors)
    streams = [descriptors.pop(name) for name in ("stdout", "stderr")]
    commits = [descriptors[name] for name in sorted(descriptors, key=_order) if name.startswith(names.COMMITS)]
    past = [descriptors[RESULTS]] if RESULTS in descriptors else []
    numbers = {names.LINK: str(descriptors[names.LINK]), names.COMMITS: ",".join(map(str, commits))}
    if past:
        numbers[RESULTS] = str(past[0])
    env = {**handover.env, **{name: value for name, value in environ.items() if name.startswith(OF_MPI)}, **numbers}
    try:
        return subprocess.Popen(
            handover.argv,
            env=env,
            cwd=handover.directory,
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            pass_fds=[descriptors[names.LINK], *commits, *past],
            preexec_fn=process_tree.die_with_parent,
        )
    finally:
        for descriptor in (*streams, *descriptors.values()):
            os.close(descriptor)


def _order(name: str) -> int:
    number = name.rpartition(".")[2]
    return int(number) if number.isdigit() else -1


def _listen(connection: socket.socket, child: subprocess.Popen[bytes]) -> None:
    """Forward the slot's signals. When the slot is gone, kill the rank."""
    with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
        for text in lines:
            child.send_signal(int(json.loads(text)["signal"]))
    child.kill()


def _tell(connection: socket.socket, code: int) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(to_text({"code": code}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
