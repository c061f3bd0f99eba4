"""A slot's program of the engine ``torchrun``: it becomes the training process, in the environment of a worker of
torchrun.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.core.messages.slot_protocol import JOB
from hvd_elastic_ext.worker.engines.slot_standby import CannotStart, Membership, SlotStandby, WaitingSlot

MAX_RESTARTS: Final = 1_000_000
"""The --max-restarts that workers see. It is never reached, because the launcher's own budget ends a job."""
PORTS: Final = range(20_000, 32_768)
"""Ports below those that kernels assign, so that no other program gets one between its choice and its use."""

_SIOCGIFADDR: Final = 0x8915


class Rendezvous(NamedTuple):
    """Where the members of a world meet."""

    node: int
    """This host's number among ``nodes``."""
    nodes: int
    address: str
    """Where rank 0 listens, at ``port``."""
    port: int
    restarts: int
    """The number of earlier worlds of the job."""


def run(slot: WaitingSlot, membership: Membership, env: Mapping[str, str]) -> int:
    """Become the job's command. Returns never; raises as ``SlotStandby`` does, and :class:`CannotStart`."""
    place, command = membership.place, list(slot.command)
    env = torchrun_env(env, place, _meet(slot.standby, membership), job=slot.environ.get(JOB, "job"))
    slot.link.send("entered", generation=membership.generation, rank=place.rank, size=place.size)
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 (it is the very command of the job)
    except OSError as error:
        raise CannotStart(f"{command[0]} cannot be started: {error.strerror}") from error


def _meet(standby: SlotStandby, membership: Membership) -> Rendezvous:
    """Agree on rank 0's address and this host's number: the first rank of the world, or host, publishes it."""
    place = membership.place
    first = place.rank - place.local_rank
    if place.local_rank == 0:
        standby.publish(f"node.{first}", f"{place.cross_rank},{place.cross_size}")
    if place.rank == 0:
        address = address_of(membership.env.get("HOROVOD_GLOO_IFACE"))
        standby.publish("master", f"{address}:{free_port(address)}")
    node, nodes = map(int, standby.learn(f"node.{first}").split(","))
    address, _, port = standby.learn("master").rpartition(":")
    return Rendezvous(node, nodes, address, int(port), restarts=max(0, membership.generation - 1))


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
