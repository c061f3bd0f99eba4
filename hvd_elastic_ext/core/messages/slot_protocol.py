"""Names shared by an agent and the process in its slot, also for engines whose processes keep their places."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "hvd_elastic_ext.worker.engines.slot_program"
"""The module that an agent starts in a slot, with the job's command as arguments."""
RANK: Final = "hvd_elastic_ext.worker.engines.mpirun_rank"
"""The module that ``mpirun`` starts, with the number of the world as argument, and the job's mark in its
environment."""

ENGINE: Final = "HVD_ELASTIC_STARTED_FOR"
"""Variable: the engine, if it starts new processes for each world, so that a process keeps its place."""
COLLECTIVES: Final = "HVD_ELASTIC_COLLECTIVES"
"""Variable: the library whose worlds the process enters one after another, if that is not Horovod."""
GENERATION: Final = "HVD_ELASTIC_GENERATION"
"""Variable: number of the world for which the process was started."""
MARK: Final = "HVD_ELASTIC_MARK"
"""Variable: distinguishes jobs on a host. It is secret, because the names of the sockets of ranks and slots are derived
from it."""
JOB: Final = "HVD_ELASTIC_JOB_NAME"
"""Variable: the job's name."""
STDIN: Final = "HVD_ELASTIC_STDIN"
"""Variable of an agent: the descriptor of the launcher's standard input. No process sees it."""
COMMITS: Final = "HVD_ELASTIC_COMMIT_FDS"
"""Variable: descriptors of the slot's commit memory."""
LINK: Final = "HVD_ELASTIC_LINK"
"""Variable: descriptor of the link between process and agent."""
RENDEZVOUS_PORT: Final = "HVD_ELASTIC_RENDEZVOUS_PORT"
"""Variable: the port on 127.0.0.1 at which the process asks for its rank."""
NOTICE_FILE: Final = "HVD_ELASTIC_NOTICE_FILE"
"""Variable of a launcher or an agent: a file of each host with notices for it."""
PLAN: Final = "HVD_ELASTIC_PLAN"
"""Variable: the place that user code sees before there is a world."""
DEVICE: Final = "HVD_ELASTIC_DEVICE"
"""Variable: the device of the slot. The process keeps a local rank that selects it."""
INCARNATION: Final = "HVD_ELASTIC_INCARNATION"
"""Variable: number of the launcher that ordered the process."""

GENERATION_WAIT_S: Final = 2.0
"""Seconds that a process with a rank waits for the number of its world, which the agent has sent before the rank."""

NOT_STARTED: Final = 125
"""Exit code of a process that could not be started."""
START_AGAIN: Final = 75
"""Exit code of a process that has left its world; another one replaces it in the next world (``EX_TEMPFAIL``)."""
TERMINATED: Final = 143
"""Exit code after SIGTERM, which ``mpirun`` sends to all ranks when one has failed."""
