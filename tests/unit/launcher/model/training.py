"""Processes that train, in truth: they meet in worlds, agree on the newest commit, step together, and lose each other.

Ranks of one world are in lockstep. Whoever is stopped, or has no network, holds up all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.unit.launcher.model.commits import Candidate, Commit, elect
from tests.unit.launcher.model.virtual_time import Sim

if TYPE_CHECKING:
    from tests.unit.launcher.model.agent import Agent
    from tests.unit.launcher.model.oracle import Oracle

STEP_S: Final = 0.25
EVERY: Final = 2
"""Batches from one commit to the next."""
JOIN_S: Final = 0.05
"""From the moment that all have their ranks until they are connected."""
NOTICE_S: Final = 0.01
"""How soon a lost peer is noticed."""
GLOO_S: Final = 30.0
"""How long Gloo waits for a peer that does not come, or of which nothing comes, until the world is lost."""
WITHIN: Final = ("joining", "syncing", "training")
"""States of processes that are in a world, or about to be."""


@dataclass(eq=False, slots=True)
class Process:
    """``state``: booting, parked, asking (for a rank), joining, syncing, training, or gone.

    ``entered``: the newest generation of the State that it was part of, which is not the launcher's number of a world.
    ``told_world``: the launcher's. ``sample``: what it last beat, (batch, commit); ``commit``: the one it may tell of.
    """

    agent: Agent
    slot: int
    life: int
    incarnation: int
    state: str = "booting"
    generation: int = 0
    agreed: int = 0
    told_world: int = 0
    asked: int | None = None
    rank: int = -1
    world: World | None = None
    batch: int = 0
    entered: int | None = None
    commit: Commit | None = None
    sample: tuple[int, Commit | None] = (0, None)
    sampled_at: float = 0.0
    stopped: bool = False
    wanted: list[int] | None = None
    """The commit that it is to keep for a checkpoint."""
    stay: bool = False
    """It is to go no further than that commit; ``stays``: it has come there."""
    stays: bool = False
    leave: bool = False
    done: bool = False
    stepped_at: float | None = None

    @property
    def name(self) -> str:
        return f"{self.agent.host}[{self.slot}]"

    @property
    def held(self) -> Commit | None:
        """What its slot's memory holds."""
        return self.agent.memory.get(self.slot)


@dataclass(eq=False, slots=True)
class World:
    """``key``: incarnation of the launcher that formed it, and its generation."""

    key: tuple[int, int]
    size: int
    members: list[Process] = field(default_factory=list)
    phase: str = "joining"
    interrupted: bool = False
    fresh: bool = True
    elected: tuple[int, int] = (0, 0)
    """Incarnation and generation of its commits."""
    stepped_at: float = -1.0
    stalled_at: float | None = None


