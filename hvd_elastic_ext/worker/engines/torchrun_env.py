"""The environment that torchrun gives its workers. Pure, except for finding a port and an address."""

from __future__ import annotations

import fcntl
import random
import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from hvd_elastic_ext.core.messages.rank_info import VARIABLES, Place

MAX_RESTARTS: Final = 1_000_000
"""The --max-restarts that workers see. It is never reached, because the launcher's own budget ends a job."""
PORTS: Final = range(20_000, 32_768)
"""Ports below those that kernels assign, so that no other program gets one between its choice and its use."""

_HOROVODS: Final = ("ELASTIC", "CONTROLLER", "CPU_OPERATIONS", "AUTOTUNE", "DYNAMIC_PROCESS_SETS", "GLOO_IFACE")
_SIOCGIFADDR: Final = 0x8915


def without_horovod(environ: Mapping[str, str]) -> dict[str, str]:
    """Remove Horovod's variables: with them scripts would wait for a Horovod world."""
    gone = {*VARIABLES, *(f"HOROVOD_{name}" for name in _HOROVODS)}
    return {name: value for name, value in environ.items() if name not in gone}


class Rendezvous(NamedTuple):
    """Where the members of a world meet: rank 0 listens at ``address`` and ``port``.

    ``node`` is this host's number among ``nodes``, ``restarts`` the number of earlier worlds of the job.
    """

    node: int
    nodes: int
    address: str
    port: int
    restarts: int


def _options(place: Place, rendezvous: Rendezvous) -> dict[str, str]:
    """Return options of torchrun as variables, for a PyTorchJob's script that reads them. The rules are the training
    operator's for a job of a fixed size: one world has a fixed size."""
    return {
        "PET_NNODES": str(rendezvous.nodes),
        "PET_NODE_RANK": str(rendezvous.node),
        "PET_NPROC_PER_NODE": str(place.local_size),
        "PET_MASTER_ADDR": rendezvous.address,
        "PET_MASTER_PORT": str(rendezvous.port),
    }


def torchrun_env(environ: Mapping[str, str], place: Place, rendezvous: Rendezvous, *, job: str) -> dict[str, str]:
    """Return a worker's environment: ``environ``, and torchrun's variables."""
    threads = {"OMP_NUM_THREADS": "1"} if place.local_size > 1 else {}
    numbers = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "GROUP_RANK": rendezvous.node,
        "GROUP_WORLD_SIZE": rendezvous.nodes,
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.size,
        "MASTER_PORT": rendezvous.port,
        "TORCHELASTIC_RESTART_COUNT": rendezvous.restarts,
        "TORCHELASTIC_MAX_RESTARTS": MAX_RESTARTS,
    }
    words = {
        "MASTER_ADDR": rendezvous.address,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    options = _options(place, rendezvous)
    return {**threads, **environ, **options, **words, **{name: str(number) for name, number in numbers.items()}}


def address_of(interface: str | None) -> str:
    """Return this host's address on ``interface``; without an interface, the address of its name, else loopback."""
    try:
        if interface is not None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                packed = struct.pack("256s", interface.encode()[:15])
                return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, packed)[20:24])
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def free_port(address: str) -> int:
    """Return a free port of this host. Raises ``OSError`` if none is found."""
    for port in random.sample(PORTS, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port was found on {address}")
