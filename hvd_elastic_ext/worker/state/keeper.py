"""Keeps one State: commit, roll back, agree, sync.

The public classes (``mixin.py``) have the methods of Horovod's State, and call a Keeper. It knows that a State has
contents, that commits of them lie in memory, and that ranks must agree; how each of these is done is elsewhere.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from hvd_elastic_ext.checkpoint.values import read, trees
from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import Permanent, StateError, UsageError
from hvd_elastic_ext.worker.calls.calls import Calls, End
from hvd_elastic_ext.worker.calls.meeting import Row
from hvd_elastic_ext.worker.calls.result import Content, Finished, Left, left_by
from hvd_elastic_ext.worker.commits import layout as layouts
from hvd_elastic_ext.worker.commits.buffer import Beside, Commit, CommitBuffer, Contents, Held
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.commits.memory_limits import memory_warning
from hvd_elastic_ext.worker.comms import Comms, PeerLost
from hvd_elastic_ext.worker.data import shares
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.stream import ElasticStream
from hvd_elastic_ext.worker.optim.averaging import accumulating
from hvd_elastic_ext.worker.parts import Part, averaged, rng
from hvd_elastic_ext.worker.parts.torch_parts import GeneratorPart, ModelPart
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepCount
from hvd_elastic_ext.worker.replay import single
from hvd_elastic_ext.worker.replay.recorder import Recorder
from hvd_elastic_ext.worker.state import user_files
from hvd_elastic_ext.worker.state.contents import Difference, Inventory, Written, write_one
from hvd_elastic_ext.worker.state.importing import Importing, Names, Source, named
from hvd_elastic_ext.worker.state.journal import Reporter, plain
from hvd_elastic_ext.worker.state.rehearsal import Rehearsal
from hvd_elastic_ext.worker.state.slot_memory import LONGEST_REASON, HeldCommit, Memory
from hvd_elastic_ext.worker.state.user_files import Checkpoint
from hvd_elastic_ext.worker.sync import exchange
from hvd_elastic_ext.worker.sync.commit_interval import CommitSchedule
from hvd_elastic_ext.worker.sync.exchange import Candidate, Election, Send, elect, fingerprint
from hvd_elastic_ext.worker.sync.interrupts import Stopping
from hvd_elastic_ext.worker.sync.rounds import Average, Rounds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings, read once when the State is built."""

    host: str = ""
    """This machine's name as the launcher knows it (``HOROVOD_HOSTNAME``)."""

    journal: Path | None = None
    """Where to append what happened (``HVD_ELASTIC_WORKER_JOURNAL``); used only if the file exists."""

    sample: float = 1.0
    """Seconds between two journalled steps or commits (``HVD_ELASTIC_SAMPLE``); 0 journals each."""

    incarnation: int = 0
    """Number of the launcher that started this process (``HVD_ELASTIC_INCARNATION``)."""

    local_size: int = 1
    """Training processes on this host (``HOROVOD_LOCAL_SIZE``, or the number from torchrun, Open MPI or the plan)."""

    verify: bool = False
    """Whether to compare all shared state after every sync, by a hash (``HVD_ELASTIC_VERIFY=1``)."""

    replay: bool = False
    """Whether lost steps are executed again as they were (``HVD_ELASTIC_REPLAY=1``)."""

    last_commit: bool = False
    """Whether checkpoints are made, so that the end of training must be committed (``HVD_ELASTIC_LAST_COMMIT=1``)."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerSettings:
        """Read the settings. Raises :class:`UsageError` for an invalid sample interval."""
        path = environ.get("HVD_ELASTIC_WORKER_JOURNAL")
        return cls(
            host=environ.get("HOROVOD_HOSTNAME") or socket.gethostname(),
            journal=Path(path) if path else None,
            sample=_seconds(environ.get("HVD_ELASTIC_SAMPLE") or "1.0"),
            incarnation=_number("HVD_ELASTIC_INCARNATION", environ.get("HVD_ELASTIC_INCARNATION") or "0"),
            local_size=_local_size(environ),
            verify=environ.get("HVD_ELASTIC_VERIFY", "") not in ("", "0"),
            replay=environ.get("HVD_ELASTIC_REPLAY") == "1",
            last_commit=environ.get("HVD_ELASTIC_LAST_COMMIT") == "1",
        )


def _seconds(text: str) -> float:
    value = durations.parse(text)
    if value is None:
        raise UsageError(
            f"environment variable HVD_ELASTIC_SAMPLE is {text!r}; write a time, such as 2s, or 0 for every step"
        )
    return value


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"environment variable {name} is {text!r}; the launcher sets it, to a number")
    return int(text)


def _local_size(environ: Mapping[str, str]) -> int:
    for name in ("HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if environ.get(name, "").isdigit():
            return max(1, int(environ[name]))
    planned = environ.get("HVD_ELASTIC_PLAN", "").split(",")  # set in a process that has not joined its job yet
    return max(1, int(planned[3])) if len(planned) == 6 and planned[3].isdigit() else 1


WORTH_PREPARING: Final = 16 << 20
"""Bytes of a commit from which its memory is allocated in advance."""


@dataclass(frozen=True, slots=True)
class _Repeated:
    """What of a State is needed to do lost steps again."""

    inventory: Inventory
    count: StepCount

    def optimizers(self) -> Mapping[str, Any]:
        return self.inventory.optimizers()

    def models(self) -> Mapping[str, torch.nn.Module]:
        return self.inventory.values_of(ModelPart)

    def samplers(self) -> Mapping[str, Any]:
        parts = self.inventory.parts.items()
        return {name: part.value for name, part in parts if isinstance(part.value, ElasticSampler | ElasticStream)}

    def generators(self) -> Sequence[torch.Generator]:
        return list(self.inventory.values_of(GeneratorPart).values())

    def steps(self) -> int:
        return self.count.done


class Keeper:
    """Keeps one State: its last commit, and its sync with other ranks.

    ``buffer`` may hold a commit of an earlier process of this slot: the first sync uses it. If a newer one is handed
    over while the process waits, the next sync uses that. ``world``: the launcher's number of the present world, 0
    without one; its commits count as newer than those of all earlier worlds.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        buffer: CommitBuffer,
        comms: Comms,
        reporter: Reporter,
        clock: Clock,
        settings: WorkerSettings,
        program: str,
        keep_rng: bool = True,
        status: Status | None = None,
        held: HeldCommit | None = None,
        checkpoint: Checkpoint | None = None,
        schedule: CommitSchedule | None = None,
        world: Callable[[], int] = lambda: 0,
        calls: Calls | None = None,
        takes_memory: Callable[[], Memory | None] = lambda: None,
    ) -> None:
        self._inventory = inventory
        self._memory: CommitBuffer | None = buffer
        self._comms = comms
        self._reporter = reporter
        self._settings = settings
        self._program = program
        self._keep_rng = keep_rng
        self._incarnation = settings.incarnation
        self._status = status if status is not None else Status()
        self._status.own_step = True
        self._held = held
        self._checkpoint = checkpoint
        self._users = user_files.Calls()
        self._calls = calls
        self._takes_memory = takes_memory
        self._call = 0 if calls is None else calls.upcoming
        """The training call of which this State is. 0: unknown."""
        self._buffer.call = self._call
        self._trained = 0
        """The newest call that has run with this State, or that was skipped with it."""
        self._held_end: Held | None = None
        """The last commit of a call that is over, until its result is kept."""
        self._world = world
        self.seal: Callable[[], None] = self.save
        """Commits uncommitted changes: the owner's own ``save``, which a user may have extended."""
        self.schedule = schedule if schedule is not None else CommitSchedule()
        self._stopping = Stopping(comms, clock, self.schedule, reporter.record)
        averaging = averaged.among(list(inventory.parts.values()))
        self._inner = None if averaging is None else averaging.inner
        """The optimizer of ranks that train alone between two averages, whose state stays in its slot; else None."""
        self._told_of_inner = False
        self._rounds = None if averaging is None else Rounds(averaging, comms)
        """Of ranks that train alone between two averages; else None."""
        if self._rounds is None:
            for part in inventory.parts.values():
                if isinstance(sampler := getattr(part, "value", None), ElasticSampler):
                    sampler.round = None  # an earlier State may have had it, whose ranks train alone
        self._importing = Importing()
        self.inbox = self._stopping.inbox
        self._steps = StepCount(self._stepped, counted=self._counted)
        self._steps.watch(self._counted_optimizer())
        self._generation = 0
        self._mark: Written | None = None
        """The live state when it was equal to the last commit, without its tensors."""
        self._rehearsal = Rehearsal()
        self._by_hand = False
        self._last_step_unreported = False
        """Whether the newest step is not in the journal, which contains a sample of the steps."""
        self._without_own = False
        """Whether the last commit came from another slot, and so has no part of this rank's own."""
        self._inherited = False
        self._recorder = (
            Recorder(_Repeated(inventory, self._steps), replayed=self._replayed, single=single.current())
            if settings.replay
            else None
        )
        """Notes the steps since the last commit, under ``run --replay``."""
        self._told_of_replay = False
        if self._recorder is not None and averaging is not None:
            raise UsageError(
                "run --replay: with elastic.LocalSGD and elastic.DiLoCo a loss takes no other rank's step back, so "
                "there is nothing to do again; leave out --replay"
            )
        self._start()

    @property
    def parts(self) -> Collection[Part]:
        """The parts of the State."""
        return self._inventory.parts.values()

    # Commit and roll back

    def save(self) -> None:
        """Take a commit. The previous one stays whole until this one is sealed."""
        self._rehearsal.end()
        if self._inherited:
            return  # an earlier process's commit is newer than anything this one has
        if self._trains_alone and self._rounds.holds_back:  # type: ignore[union-attr]
            return  # the next average is committed
        self._users.demand_none()
        if self._calls is not None:
            self._calls.settle()
        if self._calls is not None and self._trained != self._calls.number:
            self._calls.committed_beside()
        self._steps.look()  # one rank alone may save: nothing here waits for others
        self._steps.between()
        began = self.schedule.began()
        written, last = self._inventory.write(), self._buffer.record
        if last is not None and self._mark is not None and (last.step == self._steps.done or self._counts_commits()):
            # Without a step of an optimizer, only the user can have changed them.
            self._by_hand = self._by_hand or self._mark.firm_differs(written, lambda: self._last().views)
        self._take(self._next_identity(), written)
        if self._recorder is not None:
            self._recorder.committed(self._generation)
        self.schedule.made(began)
        if self._held is not None:
            saves = self._checkpoint is not None and self._held.is_requested and self._comms.rank() == 0
            instead = self._keep_files if saves else None
            self._held.committed(self._identity(), self._steps.done, instead=instead)
        if self._reporter.due("committed") and self._comms.rank() == 0:
            self._record("committed", number=self._identity().number, values=plain(self._inventory.values()))

    def commit_called(self) -> None:
        """Count a call of ``commit()`` by the training function, which has no other steps if no optimizer is known.

        Ranks do not agree after such a step whether to stop: the check within the same call waits for them, so that a
        notice takes effect there, and not one commit later.
        """
        self._rehearsal.end()
        self._users.demand_none()
        calls = self._calls
        trains = calls is None or (calls.running and self._trained == calls.number)
        if trains and self._counts_commits():
            self._steps.done += 1
            self._note_step()
            self._report_step()

    def _counts_commits(self) -> bool:
        """Whether calls of ``commit()`` are the steps, since this State has no optimizer."""
        return self._counted_optimizer() is None

    def restore(self, *, world_lost: bool) -> None:
        """Return everything to the last commit, this rank's random generators included.

        With ``world_lost``, this drops all pending operations of this world.
        """
        self._rehearsal.end()
        if world_lost and self._trains_alone:
            # What this rank has done since the last average is its own, and no other rank's loss takes it back.
            self._leave_lost_world()
            self._inventory.settle()
            return
        self._steps.look(tell=False)
        lost = self._steps.done - self._put_back_last()
        if self._recorder is not None:
            self._recorder.rolled_back(world_lost=world_lost)
        self.schedule.left_out = 0
        if world_lost:
            self._leave_lost_world()
        self._record("rolled_back", steps_lost=lost)

    def drop_steps(self) -> None:
        """Drop gradients and pending operations of steps that have begun in a world that has ended."""
        self._inventory.settle()

    def fingerprint(self) -> str:
        """Hash the shared state. The hash is equal on every rank after a sync."""
        if self._trains_alone:  # what is equal on all ranks is their last average
            record = self._last().record
            firm = self._buffer.sending()[record.loose : record.data]
            return fingerprint({"average": firm, "step": record.step})
        return fingerprint({**self._inventory.live(), "step": self._steps.done})

    def rehearse(self, train: Callable[[], object]) -> None:
        """Call the training function for one step of an optimizer that counts them itself, and put back everything
        that it changes (``rehearsal.py``). For other optimizers nothing is done."""
        steps = self._steps.own_count
        if steps is None:
            return
        before, generators = CommitBuffer(open_sides(None)), self._inventory.generators()
        contents, identity = self._contents(self._inventory.write()), Identity(0, self._incarnation, 0, 0)
        before.take(contents, identity, step=self._steps.done)
        del contents  # its tensors: while they are held, TensorFlow copies what a step writes
        with rng.untouched():
            self._rehearsal.run(train, steps=steps, watched=self._inventory.watched)
            commit = before.last()
            assert commit is not None
            self._put_back(commit)
            self._inventory.restore_generators(generators)
        self._steps.between()
        self._inventory.settle()
        if self._mark is not None:
            self._set_mark(self._inventory.write())

    # Agree

    def hosts_changed(self) -> bool:
        """Return whether the world must end here, with the same answer on all ranks. If so, everything is committed.

        Between the backward passes of one step, the answer is False until the step is done.
        """
        self._rehearsal.end()
        self._users.demand_none()
        self._status.progress += 1
        self._steps.look()
        self._steps.between()  # no check runs within `optimizer.step()`, so a step that raised has ended
        if self._steps.own_count is not None:
            # Steps are seen only here. A loss scale may skip one on some ranks alone, but all ranks check.
            self._stopping.stepped()
        if self._rounds is not None and not self._rounds.over:
            return self._ends_with_average(self._rounds)
        if not self._stopping.due() or self._within_a_step():
            return False
        if self.schedule.left_out or self._difference() is not None:
            self.seal()
        self._stopping.wait_for_all()
        self._stopping.leave()
        if self._recorder is not None:
            self._recorder.left()
        return True

    def _ends_with_average(self, rounds: Rounds) -> bool:
        """Average if that is due on this rank. Return whether the world ends with it."""
        if self._trains_alone and not rounds.followed:
            raise UsageError(
                "this loop does not average when training ends; with elastic.LocalSGD and elastic.DiLoCo wrap the "
                "training function with elastic.run"
            )
        while (asked := self._stopping.asked_here()) or rounds.due:
            if self._average(rounds, stop=asked).stop:
                self._stopping.wait_for_all()
                self._stopping.leave()
                return True
        return False

    def _average(self, rounds: Rounds, *, stop: bool, finished: bool = False) -> Average:
        """Average with the other ranks, and commit that as the outer state."""
        self._steps.between()
        average = rounds.average(step=self._steps.done, stop=stop, finished=finished)
        self._steps.done = average.step
        self.schedule.due()  # so that the launcher knows how often there is a commit
        rounds.sealing = True
        try:
            self.seal()
        finally:
            rounds.sealing = False
        self._by_hand = False
        if self._reporter.due("averaged") and self._comms.rank() == 0:
            self._record("averaged", weights=list(average.weights), stop=average.stop)
        return average

    def finish_rounds(self) -> bool:
        """Average until all ranks have finished training, after the training function has returned on this one. Return
        whether the world ends before that."""
        rounds = self._rounds
        if rounds is None or rounds.over:
            return False
        while True:
            average = self._average(rounds, stop=self._stopping.asked_here(), finished=True)
            if average.finished:
                rounds.over = True
                return False
            if average.stop:
                self._stopping.wait_for_all()
                self._stopping.leave()
                return True

    def training(self) -> AbstractContextManager[None]:
        """Context of our loop around a training function, which averages at its end."""
        return nullcontext() if self._rounds is None else self._rounds.call()

    @property
    def commits_averages(self) -> bool:
        """Whether a call of ``commit()`` commits only by an average, if that is due."""
        return self._trains_alone

    @property
    def _trains_alone(self) -> bool:
        """Whether ranks train alone between averages, in a world that has synced: a sync leaves what they have."""
        return self._rounds is not None and not self._rounds.over and self._identity().lineage != 0

    def agree_on_shares(self) -> None:
        """Let samplers whose shares follow the ranks' speed compare it with the other ranks, after a commit of all."""
        parts = self._inventory.parts.items()
        changed = shares.agree({name: part.shares for name, part in parts if part.shares is not None}, self._comms)
        for name, fields in changed.items():
            if self._comms.rank() == 0:
                self._record("shares", name=name, **fields)

    def _within_a_step(self) -> bool:
        """Whether this is between backward passes of a step; False if the script has no check elsewhere."""
        within = any(map(accumulating, self._inventory.optimizers().values()))
        return within and self._stopping.may_wait(step=self._steps.done)

    def _stepped(self) -> None:
        if self._recorder is not None:
            self._recorder.stepped()
        self._note_step()
        self._count_a_missed_deadline()
        if self._rounds is None:
            self._stopping.stepped()
        else:
            self._rounds.stepped()
        self._report_step()

    def _counted(self, steps: int) -> None:
        """Note steps of an optimizer that counts them itself. The ranks agree at the next check, and not here."""
        self._status.step = self._steps.done
        if (look := self._status.look) is not None:
            look()  # heartbeats find the same steps: they count once
        else:
            self._status.step_ended(steps=steps)
        self._stopping.counted(steps)
        self._count_a_missed_deadline()
        self._report_step()

    def _replayed(self, steps: int, former: int) -> None:
        if self._comms.rank() == 0:
            self._record("replayed", steps=steps, former=former)

    def _note_step(self) -> None:
        self._status.step = self._steps.done
        self._status.step_ended()

    def _report_step(self) -> None:
        if self._reporter.active and self._comms.rank() == 0:
            self._last_step_unreported = not self._reporter.due("stepped")
            if not self._last_step_unreported:
                self._record("stepped", values=plain(self._inventory.values()))

    def _count_a_missed_deadline(self) -> None:
        """Record once that a host will be gone before the next check, and how many steps the others then lose."""
        reason = self._stopping.newly_missed()
        if reason is not None:
            record = self._buffer.record
            lost = self._steps.done - (record.step if record is not None else 0)
            self._record("deadline_missed", steps_lost=lost, reason=reason)

    # Sync

    def sync(self) -> None:
        """Bring every rank to the newest commit that any of them holds."""
        self._rehearsal.end()
        self._stopping.drop()
        self._steps.watch(self._counted_optimizer())
        self._enter()
        before = 0 if self._calls is None else self._calls.end.last.generation  # of the call before
        candidates = exchange.candidates(
            self._buffer, self._comms,
            entered=max(self._generation, self._world() - 1, before),
            by_hand=self._by_hand, imported=self._importing.word,
            row=Row(0, 0) if self._calls is None else self._calls.row(),
            replay=self._recorder is not None,
        )  # fmt: skip
        arrived = self._meet(self._calls, candidates)
        if arrived is None:
            self.sync()
            return
        started = any(candidate.lineage for candidate in candidates)
        self._importing.settle([candidate.imported for candidate in candidates], started=started)
        election = elect(candidates)
        self._generation = election.generation
        # Processes of different launchers must give their commits the same identity.
        self._incarnation = max(candidate.incarnation for candidate in candidates)
        if self._recorder is not None and candidates[self._comms.rank()].identity != candidates[election.root].identity:
            self._recorder.forget()  # its notes are about steps after an older commit
        try:
            self._follow(election, candidates)
        except PeerLost:
            with suppress(PeerLost):  # the past may be there, and the lost rank may have been the only one with it
                arrived()
            raise
        arrived()
        self._by_hand = False
        averages = False
        if self._rounds is not None:
            self._rounds.over = False
            averages = self._rounds.enter()
        if self._settings.verify:
            self._verify(election)
        self._enter_recorder(candidates, root=election.root)
        self._stopping.enter()
        self._synced(election, candidates)
        if averages and self._rounds is not None:
            self._average(self._rounds, stop=False)

    def _enter_recorder(self, candidates: Sequence[Candidate], *, root: int) -> None:
        """Agree on what is to be done again, if all ranks note their steps."""
        noting = sum(candidate.replay for candidate in candidates)
        if self._recorder is not None and noting == len(candidates):
            self._recorder.enter(self._comms, generation=self._generation, root=root)
            return
        if self._recorder is not None:
            self._recorder.ended()
        if noting and self._comms.rank() == 0 and not self._told_of_replay:
            self._told_of_replay = True
            log.warning(
                "run --replay: %d of %d processes note their steps, as others were started by a launcher without (or "
                "with) --replay; lost steps are trained again as without it, until all are of one kind",
                noting, len(candidates),
            )  # fmt: skip

    def _enter(self) -> None:
        """Make the live state and the last commit equal. If weights differ, the user has changed them, and no step."""
        if self._buffer.catch_up():
            self._by_hand = False
            return self._inherit(handed_over=True)
        if self._inherited:
            return self._inherit()
        if self._trains_alone:
            return None
        difference = self._difference()
        if difference is not None:
            self.seal()
        self._by_hand |= difference == "tensors"
        return None

    def _has_own_commit(self) -> bool:
        """Whether an earlier process of the same program has left a commit in this memory, or one was handed over."""
        commit = self._buffer.last()
        if commit is None or not self._is_of_this_call(commit.record.call):
            return False
        if commit.record.stored or not commit.local:
            return True  # the user has named the checkpoint or its job, or the commit was handed over
        if rng.read_rank_local(commit).program != self._program:
            log.warning("the commit in this slot is of another script, or of other arguments; training starts over")
            return False
        return True

    def _begin(self) -> None:
        """Take the first commit, before the first sync gives it a lineage."""
        record, end = self._buffer.record, None if self._calls is None else self._calls.end
        if record is None or not 0 < record.call < self._call:
            self._buffer.forget()  # but the end of the last call stays until the world of this one has a commit
        if end is None or self._call <= 1:
            self._take(Identity(0, self._settings.incarnation, 0, 0))
            return
        # Commits of a call are newer than those of the call before, also of members that a later launcher had started.
        incarnation = max(self._settings.incarnation, end.last.incarnation)
        self._take(Identity(0, incarnation, end.last.generation, end.last.number + 1))

    def _is_of_this_call(self, call: int) -> bool:
        """Whether a commit of a call is one of this State; checkpoints of earlier versions do not know."""
        return not self._call or call == self._call or (not call and self._call == 1)

    def _inherit(self, *, handed_over: bool = False) -> None:
        """Continue from the commit of an earlier process of this slot, or of another slot."""
        if self._recorder is not None:
            self._recorder.forget()
        record = self._buffer.record
        self._without_own = record is not None and not record.local
        try:
            notes = rng.read_rank_local(self._last()).steps
            self._put_back_last()
        except Permanent as error:
            if record is not None and record.stored:
                raise StateError(
                    f"the checkpoint is not of this program's State: {error}; "
                    "name another --checkpoint-dir to start from the beginning, or resume with the code that made it"
                ) from error
            if handed_over or self._without_own:
                raise StateError(
                    f"the job's newest commit is not of this program's State: {error}; "
                    "build the same State on every rank"
                ) from error
            log.warning("the commit of this slot's last process does not fit, training starts over: %s", error)
            self._begin()
            return
        finally:
            self._inherited = False
        self._generation = self._identity().generation
        if self._recorder is not None:
            self._recorder.take_up(notes, step=self._steps.done, generation=self._generation)
        self._record("inherited", number=self._identity().number)

    def _follow(self, election: Election, candidates: list[Candidate]) -> None:
        mine, is_root = candidates[self._comms.rank()], self._comms.rank() == election.root
        newcomer = mine.lineage == 0 and any(candidate.lineage for candidate in candidates)
        if (newcomer or self._without_own) and self._keep_rng:
            seed = rng.seed_newcomer(election.lineage, election.generation, self._comms.rank())
            self._inventory.seed_generators(seed)
        if self._without_own:
            self._add_own()
        root = candidates[election.root]
        if self._trains_alone and (mine.identity, mine.step) == (root.identity, root.step):
            self._keep_inner(election, root)
            return
        if election.send is Send.ALL and is_root:
            exchange.send_all(self._buffer, self._comms, root=election.root)
            self._buffer.relabel(self._identity()._replace(lineage=election.lineage))
        elif election.send is Send.ALL:
            self._receive(election, candidates[election.root])
        elif election.send is Send.LOOSE:
            self._receive_loose(election, candidates[election.root])
        if is_root or election.send is Send.NOTHING:
            self._put_back(self._last(), only_reloaded=True)
        self._finish_sync()
        if self._rounds is not None:
            self._rounds.begin()

    def _keep_inner(self, election: Election, root: Candidate) -> None:
        """Take part in a sync without a change here, among ranks that train alone. Newcomers get the outer state."""
        if election.send is Send.ALL and self._comms.rank() == election.root:
            exchange.send_all(self._buffer, self._comms, root=election.root)
        elif election.send is Send.ALL:
            try:
                exchange.receive_all(self._buffer, self._comms, root=election.root, record=root.record, local=0)
            finally:
                self._buffer.release_sides()
        elif election.send is Send.LOOSE:  # others may take them
            exchange.exchange_loose(self._buffer, self._comms, root=election.root, record=root.record)
        self._inventory.adapt()
        self._inventory.settle()
        self._steps.between()

    def _add_own(self) -> None:
        """Add this rank's present random generators to a handed-over commit, so that a roll-back restores them."""
        record = self._buffer.record
        if record is not None and record.local:  # of another process, from before the generators were seeded
            self._take(record.identity)
        else:
            self._buffer.complete(self._local())
        self._without_own = False

    def _receive(self, election: Election, root: Candidate) -> None:
        record, local = root.record, self._local()
        try:
            exchange.receive_all(self._buffer, self._comms, root=election.root, record=record, local=len(local))
            self._buffer.received(record, local, lineage=election.lineage, beside=self._beside())
        finally:
            self._buffer.release_sides()
        self._put_back(self._last())
        self._steps.done = record.step

    def _receive_loose(self, election: Election, root: Candidate) -> None:
        loose, tree = exchange.exchange_loose(self._buffer, self._comms, root=election.root, record=root.record)
        if self._comms.rank() == election.root:
            return
        commit = self._last()
        views = [
            view if firm else place.view(loose)
            for place, firm, view in zip(commit.layout.places, commit.layout.firm, commit.views, strict=True)
        ]
        self._inventory.put_back(tree, commit.layout, views=views)
        self._take(self._identity())

    def _finish_sync(self) -> None:
        """Run the user's own syncs and drop the remains of the interrupted step, on every rank and on the root too."""
        if self._inventory.sync_users():
            self._take(self._identity())
        self._inventory.settle()
        self._steps.between()
        self._set_mark(self._inventory.write())

    def _verify(self, election: Election) -> None:
        if exchange.same_everywhere(self.fingerprint(), self._comms):
            return
        raise StateError(
            f"ranks differ after a sync ({election.reason}): something changes shared state on one rank alone; "
            "average it over the ranks, or keep it outside the State"
        )

    def _synced(self, election: Election, candidates: list[Candidate]) -> None:
        self._status.committed(self._steps.done, self._identity())
        if not self._reporter.active or self._comms.rank() != 0:
            return
        record = candidates[election.root].record
        sent = {Send.ALL: record.shared, Send.LOOSE: record.loose + record.tree, Send.NOTHING: 0}[election.send]
        self._record(
            "synced",
            values=plain(self._inventory.values()),
            root=election.root, sent_bytes=sent if self._comms.size() > 1 else 0, reason=election.reason,
        )  # fmt: skip

    def returned(self) -> None:
        """Commit the final state of the training function, for the job's last checkpoint.

        If the commit fails, that checkpoint is lost, but the finished training is not. Also write the last step to the
        journal.
        """
        self._end_training(changed_only=False)

    def left(self) -> None:
        """The same for a script that ends within the training function, with exit code 0, if anything has changed since
        the last commit: if the other ranks do not end, this commit is newer than theirs.
        """
        self._end_training(changed_only=True)

    def _end_training(self, *, changed_only: bool) -> None:
        self._steps.look(tell=False)
        self._stopping.training_ended()
        self._held_end = None
        if self._last_step_unreported and self._comms.rank() == 0:
            self._last_step_unreported = False
            self._record("stepped", values=plain(self._inventory.values()))
        is_last = self._held is not None and self._settings.last_commit
        if not is_last and (self._calls is None or self._difference() is None):
            self._held_end = None if self._calls is None else self._buffer.hold()
            return
        try:
            if not changed_only or self._difference() is not None:
                self.seal()
        except Exception as error:  # a user's own save may raise anything
            log.exception("the final state of training is not committed; the job's last checkpoint is older")
            self._record(
                "not_sealed", reason=f"the last commit failed: {type(error).__name__}: {error}"[:LONGEST_REASON]
            )
            return
        self._held_end = self._buffer.hold()
        if is_last and self._held is not None and self._checkpoint is not None and self._comms.rank() == 0:
            failed = self._held.last(self._identity(), self._steps.done, instead=self._keep_files)
            if failed is not None:
                self._record("not_sealed", reason=failed[:LONGEST_REASON])

    def _leave_lost_world(self) -> None:
        self._stopping.leave()
        self._lost_world()

    def ended(self) -> None:
        """Note the end of training. Another training may use its optimizer, so later steps start no reduction."""
        self._stopping.drop()
        if self._recorder is not None:
            self._recorder.ended()

    # Calls

    def begin_call(self) -> None:
        """Note that the present call runs with this State: its commits are in the slot's memory from now on."""
        calls = self._calls
        if calls is None:
            return
        self._status.averages = self._rounds is not None
        continues = 0 < self._trained == calls.number - 1
        taken, self._call = self._takes_memory(), calls.number
        if taken is not None:
            self._memory, self._held, self.schedule = taken
            self._stopping.follow(self.schedule)
        self._buffer.call = self._call
        if not self._trained:
            self._steps.done += calls.end.step
        elif not continues:  # other States have trained since
            self._steps.done = max(self._steps.done, calls.end.step)
        if taken is not None:
            self._start()
        elif not (continues or self._inherited or self._call == 1):
            self._begin()
        self._trained = self._call

    def leave_memory(self) -> None:
        """Give up the slot's memory: another State has it. Commits of this one end with this process."""
        if self._held_end is not None and self._buffer.can_keep:
            self._held_end.protect()
        self._memory, self._held, self._inherited = None, None, False

    @property
    def end(self) -> End | None:
        """Where the present call is, and what trains next counts on from; None if it has not begun with this State."""
        record = self._buffer.record
        if self._calls is None or self._trained != self._calls.number or record is None:
            return None
        before = self._calls.end
        last = max(before.last, record.identity, key=lambda identity: identity[1:])
        return End(max(before.step, self._steps.done, record.step), last)

    @property
    def is_first_rank(self) -> bool:
        """Whether this process has rank 0."""
        return self._comms.rank() == 0

    def left_by(self, value: object) -> Left:
        """What the present call has left behind, which has returned ``value``."""
        assert self._calls is not None
        held, unfit, can_keep = self._held_end, "", self._buffer.can_keep
        if held is None:
            unfit = "its last commit has failed"

        def content() -> Content:
            assert held is not None
            return Content(held.record, held.bytes)

        def protect() -> bool:
            if held is not None and can_keep:
                held.protect()
            return held is not None and can_keep

        left = left_by(
            self._calls.number, value, step=self._steps.done, last=self._identity(),
            content=None if held is None else content, keep_rng=self._keep_rng,
            release=(lambda: None) if held is None else held.release, protect=protect,
        )  # fmt: skip
        return left if not unfit else left._replace(value=None, unfit=unfit)

    def skip_call(self, finished: Finished) -> None:
        """Get the content of a call that is over, as if it had run with this State."""
        content = finished.content
        self._inherited = False
        if content.head.has_state:
            layout = layouts.decode(bytes(content.layout))
            data = torch.empty(0, dtype=torch.uint8)
            if content.data:
                data = torch.frombuffer(content.data, dtype=torch.uint8)
            try:
                self._inventory.put_back(bytes(content.tree), layout, views=layout.views(data))
            except Permanent as error:
                raise StateError(
                    f"the result of call {finished.call} is not of this program's State: {error}; "
                    "run the same code on every rank"
                ) from error
        self._steps.done = finished.step
        self._steps.between()
        self._inventory.settle()
        if self._rounds is not None:
            self._rounds.begin()
        if self._keep_rng:
            rng.restore(finished.generators)
        self._trained = finished.call
        self._mark = None
        self._record("call_skipped", call=finished.call)

    def _start(self) -> None:
        """Continue from the commit in the buffer, or begin with the live state."""
        self._inherited = self._has_own_commit()
        if self._inherited:
            self._buffer.relabel(self._identity())  # as this process's own: a hand-over does not overwrite it
        else:
            self._begin()
        self._prepare()

    def _meet(self, calls: Calls | None, candidates: list[Candidate]) -> Callable[[], None] | None:
        """Meet the other ranks' calls. Return what to call after the sync; None if the ranks have to sync again."""
        if calls is None:
            return lambda: None
        arrived = calls.met([candidate.row for candidate in candidates], self._comms)
        self._end_kept(calls)
        return arrived

    def _lost_world(self) -> None:
        if self._calls is not None:
            self._calls.lost_world()
            self._end_kept(self._calls)

    def _end_kept(self, calls: Calls) -> None:
        if self._held_end is not None and not calls.unkept:
            self._held_end = None

    # Changes by the user

    def load(self, source: Source, names: Names) -> bool:
        """Start from an earlier checkpoint. Return False if this rank has a newer commit, or if the file does not exist
        here."""
        if self._generation:
            raise UsageError("load_checkpoint comes before training; call it before train(state)")
        if self._inherited:
            log.warning("%s is not loaded: training goes on after step %d", named(source), self._last().record.step)
        elif self._importing.take(source, self._inventory, names):
            self._steps.between()  # the file may have another count
            self.seal()
            return True
        return False

    def values(self) -> dict[str, Any]:
        """The plain values, live."""
        return self._inventory.values()

    @property
    def names(self) -> frozenset[str]:
        """Names of the attributes that are kept."""
        return self._inventory.names

    def assigning(self, name: str, value: object) -> bool:
        """Prepare for an assignment to an attribute. Return whether to call :meth:`assigned` after it."""
        return self._inventory.assigning(name, value)

    def assigned(self) -> None:
        """Note that an attribute of the State is another object now. Commit it at once, as Horovod does."""
        self._steps.watch(self._counted_optimizer())
        self.save()

    def optimizers_changed(self) -> None:
        """Count the steps of the new optimizer, after the State of a mixin has replaced it."""
        self._steps.watch(self._counted_optimizer())

    # Inside

    @property
    def _buffer(self) -> CommitBuffer:
        """The memory of this State's commits: the slot's, or its own."""
        if self._memory is None:  # another State has the slot's
            self._memory = CommitBuffer(open_sides(None))
            self._memory.call = self._call
            self._take(Identity(0, self._settings.incarnation, self._generation, 0))
        return self._memory

    def _prepare(self) -> None:
        """Warn if there is too little memory, and allocate it now: later, training or other ranks would wait for it."""
        record = self._buffer.record
        assert record is not None
        expected = record.total + self._buffer.beside_length + self._inventory.expected_bytes()
        copies = 2 if self._held is None else 3
        warning = memory_warning(commit_bytes=expected, copies=copies, processes=self._settings.local_size)
        if warning is not None:
            log.warning("%s", warning)
            self._record("memory", needed=expected, reason=warning)
        if expected >= WORTH_PREPARING:
            self._buffer.prepare(expected, besides=self._inventory.make_ready())

    def _keep_files(self) -> int:
        """Keep the files that the user's function saves, in place of the newest commit."""
        assert self._checkpoint is not None
        with self._users.of("save"), user_files.written(self._checkpoint, self._local()) as contents:
            return self._buffer.keep_instead(contents, self._identity(), step=self._steps.done)

    def _take(self, identity: Identity, written: Written | None = None) -> None:
        if self._held_end is not None:
            self._held_end.copy()  # the State goes on before the result of its last call is kept
        written = written or self._inventory.write()
        self._buffer.take(self._contents(written), identity, step=self._steps.done)
        self._status.committed(self._steps.done, self._identity())
        self._set_mark(written)

    def _contents(self, written: Written) -> Contents:
        return Contents(written.tree, written.tensors, written.firm, self._local, self._beside())

    def _beside(self) -> Beside | None:
        """What stays in this slot with the commit: the state of an optimizer that steps between two averages. None also
        if it cannot be stored: no average depends on it."""
        if self._inner is None:
            return None
        tensors: list[torch.Tensor] = []
        try:
            text = write_one("optimizer", self._inner.state(), tensors)
        except StateError as error:
            if not self._told_of_inner:
                log.warning("a process that is started again here begins with a fresh inner optimizer: %s", error)
            self._told_of_inner = True
            return None
        return Beside(trees.encode_value(text), tensors)

    def _put_back_beside(self) -> None:
        """Restore it, if this slot has it for the last commit; else the live one stays."""
        if self._inner is None:
            return
        try:
            if (beside := self._buffer.beside()) is not None:
                views = beside.tensors
                self._inner.put_back_state(read.read(trees.decode_value(beside.tree), lambda index, _: views[index]))
        except (StateError, LookupError, RuntimeError, TypeError, ValueError) as error:
            log.warning("the inner optimizer's state of this slot does not fit, and is left out: %s", error)

    def _local(self) -> bytes:
        inventory = self._inventory
        return rng.write_rank_local(
            self._program, keep_rng=self._keep_rng, of_parts=inventory.generators, descriptions=inventory.descriptions,
            steps=None if self._recorder is None else self._recorder.notes(self._generation),
        )  # fmt: skip

    def _set_mark(self, written: Written) -> None:
        self._mark = replace(written, tensors=())

    def _difference(self) -> Difference | None:
        """Return what has changed since the last commit; None if nothing has."""
        written = self._inventory.write()
        return "tensors" if self._mark is None else self._mark.difference(written, self._last().views)

    def _last(self) -> Commit:
        commit = self._buffer.last()
        assert commit is not None
        return commit

    def _identity(self) -> Identity:
        record = self._buffer.record
        assert record is not None
        return record.identity

    def _next_identity(self) -> Identity:
        last = self._identity()
        return Identity(last.lineage, self._incarnation, self._generation, last.number + 1)

    def _put_back_last(self) -> int:
        """Restore everything from the last commit. Return the number of steps before it."""
        commit = self._last()
        files, parts = commit.record.stored and user_files.are_in(commit), None
        with commit.copying() as copy_to:  # the device copies while this process does the rest
            if files:
                with self._users.of("load"):
                    user_files.take_back(self._checkpoint, commit)
                self._by_hand = True  # each rank keeps its own value for what `load` does not restore
            else:
                parts = self._inventory.put_back(commit.tree, commit.layout, views=commit.views, copy_to=copy_to)
            states = rng.read_rank_local(commit).states
            if self._keep_rng and states is not None:
                rng.restore(states)
                self._inventory.restore_generators(states.get(rng.PARTS, {}))
            self._put_back_beside()
            self._steps.done = commit.record.step
            self._status.committed(self._steps.done, self._identity())
            self._steps.between()
            self._inventory.settle()
            self._set_mark(self._inventory.write(parts))
        if self._rounds is not None:
            self._rounds.begin()
        if files:
            self._take(commit.record.identity)  # from here on it is a commit like any other
        return commit.record.step

    def _put_back(self, commit: Commit, *, only_reloaded: bool = False) -> None:
        self._inventory.put_back(commit.tree, commit.layout, views=commit.views, only_reloaded=only_reloaded)

    def _counted_optimizer(self) -> Any:
        """The optimizer whose steps are the job's steps: the one called ``optimizer``, else the first."""
        if self._rounds is not None:
            return self._rounds.inner
        optimizers = self._inventory.optimizers()
        return optimizers.get("optimizer", next(iter(optimizers.values()), None))

    def _record(self, event: str, **fields: Any) -> None:
        if self._reporter.active:
            where = {"rank": self._comms.rank(), "size": self._comms.size(), "world": self._generation}
            call = {"call": self._call} if self._call else {}
            self._reporter.record(event, step=self._steps.done, **{**where, **call, **fields})
