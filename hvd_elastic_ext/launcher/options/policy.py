"""What the driver reads of a job's settings."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.rules.membership.membership import Limits


@dataclass(frozen=True, slots=True)
class JobRules:
    """See :class:`hvd_elastic_ext.launcher.state.context.Rules`."""

    limits: Limits
    cooldown_s: tuple[float, float]
    heartbeat_timeout_s: float
    standby_timeout_s: float
    orphan_grace_s: float
    commit_wait_s: float
    elastic_timeout_s: float
    reset_limit: int | None
    failure_budget: int
    below_min: str
    progress_timeout_s: float | None
    restart_stalled: bool
    drain_stragglers: bool
    durability: Durability | None = None
    engine: str = "horovod"
    commit_every: Cadence | None = None
    sleep_after_s: float | None = None
    woken: bool = False
    restart_from_scratch: bool = False

    @classmethod
    def of(cls, settings: RunSettings, *, woken: bool = False) -> JobRules:
        """``woken``: the job has slept, or failed, so as many processes as it needs to go on suffice."""
        s = settings
        return cls(
            limits=Limits(
                s.min_num_proc if woken else s.num_proc, s.min_num_proc, s.max_num_proc, s.allowed_sizes, s.settle_s
            ),
            cooldown_s=s.cooldown_s,
            heartbeat_timeout_s=s.heartbeat_timeout_s,
            standby_timeout_s=s.standby_timeout_s,
            orphan_grace_s=s.orphan_grace_s,
            commit_wait_s=s.commit_wait_s,
            elastic_timeout_s=s.elastic_timeout_s,
            reset_limit=s.reset_limit,
            failure_budget=s.failure_budget,
            below_min=s.below_min,
            progress_timeout_s=s.progress_timeout_s,
            restart_stalled=s.restart_stalled,
            drain_stragglers=s.drain_stragglers,
            durability=s.durability,
            engine=s.engine,
            commit_every=s.commit_every,
            sleep_after_s=s.sleep_after_s if s.below_min == "sleep" else None,
            woken=woken,
            restart_from_scratch=s.restart_from_scratch,
        )
