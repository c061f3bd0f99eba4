"""The engines of ``run --engine``, with the facts that several programs need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class EngineSpec(NamedTuple):
    """One engine. ``in_place``: processes survive changes of their world; else each world has new processes.

    ``needs_horovod``: it needs Horovod on all hosts.
    """

    in_place: bool
    needs_horovod: bool


DEFAULT: Final = "horovod"
ENGINES: Final[Mapping[str, EngineSpec]] = {
    DEFAULT: EngineSpec(in_place=True, needs_horovod=True),
    "torch": EngineSpec(in_place=True, needs_horovod=False),
    "mpirun": EngineSpec(in_place=False, needs_horovod=False),
    "torchrun": EngineSpec(in_place=False, needs_horovod=False),
}
"""The engines, by the value of ``--engine``."""
MPI_INSTALL: Final = "apt-get install openmpi-bin libopenmpi-dev, then pip install mpi4py"
"""How to get what ``mpirun`` needs."""
RESTARTING: Final = tuple(name for name, spec in ENGINES.items() if not spec.in_place)
"""Engines that start new processes for each world."""
