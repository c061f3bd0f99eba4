"""The options of a job that decisions read. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.rules.membership.next_world import WorldLimits


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """``policy``: as ``--autoscale`` has it. ``most_hosts``: where ``--max-np`` sets no limit.

    ``acts``: somebody makes hosts come and go; else sizes are only recommended. ``ordered``: hosts with the highest
    numbers go first, whatever is asked for.
    """

    policy: str
    acts: bool = False
    ordered: bool = False
    most_hosts: int = 1000


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Each field has the value of the ``run`` option of the same name, except where noted. ``None``: never, or no
    limit."""

    limits: WorldLimits
    cooldown_s: tuple[float, float]
    heartbeat_timeout_s: float
    standby_timeout_s: float
    wait_lines_s: float
    orphan_grace_s: float
    commit_wait_s: float
    """How long to wait for an unreachable holder of the newest commit."""
    elastic_timeout_s: float
    reset_limit: int | None
    failure_budget: int
    below_min: str
    """``wait``, ``sleep`` or ``fail``."""
    progress_timeout_s: float | None
    restart_stalled: bool
    drain_stragglers: bool
    durability: Durability | None = None
    """How checkpoints are made; None if they are not."""
    engine: str = "horovod"
    """``horovod``, ``mpirun`` or ``torchrun``."""
    commit_every: Cadence | None = None
    """Every how many calls of ``commit()`` one commits; None is all of them."""
    sleep_after_s: float | None = None
    """How long there are too few hosts before the job goes to sleep; None if it never does."""
    woken: bool = False
    """The job has slept, or failed, after its start: it continues, and does not start."""
    restart_from_scratch: bool = False
    """A job of which nothing is left starts its training from the beginning."""
    fixed_hosts: bool = False
    """The hosts are those of ``-H`` or ``--hostfile``: no other one ever comes."""
    scaling: ScaleOptions | None = None
    """``--autoscale`` and ``--scale-with``; None: nobody asks for hosts."""
    send_code: bool = False
    all_slots_of: str | None = None
    """The source of hosts whose slots at the start are the processes needed to start; None if ``-np`` is given."""
    misplaced: str | None = None
    """What to say if the script refuses its options: which of them are options of ``run``. None if none is."""