class Training:
    """All worlds. ``cut``: hosts without a network; ``sync_s``: how long the ranks take to agree."""

    def __init__(self, sim: Sim, oracle: Oracle, cut: set[str]) -> None:
        self.worlds: list[World] = []
        self.sync_s = 0.2
        self.finishing = False
        """Training is done at the next commit."""
        self._sim, self._oracle, self._cut = sim, oracle, cut
        self._lineages = itertools.count(1)

    def stalled(self, world: World) -> bool:
        """Whether some rank holds up the others."""
        hosts = {process.agent.host for process in world.members}
        alone = len(hosts) == 1
        return any(process.stopped or process.stays for process in world.members) or (
            not alone and not hosts.isdisjoint(self._cut)
        )

    def _held_up(self, world: World, act: Callable[[World], None]) -> bool:
        """Whether a world is stalled: then ``act`` is tried again, until Gloo has had enough."""
        if not self.stalled(world):
            world.stalled_at = None
            return False
        now = self._sim.now
        world.stalled_at = now if world.stalled_at is None else world.stalled_at
        if now - world.stalled_at < GLOO_S:
            self._sim.later(STEP_S, act, world)
            return True
        world.phase = "lost"
        for process in [each for each in world.members if not each.stopped]:
            self._sim.later(NOTICE_S, self._notice, world, process.agent.host)
        return True

    # --- into a world

    def answered(self, process: Process, *, incarnation: int, size: int) -> None:
        """A process was told its rank: it connects to the others of its world."""
        key = (incarnation, process.told_world)
        world = next((each for each in self.worlds if each.key == key and each.phase == "joining"), None)
        if world is None:
            world = World(key, size)
            self.worlds.append(world)
        process.state, process.world, process.leave = "joining", world, False
        world.members.append(process)
        if len(world.members) == world.size:
            self._sim.later(JOIN_S, self._enter, world)
        self._sim.later(GLOO_S, self._gives_up, process, world)

    def _gives_up(self, process: Process, world: World) -> None:
        if process.world is world and world.phase in ("joining", "lost") and not process.stopped:
            self.lose(world, process)

    def _enter(self, world: World) -> None:
        if world.phase != "joining":
            return
        if self._held_up(world, self._enter):
            return
        world.phase = "syncing"
        for process in world.members:
            process.state, process.generation = "syncing", process.told_world
            if process.entered is None:
                process.entered = process.held.generation if process.held else 0
            process.agent.say(process, "entered", generation=process.generation)
            process.agent.say(process, "looping")
        self._sim.later(self.sync_s, self._synced, world)

    def _synced(self, world: World) -> None:
        if world.phase != "syncing":
            return
        if self._held_up(world, self._synced):
            return
        members = sorted(world.members, key=lambda process: process.rank)
        lineage = next(self._lineages)
        elected = elect([_candidate(process) for process in members], lineage=lineage)
        world.phase, world.elected = "training", (elected.incarnation, elected.generation)
        self._oracle.agreed(world, None if elected.anew else elected.commit)
        for process in members:
            self._seal(process, elected.commit)
            process.state, process.entered, process.batch = "training", elected.generation, elected.commit.batch
            process.agreed = process.generation
            process.agent.synced(process)
        self._sim.later(STEP_S, self._step, world)

    # --- steps

    def _step(self, world: World) -> None:
        if world.phase != "training":
            return
        if self._held_up(world, self._step):
            return
        world.stepped_at = now = self._sim.now
        self._oracle.steps(world)
        for process in world.members:
            process.batch += 1
            if world.fresh:
                before = process.stepped_at
                process.agent.say(process, "going_on", pause_s=None if before is None else now - before)
            process.stepped_at = now
        world.fresh = False
        if world.members[0].batch % EVERY == 0:
            self._commit(world)
        if world.phase == "training":
            self._sim.later(STEP_S, self._step, world)

    def _commit(self, world: World) -> None:
        for process in world.members:
            self._seal(process, self._next(process, world))
            self.keep(process)
        if self.finishing:
            self._finish(world)
        elif world.interrupted:
            self._part(world)

    def keep(self, process: Process) -> None:
        """Say whether a process has the commit that is wanted for a checkpoint, as soon as it can tell."""
        wanted, commit = process.wanted, process.commit
        if wanted is None or commit is None or commit.name < wanted:
            return
        process.wanted = None
        if commit.name > wanted:
            process.agent.say(process, "not_kept", wanted=wanted, newest=commit.name)
            return
        process.stays = process.stay
        process.agent.keeps(process, commit)

    def _next(self, process: Process, world: World) -> Commit:
        held = process.held
        assert held is not None
        return Commit(*world.elected, held.number + 1, process.batch, held.lineage)

    def _seal(self, process: Process, commit: Commit) -> None:
        process.agent.seal(process.slot, commit)
        process.commit = commit

    def _finish(self, world: World) -> None:
        members = self._close(world)
        for process in members:
            process.done = True
            process.agent.say(process, "done")
        for process in members:
            process.agent.ended(process, 0)

    def _part(self, world: World) -> None:
        """All ranks leave the world at the same commit, for a change of it."""
        for process in self._close(world):
            if process.leave:
                process.agent.ended(process, 0)
            else:
                self.ask(process)

    def _close(self, world: World) -> list[Process]:
        world.phase = "lost"
        self.worlds.remove(world)
        members, world.members = world.members, []
        for process in members:
            process.world = None
        return members

    # --- out of it

    def ask(self, process: Process) -> None:
        """Ask for a rank in the next world."""
        process.wanted, process.stays = None, False
        process.state = "asking"
        process.agent.asks(process)

    def interrupt(self, process: Process, *, leave: bool) -> None:
        """A member was told of the next world: all ranks leave this one at the next commit."""
        world = process.world
        if world is None:
            return
        process.leave = process.leave or leave
        world.interrupted = True
        if world.phase == "joining" and len(world.members) < world.size:
            self.lose(world, process)  # the launcher answers none of its questions for addresses any more

    def ahead(self, process: Process, *, others: bool) -> None:
        """If the next batch ends with a commit, a process, or all ``others``, have sealed it already."""
        world = process.world
        if world is None or world.phase != "training" or (process.batch + 1) % EVERY or self.stalled(world):
            return
        for each in [each for each in world.members if each is not process] if others else [process]:
            each.batch += 1
            self._seal(each, self._next(each, world))

    def lose(self, world: World, by: Process | None, *, host: str = "") -> None:
        """The world is lost through a process, or one that was on ``host``; its members notice as soon as they can."""
        world.phase = "lost"
        self._sim.later(NOTICE_S, self._notice, world, by.agent.host if by is not None else host)

    def _notice(self, world: World, where: str) -> None:
        for process in list(world.members):
            host = process.agent.host
            unreachable = host != where and (host in self._cut or where in self._cut)
            if process.world is world and not process.stopped and not unreachable:
                self._rolls_back(process)
        if not world.members and world in self.worlds:
            self.worlds.remove(world)

    def _rolls_back(self, process: Process) -> None:
        assert process.world is not None
        was, held = process.state, process.held
        process.world.members.remove(process)
        process.world = None
        if was == "training" and held is not None:
            lost, process.batch = process.batch - held.batch, held.batch
            fields = {"step": held.batch, "steps_lost": lost, "rank": process.rank}
            process.agent.say(process, "record", event="rolled_back", fields=fields)
        self.ask(process)

    def look_again(self, hosts: Iterable[str]) -> None:
        """Processes on these hosts go on, or hear again: they notice what they have missed."""
        known = set(hosts)
        for world in list(self.worlds):
            if world.phase == "lost" and any(process.agent.host in known for process in world.members):
                self._sim.later(NOTICE_S, self._notice, world, "")

    def gone(self, process: Process) -> None:
        """A process has ended. Its peers notice."""
        world, process.world, process.state = process.world, None, "gone"
        if world is not None:
            world.members.remove(process)
            self.lose(world, None, host=process.agent.host)


def _candidate(process: Process) -> Candidate:
    """Commits of a later world are newer than those of any before, also of one that none of its members was in."""
    held = process.held
    before = process.told_world - 1
    entered = max(process.entered or 0, held.generation if held else 0, before)
    return Candidate(held, entered, process.incarnation)
