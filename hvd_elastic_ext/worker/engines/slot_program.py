"""``python -m hvd_elastic_ext.worker.engines.slot_program COMMAND…``: an agent starts it in a slot of a restarted job.

It parks. When its world is called, it becomes COMMAND, or lets ``mpirun`` run COMMAND. If it is not needed, it exits
with 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from hvd_elastic_ext.core.messages import slot_protocol as names
from hvd_elastic_ext.worker.engines import torchrun_env
from hvd_elastic_ext.worker.engines.launcher_link import LauncherLink, LinkClosed
from hvd_elastic_ext.worker.engines.mpirun_slot import serve
from hvd_elastic_ext.worker.engines.standby import Membership, NotNeeded, SlotStandby, WorldAbandoned

KNOWN = ("mpirun", "torchrun")
"""The engines whose worlds :func:`main` can enter."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return an exit code, unless this process becomes COMMAND."""
    try:
        link, engine = LauncherLink.of(environ), environ.get(names.ENGINE, "")
        if engine not in KNOWN:
            _complain(f"--engine {engine}: its worlds cannot be entered; known are {', '.join(KNOWN)}")
            return names.NOT_STARTED
        standby = SlotStandby(link, environ)
        membership = standby.join()
        place = membership.place
        env = _environment(environ, membership)
        if engine == "mpirun":
            return serve(link, argv, env, mark=environ.get(names.MARK, ""), membership=membership)
        env = torchrun_env.torchrun_env(env, place, _meet(standby, membership), job=environ.get(names.JOB, "job"))
        link.send("entered", generation=membership.generation, rank=place.rank, size=place.size)
    except NotNeeded:
        return 0
    except WorldAbandoned:
        return names.START_AGAIN
    except LinkClosed as error:
        _complain(str(error))
        return names.NOT_STARTED
    try:
        os.execvpe(argv[0], list(argv), env)  # noqa: S606 (it is the very command of the job)
    except OSError as error:
        _complain(f"{argv[0]} cannot be started: {error.strerror}")
        return names.NOT_STARTED


def _environment(environ: Mapping[str, str], membership: Membership) -> dict[str, str]:
    """Return the variables that each process of the world needs with any engine."""
    place = membership.place
    interface = membership.env.get("HOROVOD_GLOO_IFACE")
    interfaces = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    own = {names.PLAN: place.text(), names.GENERATION: str(membership.generation)}
    return {**interfaces, **torchrun_env.without_horovod(environ), **own}


def _meet(standby: SlotStandby, membership: Membership) -> torchrun_env.Rendezvous:
    """Agree on rank 0's address and this host's number: the first rank of the world, or host, publishes it."""
    place = membership.place
    first = place.rank - place.local_rank
    if place.local_rank == 0:
        standby.publish(f"node.{first}", f"{place.cross_rank},{place.cross_size}")
    if place.rank == 0:
        address = torchrun_env.address_of(membership.env.get("HOROVOD_GLOO_IFACE"))
        standby.publish("master", f"{address}:{torchrun_env.free_port(address)}")
    node, nodes = map(int, standby.learn(f"node.{first}").split(","))
    address, _, port = standby.learn("master").rpartition(":")
    return torchrun_env.Rendezvous(node, nodes, address, int(port), restarts=max(0, membership.generation - 1))


def _complain(problem: str) -> None:
    sys.stderr.write(f"hvd-elastic: {problem}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
