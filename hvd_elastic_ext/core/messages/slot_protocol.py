"""Names shared by an agent and the process in its slot, also for engines whose processes keep their places."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "hvd_elastic_ext.worker.engines.slot_program"
"""The module that an agent starts in a slot, with the job's command as arguments."""
RANK: Final = "hvd_elastic_ext.worker.engines.mpirun_rank"
"""The module that ``mpirun`` starts, with the number of the world as argument, and the job's mark in its
environment."""

ENGINE: Final = "HVD_ELASTIC_STARTED_FOR"
"""Variable: an engine that starts new processes for each world, so that a process keeps its place."""
GENERATION: Final = "HVD_ELASTIC_GENERATION"
"""Variable: number of the world for which the process was started."""
MARK: Final = "HVD_ELASTIC_MARK"
"""Variable: distinguishes jobs on a host. It is secret, because the names of the sockets of ranks and slots are derived
from it."""
JOB: Final = "HVD_ELASTIC_JOB_NAME"
"""The job's name."""
COMMITS: Final = "HVD_ELASTIC_COMMIT_FDS"
"""Descriptors of the slot's commit memory."""
LINK: Final = "HVD_ELASTIC_LINK"
"""Descriptor of the link between process and agent."""
RENDEZVOUS_PORT: Final = "HVD_ELASTIC_RENDEZVOUS_PORT"
"""The port on 127.0.0.1 at which the process asks for its rank."""
PRELOAD: Final = "HVD_ELASTIC_PRELOAD"
"""``auto``: agents keep an interpreter with the script's imports done, and fork it for each new process."""
OBSERVE: Final = "HVD_ELASTIC_OBSERVE"
"""Agents report how busy their hosts are."""
AGENT_METRICS: Final = "HVD_ELASTIC_AGENT_METRICS"
"""HOST:PORT at which agents answer Prometheus."""
AUTO: Final = "auto"
TEMPLATE: Final = "HVD_ELASTIC_TEMPLATE"
"""What the hook of that interpreter is given: its socket to the agent, and what to import."""
PLAN: Final = "HVD_ELASTIC_PLAN"
"""Variable: the place that user code sees before there is a world."""
DEVICE: Final = "HVD_ELASTIC_DEVICE"
"""The device of the slot."""
INCARNATION: Final = "HVD_ELASTIC_INCARNATION"
"""Number of the launcher that ordered the process."""

GENERATION_WAIT_S: Final = 2.0
"""How long a process that has a rank waits for the number of its world: the agent has sent it before the rank."""

START_AGAIN: Final = 75
"""Exit code of a process that has left its world, for another one to take its place in the next (``EX_TEMPFAIL``)."""
TERMINATED: Final = 143
"""That of a SIGTERM: ``mpirun`` sends it to all when one rank has failed."""
