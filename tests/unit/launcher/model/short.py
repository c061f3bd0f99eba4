"""The simulated cluster of ``hvd_elastic_ext/simulate`` with an oracle, and with short times."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvd_elastic_ext.launcher.rules.membership.next_world import WorldLimits
from hvd_elastic_ext.simulate.cluster import cluster
from hvd_elastic_ext.simulate.cluster.times import Times
from tests.unit.launcher.model.oracle import Oracle
from tests.unit.launcher.simulated_cluster import JobOptions

SHORT = Times(
    step_s=0.25,
    every=2,
    agent_s=0.2,
    boot_s=1.0,
    go_s=0.03,
    join_s=0.05,
    sync_s=0.2,
    grace_s=2.0,
    helper_s=0.05,
    transfer_s=0.4,
    write_s=0.0,
    seal_s=0.0,
    load_s=0.4,
    every_step=True,
)


@dataclass
class ShortOptions(JobOptions):
    """The options of a job, with short times."""

    limits: WorldLimits = field(default_factory=lambda: WorldLimits(settle_s=0.3, settle_cap_s=2.0))
    cooldown_s: tuple[float, float] = (2.0, 8.0)
    heartbeat_timeout_s: float = 3.0
    standby_timeout_s: float = 15.0
    wait_lines_s: float = 60.0
    orphan_grace_s: float = 8.0
    elastic_timeout_s: float = 120.0
    commit_wait_s: float = 6.0
    failure_budget: int = 1000


class Cluster(cluster.Cluster):
    """A cluster that an oracle observes."""

    def __init__(self, *, launcher_dies: bool = True) -> None:
        self.oracle = Oracle(self)
        super().__init__(ShortOptions(), SHORT, self.oracle, launcher_dies=launcher_dies)
