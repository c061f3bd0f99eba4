"""The options of a job that decisions read, with their defaults. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from hvd_elastic_ext.core.engines import DEFAULT, RESTARTING
from hvd_elastic_ext.launcher.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.health.ledger import DEFAULT_COOLDOWN_S
from hvd_elastic_ext.launcher.membership.spares import ON_SURPLUS_HOSTS, SpareLimits
from hvd_elastic_ext.launcher.membership.world_change import LISTED_S, SETTLE_S, WorldLimits


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What ``--autoscale`` and ``--scale-with`` say."""

    policy: str
    """As in ``--autoscale``."""
    acts: bool = False
    """Something adds and removes hosts; else sizes are only recommended."""
    ordered: bool = False
    """Hosts with the highest numbers go first, whichever are named."""
    most_hosts: int = 1000
    """The limit if ``--max-np`` does not set one."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Each field has the value of the ``run`` option of the same name, except where noted. ``None``: never, or no
    limit."""

    limits: WorldLimits
    """``-np``, ``--min-np``, ``--max-np``, ``--allowed-sizes`` and ``--settle``: see :func:`world_limits`."""
    spares: SpareLimits = ON_SURPLUS_HOSTS
    cooldown_s: tuple[float, float] = DEFAULT_COOLDOWN_S
    """Shortest and longest time without a host that failed: ``--blacklist-cooldown-range``."""
    heartbeat_timeout_s: float = 10.0
    standby_timeout_s: float = 600.0
    wait_lines_s: float = 60.0
    orphan_grace_s: float = 60.0
    commit_wait_s: float = 60.0
    """How long to wait for an unreachable holder of the newest commit."""
    elastic_timeout_s: float = 600.0
    """The default is Horovod's."""
    reset_limit: int | None = None
    failure_budget: int = 10
    below_min: str = "wait"
    """``wait``, ``sleep`` or ``fail``."""
    progress_timeout_s: float | None = None
    restart_stalled: bool = False
    drain_stragglers: bool = False
    durability: Durability | None = None
    """How checkpoints are made; None if they are not."""
    engine: str = DEFAULT
    """``horovod``, ``mpirun`` or ``torchrun``."""
    commit_every: Cadence | None = None
    """One in this many calls of ``commit()`` commits; None: all of them."""
    sleep_after_s: float = 30.0
    """How long there are too few hosts before the job goes to sleep, if ``below_min`` is ``sleep``."""
    woken: bool = False
    """The job has slept, or failed, after its start: it continues, and does not start."""
    restart_from_scratch: bool = False
    """A job whose training is lost completely starts again from the beginning."""
    fixed_hosts: bool = False
    """The hosts are those of ``-H`` or ``--hostfile``: no other one ever comes."""
    scaling: ScaleOptions | None = None
    """``--autoscale`` and ``--scale-with``; None: the job requests no hosts."""
    send_code: bool = False
    names_devices: bool = False
    """The environment of processes names devices: each slot has one."""
    all_slots_of: str | None = None
    """The source of hosts whose slots at the start decide how many processes the start needs; None if ``-np`` is
    given.
    """
    output: str | None = None
    """The folder of the processes' output, from the root; None: it is only on the terminal."""
    misplaced: str | None = None
    """The message if the script refuses its options: which of them are options of ``run``. None if none is."""

    def woken_up(self) -> JobOptions:
        """The options of the job after it has slept, or failed: ``--min-np`` processes suffice."""
        counted = None if self.limits.least < self.limits.start else self.all_slots_of
        return replace(self, limits=replace(self.limits, start=self.limits.least), woken=True, all_slots_of=counted)


def world_limits(
    start: int,
    least: int,
    most: int | None = None,
    *,
    allowed: tuple[int, ...] = (),
    settle_s: float | None = None,
    engine: str = DEFAULT,
) -> WorldLimits:
    """The limits of a job's worlds. ``settle_s`` None is 3 s; then newcomers that are all ready join 1 s after their
    start, if ``engine`` restarts no process for that.
    """
    listed_s = LISTED_S if settle_s is None and engine not in RESTARTING else None
    return WorldLimits(start, least, most, allowed, SETTLE_S if settle_s is None else settle_s, listed_s)


def to_json(options: JobOptions) -> dict[str, Any]:
    """The options of a job as JSON, for a recording of its events."""
    plain = {field.name: getattr(options, field.name) for field in fields(JobOptions)}
    nested = {name: plain[name] for name in ("limits", "spares", "durability", "commit_every", "scaling")}
    return {**plain, **{name: None if value is None else asdict(value) for name, value in nested.items()}}


def from_json(data: Mapping[str, Any]) -> JobOptions:
    """The options that :func:`to_json` wrote. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for others."""
    limits = WorldLimits(**{**data["limits"], "allowed": tuple(data["limits"]["allowed"])})
    how, cadence, scaling = data["durability"], data["commit_every"], data.get("scaling")
    return JobOptions(
        **{
            **data,
            "limits": limits,
            "spares": SpareLimits(**data["spares"]) if "spares" in data else ON_SURPLUS_HOSTS,
            "cooldown_s": tuple(data["cooldown_s"]),
            "durability": None if how is None else Durability(**{**how, "every": Cadence(**how["every"])}),
            "commit_every": None if cadence is None else Cadence(**cadence),
            "scaling": None if scaling is None else ScaleOptions(**scaling),
        }
    )
