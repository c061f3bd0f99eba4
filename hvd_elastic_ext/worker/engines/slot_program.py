"""``python -m hvd_elastic_ext.worker.engines.slot_program COMMAND…``: an agent starts it in a slot of a restarted job.

It parks. When its world is called, it becomes COMMAND, or lets ``mpirun`` run COMMAND. If it is not needed, it exits
with 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hvd_elastic_ext.core.messages import slot_protocol as names
from hvd_elastic_ext.core.messages.rank_info import VARIABLES
from hvd_elastic_ext.worker.engines import mpirun_slot, torchrun_slot
from hvd_elastic_ext.worker.engines.slot_standby import (
    CannotStart,
    LauncherLink,
    LinkClosed,
    Membership,
    NotNeeded,
    SlotStandby,
    WaitingSlot,
    WorldAbandoned,
)

RUN: Final[Mapping[str, Callable[[WaitingSlot, Membership, Mapping[str, str]], int]]] = {
    "mpirun": mpirun_slot.run,
    "torchrun": torchrun_slot.run,
}
"""What each engine does in a slot whose rank is known. The last argument is the environment for its process."""

_HOROVODS: Final = ("ELASTIC", "CONTROLLER", "CPU_OPERATIONS", "AUTOTUNE", "DYNAMIC_PROCESS_SETS", "GLOO_IFACE")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return an exit code, unless this process becomes COMMAND."""
    try:
        link, engine = LauncherLink.of(environ), environ.get(names.ENGINE, "")
        if engine not in RUN:
            _complain(f"--engine {engine} is not known here; known are {', '.join(RUN)}")
            return names.NOT_STARTED
        standby = SlotStandby(link, environ)
        membership = standby.join()
        slot = WaitingSlot(link, standby, argv, environ)
        return RUN[engine](slot, membership, _environment(environ, membership))
    except NotNeeded:
        return 0
    except WorldAbandoned:
        return names.START_AGAIN
    except (LinkClosed, CannotStart) as error:
        _complain(str(error))
        return names.NOT_STARTED


def _environment(environ: Mapping[str, str], membership: Membership) -> dict[str, str]:
    """Return the variables that each process of the world needs with any engine."""
    place = membership.place
    interface = membership.env.get("HOROVOD_GLOO_IFACE")
    interfaces = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    own = {names.PLAN: place.text(), names.GENERATION: str(membership.generation)}
    return {**interfaces, **_without_horovod(environ), **own}


def _without_horovod(environ: Mapping[str, str]) -> dict[str, str]:
    """Remove Horovod's variables: with them scripts would wait for a Horovod world."""
    gone = {*VARIABLES, *(f"HOROVOD_{name}" for name in _HOROVODS)}
    return {name: value for name, value in environ.items() if name not in gone}


def _complain(problem: str) -> None:
    sys.stderr.write(f"hvd-elastic: {problem}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
