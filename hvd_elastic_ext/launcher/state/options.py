"""The options of a job that decisions read. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.rules.membership.next_world import WorldLimits


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """``policy``: as in ``--autoscale``. ``most_hosts``: the limit if ``--max-np`` sets none.

    ``acts``: something adds and removes hosts; else sizes are only recommended. ``ordered``: hosts with the highest
    numbers go first, whichever are named.
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
    """One in this many calls of ``commit()`` commits; None: all of them."""
    sleep_after_s: float | None = None
    """How long there are too few hosts before the job goes to sleep; None if it never does."""
    woken: bool = False
    """The job has slept, or failed, after its start: it continues, and does not start."""
    restart_from_scratch: bool = False
    """A job whose training is lost completely starts again from the beginning."""
    fixed_hosts: bool = False
    """The hosts are those of ``-H`` or ``--hostfile``: no other one ever comes."""
    scaling: ScaleOptions | None = None
    """``--autoscale`` and ``--scale-with``; None: the job requests no hosts."""
    send_code: bool = False
    all_slots_of: str | None = None
    """The source of hosts whose slots at the start decide how many processes the start needs; None if ``-np`` is
    given.
    """
    output: str | None = None
    """The folder of the processes' output; None: it is only on the terminal."""
    misplaced: str | None = None
    """The message if the script refuses its options: which of them are options of ``run``. None if none is."""


def to_json(options: JobOptions) -> dict[str, Any]:
    """The options of a job as JSON, for a recording of its events."""
    plain = {field.name: getattr(options, field.name) for field in fields(JobOptions)}
    nested = {name: plain[name] for name in ("limits", "durability", "commit_every", "scaling")}
    return {**plain, **{name: None if value is None else asdict(value) for name, value in nested.items()}}


def from_json(data: Mapping[str, Any]) -> JobOptions:
    """The options that :func:`to_json` wrote. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for others."""
    limits = WorldLimits(**{**data["limits"], "allowed": tuple(data["limits"]["allowed"])})
    how, cadence, scaling = data["durability"], data["commit_every"], data.get("scaling")
    return JobOptions(
        **{
            **data,
            "limits": limits,
            "cooldown_s": tuple(data["cooldown_s"]),
            "durability": None if how is None else Durability(**{**how, "every": Cadence(**how["every"])}),
            "commit_every": None if cadence is None else Cadence(**cadence),
            "scaling": None if scaling is None else ScaleOptions(**scaling),
        }
    )
