"""The end of a job with a world of new processes: the training of the world before is saved from memory."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.driver.events import End, Expected
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId
from hvd_elastic_ext.simulate.cluster.processes import Commit
from tests.unit.launcher.scenarios import Scenario, play
from tests.unit.launcher.simulated_cluster import Cluster, storing
from tests.unit.launcher.simulated_processes import LINEAGE, Process, Training


class Importing(Training):
    """Processes need ``imports_s`` from their ranks to their loop, ``sync_s`` to agree, and ``first_s`` to a step."""

    imports_s = first_s = 0.0

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.sync_s = 0.0
        self.began: dict[ProcessId, float] = {}

    def enters(self, process: Process) -> None:
        process.agent.report(process, "entered", generation=process.generation)
        if process.agreed:
            self._loop(process)
        else:
            self.later(self.imports_s, lambda: self._loop(process))

    def _loop(self, process: Process) -> None:
        if process.state == "training":
            process.agent.report(process, "looping")
            self.later(self.sync_s, lambda: self._agree(process))

    def _agree(self, process: Process) -> None:
        if process.state != "training":
            return
        held = [commit for agent in self.cluster.agents.values() for commit in agent.memory.values()]
        process.batch = max([process.batch, *(commit.batch for commit in held)])
        process.agreed = process.generation
        self.began[process.id] = self.clock.mono() + self.first_s
        newest = max((commit.name for commit in held), default=[1, process.generation, process.batch])
        process.agent.report(process, "synced", commit=newest, step=process.batch)

    def commit_of(self, process: Process) -> list[int] | None:
        """None until it has agreed; then the commit that it has loaded, until it has done a step."""
        if not process.agreed:
            return None
        held = process.held
        return held.name if held is not None and not self._has_begun(process) else super().commit_of(process)

    def held_up(self, process: Process) -> bool:
        return not self._has_begun(process) or super().held_up(process)

    def _has_begun(self, process: Process) -> bool:
        at = self.began.get(process.id)
        return at is not None and self.clock.mono() >= at

    def trains(self, process: Process) -> None:
        super().trains(process)
        if self._has_begun(process):
            process.stepped_at = self.clock.mono()

    def commit(self, process: Process) -> None:
        if self._has_begun(process):
            super().commit(process)


class Saved(Scenario):
    """Further steps of scenarios."""

    def slow_(self, part: str, seconds: str) -> None:
        """From now on this part of a process's start takes so many seconds."""
        setattr(self.cluster.training, f"{part}_s", float(seconds))

    def commits_(self) -> None:
        """Check that the last checkpoint has the newest commit, of about four steps or more."""
        [sealed] = self.cluster.events("sealed")
        assert sealed["step"] >= 4, sealed


def told(scenario: str, *, in_place: bool = False) -> Cluster:
    """Play it with an engine that has other processes for each world, or with the same ones."""
    engine = "horovod" if in_place else "torchrun"
    cluster: Cluster = play(scenario, Importing, steps=Saved, every="notice", engine=engine)
    return cluster


MOMENTS = {
    "the processes of the lost world end": "kill b; run 0.001",
    "no process of the next world has begun": "kill b; run 0.2",
    "its processes boot": "boot a 30; kill b; run 8",
    "its processes import": "slow imports 60; kill b; members a; run 8",
    "its processes agree on the state": "slow sync 60; kill b; members a; run 8",
    "the commit is loaded and no step is made": "slow first 60; kill b; members a; run 8",
    "all leave on purpose": "boot c 0.2; hosts a b c; run 2",
    "the processes of a larger world import": "boot c 0.2; slow imports 60; hosts a b c; members a b c; run 8",
}


@pytest.mark.parametrize("signal", ["ctrl-c", "interrupt"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_was_trained_is_saved_at_once_while(moment: str, signal: str) -> None:
    """Defect: five seconds after the new world had its ranks, all training without a checkpoint was lost."""
    told(f"train a b; run 5; {MOMENTS[moment]}; {signal}; over <5; commits")


@pytest.mark.parametrize(
    ("slow", "why"), [("imports", "the world changes"), ("sync", "the world changes"), ("first", "no step is made yet")]
)
def test_the_line_says_why_processes_are_ended(slow: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    told(f"train a b; run 5; slow {slow} 60; kill b; members a; run 8; ctrl-c; over <5")
    assert f"{why}: the processes are ended, and the last commit is saved" in caplog.text


@pytest.mark.parametrize("signal", ["ctrl-c", "interrupt"])
@pytest.mark.parametrize("slow", ["imports", "sync"])
def test_where_processes_live_on_and_one_that_joins_takes_long_the_commit_in_memory_is_saved(
    slow: str, signal: str
) -> None:
    """Defect: the job forgot its last checkpoint if a newcomer took more than a few seconds to agree on the state."""
    told(f"train a; run 5; slow {slow} 60; hosts a b; members a b; run 8; {signal}; over <18; commits", in_place=True)


@pytest.mark.parametrize("engine", ["torchrun", "horovod"])
def test_a_world_that_trains_comes_to_its_next_commit_first(engine: str) -> None:
    cluster = told("train a b; run 5; ctrl-c; over <10; commits", in_place=engine == "horovod")
    assert cluster.training.stays[0] is True


@pytest.mark.parametrize("moment", ["before its hosts are back", "when they are"])
def test_a_launcher_that_is_started_again_while_the_world_imports_saves_what_memory_holds(moment: str) -> None:
    cluster = Cluster(storing("notice", engine="torchrun"), training=Importing)
    commits = [NotedCommit("a", "", (1, 6, 40), 40, 40)]
    cluster.driver.job.roster.commits.expect(commits, now=cluster.clock.mono())
    cluster.hosts(a=1)
    cluster.join_s["a"] = 3.0
    cluster.inherit("a")
    [process] = cluster.agents["a"].processes.values()
    process.agreed = 0
    process.agent.memory[0] = Commit(1, 6, 40, 40, LINEAGE)
    cluster.driver.tell(Expected((Host("a", 1),), cluster.clock.mono() + 60.0))
    cluster.run(1.0 if moment == "before its hosts are back" else 10.0)
    cluster.driver.tell(End(Interrupted(2, "stopped by SIGINT")))
    cluster.until(lambda: cluster.driver.over, within=30.0)
    [sealed] = cluster.events("sealed")
    assert sealed["step"] == 40
