"""The training of simulated processes: they form worlds, sync to the newest commit, step together, and lose peers.

Ranks of one world do steps in lockstep. A stopped rank, or one without a network, blocks all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from hvd_elastic_ext.simulate.cluster.observer import Observer
from hvd_elastic_ext.simulate.cluster.processes import Commit, Process, Track, World, candidates, elect
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.cluster.virtual_time import Sim
from hvd_elastic_ext.worker.calls.meeting import Row, meet

_RANK: Final = attrgetter("rank")
VICTIM: Final = 41
"""Exit code of a process that ends because of a lost peer."""
ROUNDING: Final = 1e-9
"""Tolerance for rounding of summed times, as a share of a step."""


def step_fields(world: World) -> dict[str, int]:
    """Return the fields of the newest step of a world in the journal."""
    return {"step": world.batch, "rank": 0, "size": world.size, "world": world.key[1]}


@dataclass(slots=True)
class Program:
    """A script. Without changes, it has no prologue and one training call: processes park at their training loop.

    ``steps``: of each training call except the last one, which trains until training is done. ``between_s``: from the
    end of a call to the begin of the next one.

    ``prologue_s``: from ``hvd.init()`` to the training loop; None: processes do not park in ``hvd.init()``.
    ``quiet``: no collective in the prologue: a lost peer is noticed in the loop.

    Several calls need :attr:`Times.every_step`.
    """

    steps: tuple[int, ...] = ()
    between_s: float = 0.1
    prologue_s: float | None = None
    quiet: bool = False

    def steps_of(self, call: int) -> int | None:
        """How many steps a training call has; None: it is the last one."""
        return self.steps[call - 1] if call <= len(self.steps) else None


class Training:
    """All worlds. ``cut``: hosts without a network; ``sync_s``: seconds of a sync."""

    process_kind: type[Process] = Process

    def __init__(self, sim: Sim, observer: Observer, cut: set[str], times: Times) -> None:
        self.worlds: list[World] = []
        self.sync_s = times.sync_s
        self.commit_every = 1
        """Number of calls of ``commit()`` for each commit."""
        self.program = Program()
        """What the processes run."""
        self.records = False
        """Whether the journal contains sampled steps."""
        self.vanished: set[str] = set()
        """Hosts whose machines are gone, though their connections are open: nothing trains there."""
        self.finishing = False
        """Whether training ends at the next commit."""
        self.last_step: Callable[[World], int | None] = lambda world: None
        """The step after which training ends, if that is known when a world begins."""
        self._sim, self._observer, self._cut, self._times = sim, observer, cut, times
        self._lineages, self._questions = itertools.count(1), itertools.count(1)
        self._lost = False
        """Whether a world was lost, and none has followed it yet."""

    def moves(self, process: Process, state: str) -> None:
        """Set the state of a process."""
        before, process.state = process.state, state
        self._observer.moved(process, before)

    def _move(self, processes: Sequence[Process], state: str) -> None:
        """Set the states of many processes."""
        for process in processes:
            self.moves(process, state)

    def _report(self, processes: Iterable[Process], what: str, **more: Any) -> None:
        """Send the same message from many processes; see :meth:`Agent.report`."""
        for process in processes:
            process.agent.report(process, what, **more)

    def stalled(self, world: World) -> bool:
        """Whether a rank blocks the others."""
        if any(process.stopped or process.stays for process in world.members):
            return True
        if not self._cut:
            return False
        hosts = {process.host for process in world.members}
        return not hosts.isdisjoint(self._cut if len(hosts) > 1 else self.vanished)

    def _held_up(self, world: World, act: Callable[[World], None]) -> bool:
        """Whether a world is stalled. If so, ``act`` is called again later, until Gloo gives up."""
        if not self.stalled(world):
            world.stalled_at = None
            return False
        now = self._sim.now
        world.stalled_at = now if world.stalled_at is None else world.stalled_at
        if now - world.stalled_at < self._times.gloo_s:
            self._sim.later(self._times.step_s, act, world)
            return True
        world.phase = "lost"
        for process in [each for each in world.members if not each.stopped]:
            self._sim.later(self._times.notice_s, self._notice, world, process.host)
        return True

    # --- to a world

    def told(self, process: Process, message: Mapping[str, Any]) -> None:
        """A process receives a message from the launcher."""
        match message["tell"]:
            case "go" if process.state == "parked" and not process.stopped:
                self._sim.later(self._times.go_s, self._goes, process)
            case "alone" if process.state == "parked" and process.at_init:
                self.goes_alone(process)
            case "results":
                process.results_came = True
                self._sim.later(self._times.go_s, self.reads_results, process)
            case "world":
                process.assigned_world = message["generation"]
            case "update" if process.world is not None:
                self.interrupt(process, leave=message["leave"])
            case "keep":
                wanted = message["commit"]
                process.wanted, process.stays = None if wanted is None else list(wanted), False
                process.stay = bool(message.get("stay"))
                self.asked_to_keep(process)
            case "commit_interval":
                self.commit_every_nth(message["every"])
            case "fence" if process.world is not None:
                self.settle(process.world)
                if process.world is not None:
                    self.lose(process.world, process)

    def _goes(self, process: Process) -> None:
        if process.state == "parked":
            self.ask(process)

    def parks(self, process: Process) -> None:
        """A process is ready. It parks in ``hvd.init()``, or at its training loop."""
        if self.program.prologue_s is not None and not process.alone:
            process.at_init = True
            self.moves(process, "parked")
            process.agent.report(process, "parked", at="init", later=True, call=0)
            return
        self._pass_over(process)
        self.moves(process, "parked")
        process.agent.report(process, "parked", at="loop", later=False, call=process.call)

    def goes_alone(self, process: Process) -> None:
        """A process is told that it meets the others in the training loop, after a prologue of its own."""
        process.at_init, process.alone = False, True
        self.moves(process, "booting")
        self._sim.later(self.program.prologue_s or 0.0, process.agent.park, process)

    def reads_results(self, process: Process) -> None:
        """A parked process that was told of results goes on with them, or parks again."""
        if not process.results_came or process.stopped or process.state != "parked" or process.at_init:
            return
        process.results_came = False
        if len(process.past) <= process.call:
            process.agent.report(process, "parked", at="loop", later=False, call=process.call)
            return
        self.moves(process, "booting")
        passed = len(process.past) - process.call
        self._sim.later(self.program.between_s * passed, process.agent.park, process)

    def _pass_over(self, process: Process) -> None:
        """Begin the first training call without a result in the process's past."""
        process.call = max(1, process.call)
        process.left = 0 if process.call == 1 else None
        while process.call < len(process.past):
            self._skip(process)

    def _skip(self, process: Process) -> None:
        """Go on with the result of a call that is over."""
        process.agent.report(process, "record", event="call_skipped", fields={"call": process.call})
        process.end, process.left = process.past[process.call], None
        process.call += 1

    # --- into a world

    def answered(self, process: Process, *, incarnation: int, size: int) -> None:
        """Let a process that has received its rank connect to the other members."""
        key = (incarnation, process.assigned_world)
        world = next((each for each in self.worlds if each.key == key and each.phase == "joining"), None)
        if world is None:
            world = World(key, size, after_loss=self._lost)
            self._lost = False
            self.worlds.append(world)
        process.world, process.leave = world, False
        self.moves(process, "joining")
        world.members.append(process)
        if len(world.members) == world.size:
            self._sim.later(self._times.meets(self._times.join_s, world.after_loss), self._enter, world)
        self._sim.later(self._times.gloo_s, self._give_up, process, world)

    def _give_up(self, process: Process, world: World) -> None:
        if process.world is world and world.phase in ("joining", "lost") and not process.stopped:
            self.lose(world, process)

    def _enter(self, world: World) -> None:
        if world.phase != "joining":
            return
        if self._held_up(world, self._enter):
            return
        self._observer.entered(world)
        before_loop = any(process.at_init for process in world.members)
        world.phase = "prologue" if before_loop else "syncing"
        for process in world.members:
            process.generation = process.assigned_world
            if process.entered is None:
                process.entered = process.held.generation if process.held else 0
        self._move(world.members, world.phase)
        self._report(world.members, "entered", generation=world.key[1])
        if before_loop:
            self._sim.later(self.program.prologue_s or 0.0, self._begin_loops, world)
            return
        self._begin_loop([process for process in world.members if not process.looped])
        self._sim.later(self._times.meets(self.sync_s, world.after_loss), self._synced, world)

    def _begin_loops(self, world: World) -> None:
        """The prologue of a world is over."""
        if world.phase != "prologue" or self._held_up(world, self._begin_loops):
            return
        world.phase = "syncing"
        self._move(world.members, "syncing")
        self._begin_loop(world.members)
        self._sim.later(self._times.meets(self.sync_s, world.after_loss), self._synced, world)

    def _begin_loop(self, processes: Sequence[Process]) -> None:
        """Report that processes have begun the training call that they are in."""
        for process in processes:
            process.looped, process.at_init, process.done = True, False, False
            process.left = 0 if process.call == 0 else process.left
            process.call = max(1, process.call)
            process.agent.report(process, "looping", call=process.call)

    def _synced(self, world: World) -> None:
        if world.phase != "syncing":
            return
        if self._held_up(world, self._synced):
            return
        members = world.members
        members.sort(key=_RANK)  # usually they are sorted already
        if self.program.steps and self._meet(world):
            return
        world.call = members[0].call
        lineage = next(self._lineages)
        elected = elect(candidates(members), lineage=lineage)
        world.phase, world.elected = "training", (elected.incarnation, elected.generation)
        world.every = self._times.every * self.commit_every
        world.step_s = self._step_s(world)
        commit = elected.commit
        track = None if self._times.every_step else Track(commit.batch, None, commit, None)
        world.track = track
        for process in members:
            self._seal(process, commit)
            process.entered, process.batch, process.track = elected.generation, commit.batch, track
            process.agreed = process.generation
        world.asked = next((process for process in members if process.wanted is not None), None)
        self._observer.agreed(world, None if elected.anew else elected.commit)
        self._move(members, "training")
        self._report(members, "synced", reported=commit, step=commit.batch, commit=commit.name)
        steps, end = self.program.steps_of(world.call), members[0].end
        world.call_ends = None if steps is None else steps + (0 if end is None else end.batch)
        if world.call_ends is not None and commit.batch >= world.call_ends:
            self._end_call(world)  # it was over, but for its end
        elif self._times.every_step:
            self._sim.later(self._times.step_s, self._step, world)
        else:
            world.stepped_at, world.ends_at = self._sim.now, self.last_step(world)
            self._wake(world)

    def _meet(self, world: World) -> bool:
        """Compare the calls of the ranks, and keep the result of the last one. Return whether they meet again."""
        members = world.members
        found = meet([self._row(process) for process in members])
        for rank, process in enumerate(members):
            if process.left is None or process.left != process.call - 1:
                continue
            if rank in found.keeps:
                process.past.append(process.end)
                if process.left:
                    process.agent.report(process, "result", call=process.left, bytes=1, kept=True)
            process.left = None
        if found.sender is not None:
            past = list(members[found.sender].past)
            for process in [members[rank] for rank in sorted(found.receives)]:
                process.past[:] = past
                process.agent.report(process, "result", call=len(past) - 1, bytes=1, kept=True)
        over = [members[rank] for rank in sorted(found.over)]
        for process in [each for each in over if len(each.past) <= each.call]:
            process.agent.report(process, "failed", digest="unkept", error="StateError", traceback="")
            process.agent.ended(process, 1)
        if world.phase != "syncing" or not over:
            return bool(over)
        for process in over:
            self._skip(process)
        self._begin_loop(over)
        self._sim.later(self.program.between_s + self.sync_s, self._synced, world)
        return True

    def _row(self, process: Process) -> Row:
        left = int(process.left is not None and process.left == process.call - 1)
        return Row(process.call, len(process.past), left, left, left)

    # --- steps

    def _step_s(self, world: World) -> float:
        """Return the seconds of a step: of the slowest host, with its share of commits and of a running checkpoint."""
        times = self._times
        kinds = {process.agent.kind for process in world.members}
        slowest = max((times.step(kind, world.size) for kind in kinds), default=times.step_s)
        return (slowest + times.commit_s / world.every) * (1.0 + (times.slowed if world.writing else 0.0))

    def _step(self, world: World) -> None:
        if world.phase != "training":
            return
        if self._held_up(world, self._step):
            return
        world.stepped_at = self._sim.now
        if self._times.every_step:
            self._advance(world, 1)
            if world.phase == "training":
                self._sim.later(self._times.step_s, self._step, world)
        else:
            self._wake(world)  # the world was held up, and continues

    def follow(self, process: Process) -> None:
        """Update a process with the progress of its world."""
        world = process.world
        if world is None or (track := world.track) is None or process.track is track:
            return
        process.track, process.batch = track, track.batch
        process.stepped_at = process.stepped_at if track.stepped_at is None else track.stepped_at
        if process.commit != track.commit:
            self._seal(process, track.commit)
            if track.before is not None:
                process.agent.before[process.slot] = track.before

    def settle(self, world: World | None) -> None:
        """Do the steps that are due, if not every step is an event. See :meth:`follow`."""
        if world is None or self._times.every_step or world.phase != "training" or world.stalled_at is not None:
            return
        due = math.floor((self._sim.now - world.stepped_at) / world.step_s + ROUNDING)
        if due > 0:
            world.stepped_at += due * world.step_s
            self._advance(world, due)

    def may_stall(self, world: World | None) -> None:
        """Check a world after an event that may stall it."""
        if world is None or self._times.every_step or world.phase != "training" or world.stalled_at is not None:
            return
        self.settle(world)
        if world.phase == "training" and self.stalled(world):
            world.wake_at = None
            self._step(world)

    def _wake(self, world: World) -> None:
        """Plan the next event of a world."""
        if self._times.every_step or world.phase != "training" or world.stalled_at is not None:
            return
        batch, at = world.batch, [] if world.ends_at is None else [world.ends_at]
        if world.fresh:
            at.append(batch + 1)
        if world.interrupted or self.finishing:
            at.append(self._next_commit(world))
        wanted = world.asked
        if wanted is not None:
            self.follow(wanted)
        if wanted is not None and wanted.held is not None and wanted.wanted is not None:
            commits = max(1, wanted.wanted[2] - wanted.held.number)
            at.append(self._next_commit(world) + (commits - 1) * world.every)
        if at:
            wake_at = world.stepped_at + max(1, min(at) - batch) * world.step_s
            if world.wake_at is None or wake_at < world.wake_at or world.wake_at < self._sim.now:
                world.wake_at = wake_at
                self._sim.at(max(self._sim.now, wake_at), self._woken, world, wake_at)

    def _woken(self, world: World, wake_at: float) -> None:
        if world.wake_at == wake_at:
            world.wake_at = None
            self.settle(world)
            self._wake(world)

    def _next_commit(self, world: World) -> int:
        return world.batch + 1 if self._averages_early(world) else (world.batch // world.every + 1) * world.every

    def _averages_early(self, world: World) -> bool:
        """Whether a notice lets the ranks average after the present step."""
        return bool(self._times.averages) and world.interrupted

    def _advance(self, world: World, count: int) -> None:
        """Do steps of a world, the last one now."""
        now = self._sim.now if self._times.every_step else world.stepped_at
        before = world.batch
        commits = (before + count) // world.every - before // world.every
        if self._averages_early(world):
            commits = max(1, commits)
        self._observer.steps(world, count)
        if world.fresh:
            world.fresh = False
            self._go_on(world, now)
        if world.track is not None:
            world.track = world.track._replace(batch=before + count, stepped_at=now)
        else:
            for process in world.members:
                process.batch += count
                process.stepped_at = now
        if self.records:
            first = next(process for process in world.members if process.rank == 0)
            first.agent.report(first, "record", event="stepped", fields=step_fields(world))
        if commits:
            self._commit(world, commits)
        elif world.ends_at is not None and world.batch >= world.ends_at:
            self._finish(world)
        if world.phase == "training" and world.call_ends is not None and world.batch >= world.call_ends:
            self._end_call(world)

    def _go_on(self, world: World, now: float) -> None:
        """Report the first step of a world."""
        for process in world.members:
            last = process.stepped_at
            pause_s = None if last is None else max(0.0, now - last - world.step_s)
            process.agent.report(process, "first_step", pause_s=pause_s)

    def _commit(self, world: World, commits: int) -> None:
        left, track = 0 if self._averages_early(world) else world.batch % world.every, world.track
        named = world.asked is not None and any(process.wanted is not None for process in world.members)
        if track is not None:
            held = track.commit
            commit = Commit(*world.elected, held.number + commits, track.batch - left, held.lineage, world.call)
            world.track = track._replace(commit=commit, before=held)
        for process in world.members if named or track is None else ():
            if track is None:
                self._seal(process, self._next(process, world, commits, left))
            else:
                self.follow(process)
            if named:
                self.keep(process)
        if self.finishing and self.program.steps_of(world.call) is not None:
            self._end_call(world)
        elif self.finishing or (world.ends_at is not None and world.batch >= world.ends_at):
            self._finish(world)
        elif world.interrupted and not left:
            self._part(world)
        elif named:
            self._stall(world)
            self.may_stall(world)

    def _stall(self, world: World) -> None:
        """Delay the next step by the stall of a checkpoint at its commit."""
        stall_s = 0.0 if self._times.every_step else self._times.stall_s
        if stall_s and not any(process.wanted is not None for process in world.members):
            world.stepped_at += stall_s
            world.delayed_s += stall_s

    def keep(self, process: Process) -> None:
        """Report whether a process has the commit for a checkpoint, as soon as that is known."""
        wanted, commit = process.wanted, process.commit
        if wanted is None or commit is None or commit.name < wanted:
            return
        process.wanted = None
        if commit.name > wanted:
            process.agent.report(process, "commit_not_kept", wanted=wanted, newest=commit.name)
            return
        process.stays = process.stay
        process.agent.keeps(process, commit)

    def asked_to_keep(self, process: Process) -> None:
        """Set the commit that a process must keep, or None."""
        self.settle(process.world)
        self.follow(process)
        self.keep(process)
        if process.world is not None:
            first = process.world.asked
            if process.wanted is not None and (first is None or first is process or first.wanted != process.wanted):
                process.world.asked = process
                self._wake(process.world)
            if process.stays:
                self.may_stall(process.world)

    def _next(self, process: Process, world: World, commits: int = 1, left: int = 0) -> Commit:
        held = process.held
        assert held is not None  # sealed when the world agreed
        return Commit(*world.elected, held.number + commits, process.batch - left, held.lineage, world.call)

    def _seal(self, process: Process, commit: Commit) -> None:
        process.agent.seal(process.slot, commit)
        process.commit = commit

    def writes(self, world: World | None, hosts: int) -> None:
        """Change the number of hosts of a world that write a checkpoint, which changes its step time."""
        if world is None or self._times.every_step:
            return
        before, world.writing = world.writing, max(0, world.writing + hosts)
        if bool(before) != bool(world.writing) and world.phase == "training":
            now, world.writing = world.writing, before
            self.settle(world)
            world.writing = now
            if world.phase == "training":
                self._change_step(world)

    def commit_every_nth(self, every: int) -> None:
        """Set that only one in ``every`` calls of ``commit()`` makes a commit."""
        self.commit_every = every
        for world in self.worlds:
            if world.phase == "training" and world.every != self._times.every * every:
                self.settle(world)
                world.every = self._times.every * every
                self._change_step(world)

    def _change_step(self, world: World) -> None:
        before, world.step_s = world.step_s, self._step_s(world)
        if world.step_s != before and world.stalled_at is None:
            done = (self._sim.now - world.stepped_at) / before
            world.stepped_at = self._sim.now - done * world.step_s
            world.delayed_s += done * (before - world.step_s)
            world.wake_at = None
            self._wake(world)

    def _finish(self, world: World) -> None:
        members = self._close(world)
        for process in members:
            process.done = True
            process.agent.report(process, "done", call=process.call)
        for process in members:
            process.agent.ended(process, 0)

    def _end_call(self, world: World) -> None:
        """A training call of all ranks returns. Another one follows."""
        world.phase, members = "between", world.members
        for process in members:
            if process.commit is None or process.commit.batch < process.batch:
                self._seal(process, self._next(process, world))
                self.keep(process)
            process.done, process.left, process.end = True, process.call, process.commit
        self._move(members, "between")
        end = members[0].commit
        assert end is not None  # sealed now, or before
        self._report(members, "beat", reported=end, step=end.batch, commit=end.name)
        self._report(members, "done", call=world.call)
        self._sim.later(self.program.between_s, self._begin_call, world)

    def _begin_call(self, world: World) -> None:
        if world.phase != "between" or self._held_up(world, self._begin_call):
            return
        world.phase = "syncing"
        for process in world.members:
            process.call += 1
        self._move(world.members, "syncing")
        self._begin_loop(world.members)
        self._sim.later(self.sync_s, self._synced, world)

    def leave_together(self, world: World, *, apart_s: float) -> None:
        """Have all ranks leave the training function at the same step, with exit code 0, one ``apart_s`` after the
        other.
        """
        members = self._close(world)
        self._move(members, "leaving")
        for number, process in enumerate(members):
            held = process.held
            if held is not None and held.batch < process.batch:
                self._seal(process, held := self._next(process, world))
            name = None if held is None else held.name
            process.agent.report(process, "left", call=process.call, well=True, step=process.batch, commit=name)
            self._sim.later(number * apart_s, process.agent.ended, process, 0)

    def _part(self, world: World) -> None:
        """Let all ranks leave the world at the same commit."""
        members = self._close(world)
        for process in members:
            if process.leave:
                process.agent.ended(process, 0)
        self._ask([process for process in members if not process.leave])

    def _close(self, world: World) -> list[Process]:
        world.phase = "lost"
        self.worlds.remove(world)
        members, world.members = world.members, []
        for process in members:
            self.follow(process)
            process.world = None
        return members

    # --- out of it

    def ask(self, process: Process) -> None:
        """Ask for a rank in the next world."""
        self._ask([process])

    def _ask(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.wanted, process.stays = None, False
        self._move(processes, "asking")
        for process in processes:
            process.agent.asks(process, next(self._questions))

    def interrupt(self, process: Process, *, leave: bool) -> None:
        """Announce the next world to a member. All ranks then leave this one at the next commit."""
        world = process.world
        if world is None:
            return
        self.settle(world)
        process.leave = leave  # the newest word counts
        if world.phase == "training" and not world.interrupted:
            world.interrupted = True
            self._wake(world)
        world.interrupted = True
        if world.phase == "joining" and len(world.members) < world.size:
            self.lose(world, process)  # the launcher no longer answers its questions for addresses

    def ahead(self, process: Process, *, others: bool) -> None:
        """Seal the next commit early in one process, or in all ``others``, if the next batch ends with a commit."""
        world = process.world
        if world is None or world.phase != "training" or (process.batch + 1) % world.every or self.stalled(world):
            return
        for each in [each for each in world.members if each is not process] if others else [process]:
            each.batch += 1
            self._seal(each, self._next(each, world))

    def lose(self, world: World, by: Process | None, *, host: str = "") -> None:
        """Lose the world of a process, or of a process that was on ``host``; the members notice as soon as possible."""
        world.phase = "lost"
        where = by.host if by is not None else host
        self._sim.later(self._times.notice_s, self._notice, world, where)

    def _notice(self, world: World, where: str) -> None:
        if self._cut:
            those = [process for process in world.members if self._notices(process, where)]
        else:
            those = [process for process in world.members if not process.stopped]
        if len(those) == len(world.members):
            world.members = []
            self._roll_back(those)
        elif those:
            noticed = set(those)
            world.members = [process for process in world.members if process not in noticed]
            self._roll_back(those)
        if not world.members and world in self.worlds:
            self.worlds.remove(world)

    def _notices(self, process: Process, where: str) -> bool:
        host = process.host
        unreachable = host != where and (host in self._cut or where in self._cut)
        return not process.stopped and not unreachable

    def _roll_back(self, processes: Sequence[Process]) -> None:
        """Roll back processes that have left a lost world."""
        self._lost = True
        processes = self._go_to_loop(processes)
        for process in processes:
            self.follow(process)
            process.world, held = None, process.agent.memory.get(process.slot)
            if process.state == "training" and held is not None and self._times.averages:
                self._seal(process, held._replace(number=held.number + 1, batch=process.batch))
            elif process.state == "training" and held is not None:
                lost, process.batch = process.batch - held.batch, held.batch
                fields = {"step": held.batch, "steps_lost": lost, "rank": process.rank}
                process.agent.report(process, "record", event="rolled_back", fields=fields)
        self._ask(processes)

    def _go_to_loop(self, processes: Sequence[Process]) -> Sequence[Process]:
        """Have those that have lost their world between two calls, or before the first one, notice that in the next
        one. Those whose collectives fail in a prologue end: return the others.
        """
        if not any(process.state in ("prologue", "between") for process in processes):
            return processes
        for process in processes:
            process.world = None  # the end of one may end its agent, and so the others there
        for process in [each for each in processes if each.state == "prologue" and not self.program.quiet]:
            process.agent.report(process, "peer_lost", error="HorovodInternalError")
            process.agent.ended(process, VICTIM)
        rest = [process for process in processes if process.state != "gone"]
        begin = [process for process in rest if process.state in ("prologue", "between")]
        for process in begin:
            process.call += process.state == "between"
        self._begin_loop(begin)
        return rest

    def look_again(self, hosts: Iterable[str]) -> None:
        """Let processes on these hosts, which continue or have their network again, notice what they have missed."""
        known = set(hosts)
        for world in list(self.worlds):
            if world.phase == "lost" and any(process.host in known for process in world.members):
                self._sim.later(self._times.notice_s, self._notice, world, "")

    def gone(self, process: Process) -> None:
        """Note that a process has ended. Its peers notice this."""
        self.settle(process.world)
        self.follow(process)
        world, process.world = process.world, None
        self.moves(process, "gone")
        if world is not None:
            world.members.remove(process)
            self.lose(world, None, host=process.host)
