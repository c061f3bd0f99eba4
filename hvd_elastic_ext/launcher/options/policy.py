"""What of a job's options the driver goes by."""

from __future__ import annotations

from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from hvd_elastic_ext.launcher.state.rules import Rules


def rules_of(settings: RunSettings, *, woken: bool = False) -> Rules:
    """``woken``: the job has slept, or failed, so as many processes as it needs to go on suffice."""
    s = settings
    return Rules(
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
