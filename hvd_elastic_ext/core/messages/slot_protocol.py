"""What an agent and the process in a slot know of each other, also where processes keep their places."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "hvd_elastic_ext.worker.engines.slot_program"
"""What an agent starts in a slot, with the job's command behind it."""
RANK: Final = "hvd_elastic_ext.worker.engines.mpirun_rank"
"""What ``mpirun`` starts, with the number of the world behind it, and the job's mark in its environment."""

ENGINE: Final = "HVD_ELASTIC_STARTED_FOR"
"""An engine that starts other processes for each world: a process keeps its place as long as it lives."""
GENERATION: Final = "HVD_ELASTIC_GENERATION"
"""Number of the world that the process was started for."""
MARK: Final = "HVD_ELASTIC_MARK"
"""Tells jobs apart on a host. Other users of that are not to know it: what ranks and slots meet at is made of it."""
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
"""The place that user code sees before there is a world."""
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
