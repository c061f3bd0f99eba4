"""The simulated cluster of ``hvd_elastic_ext/simulate`` with an oracle, and with short times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvd_elastic_ext.core.engines import DEFAULT
from hvd_elastic_ext.core.messages.slot_protocol import DEVICE
from hvd_elastic_ext.launcher.health.strikes import STARTS
from hvd_elastic_ext.launcher.membership.devices import DEVICES
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from hvd_elastic_ext.simulate.cluster import agent, cluster, launcher, training
from hvd_elastic_ext.simulate.cluster.processes import Process, World
from hvd_elastic_ext.simulate.cluster.times import Times
from tests.unit.launcher.model.oracle import Broken, Oracle
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


VICTIM, BAD = training.VICTIM, 43
"""Exit codes of processes that end because of a lost peer, and of those in bad slots."""


class Training(training.Training):
    """``brittle``: processes end if they lose a peer. ``bad``: slots whose processes end as soon as they are in a
    world."""

    brittle = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.bad: set[tuple[str, int]] = set()
        self._in_vain = 0
        """How many processes have failed in bad slots since the last step of any world."""

    def _roll_back(self, processes: Sequence[Process]) -> None:
        if not self.brittle:
            super()._roll_back(processes)
            return
        self._lost = True
        for process in processes:
            self.follow(process)
            process.world = None
            process.agent.report(process, "peer_lost", error="HorovodInternalError")
            process.agent.ended(process, VICTIM)

    def _enter(self, world: World) -> None:
        super()._enter(world)
        for process in [each for each in world.members if (each.agent.host, each.slot) in self.bad]:
            if world.phase == "syncing":
                process.agent.ended(process, BAD)
                self._in_vain += 1
                if self.brittle and self._in_vain > STARTS * len(self.bad):
                    raise Broken("failures that come again end", f"{self._in_vain} starts without a step between")

    def _advance(self, world: World, count: int) -> None:
        self._in_vain = 0
        super()._advance(world, count)


class Launcher(launcher.Launcher):
    @property
    def environment(self) -> Mapping[str, str]:
        return {DEVICES: "g0,g1"} if self._cluster.options.names_devices else {}


class Agent(agent.Agent):
    """``devices``: those of the processes that it has started, by slot and life."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.devices: dict[tuple[int, int], str] = {}

    def _start(self, order: Mapping[str, Any]) -> None:
        if DEVICE in order["env"]:
            self.devices[order["slot"], order["life"]] = order["env"][DEVICE]
        super()._start(order)


class Cluster(cluster.Cluster):
    """A cluster that an oracle observes."""

    training_kind = Training
    training: Training
    agent_kind = Agent
    launcher_kind = Launcher

    def __init__(self, *, launcher_dies: bool = True, engine: str = DEFAULT) -> None:
        self.oracle = Oracle(self)
        super().__init__(ShortOptions(engine=engine), SHORT, self.oracle, launcher_dies=launcher_dies)
