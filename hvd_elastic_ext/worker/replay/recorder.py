"""Notes what each step depends on, and lets a lost step run again as it was, also in a smaller world.

The script's own loop executes it. :class:`~hvd_elastic_ext.worker.data.global_batches.GlobalBatches` gives a survivor
its own micro-batches of that step, and then those of lost ranks. Before each rank's part the generators are seeded as
that rank had them; gradients of the parts are added up apart from one another, as an allreduce does; buffers, such as
those of batch normalisation, and generators end as they were after the survivor's own part. The optimizer's step, which
the script calls next, averages the sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hvd_elastic_ext.core.errors import StateError, UsageError
from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.comms import horovod as with_horovod
from hvd_elastic_ext.worker.optim.averaging import Averaged, forget_reductions
from hvd_elastic_ext.worker.optim.ddp import ElasticDDP
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.replay import history, notes
from hvd_elastic_ext.worker.replay.history import History
from hvd_elastic_ext.worker.replay.notes import Deal, Lanes, Run, Runs, World
from hvd_elastic_ext.worker.replay.single import Samples, Single

log = logging.getLogger(__name__)

_INT63: Final = (1 << 63) - 1


class Contents(Protocol):
    """What the recorder needs of a State."""

    def optimizers(self) -> Mapping[str, Any]:
        """Its optimizers, by name."""

    def models(self) -> Mapping[str, nn.Module]:
        """Its models, by name."""

    def samplers(self) -> Mapping[str, Any]:
        """Its samplers and streams, by name."""

    def generators(self) -> Sequence[torch.Generator]:
        """Its random generators, which have the same states on all ranks."""

    def steps(self) -> int:
        """The steps that lead to its present content."""


class Recorder:
    """The notes of one State since its last commit, and the lost steps that are still to be done again.

    ``replayed`` is called when the last of them is done, with their number and the size of the world that lost them.
    ``single``: the one step that this process is to execute, for ``hvd-elastic replay``; None in a job.
    """

    def __init__(
        self, contents: Contents, *, replayed: Callable[[int, int], None], single: Single | None = None
    ) -> None:
        self._contents = contents
        self._replayed = replayed
        self.single = single
        """See above. Its functions end this process when the step is done, and before anything else is."""
        self._active = False
        """Whether a training function runs with this State, in a world."""
        self._seed: int | None = None
        """From which the seeds of all steps are made; the same on all ranks, for the whole job."""
        self._done: list[Run] = []
        """The steps since the last commit."""
        self._history: History | None = None
        """The steps before it; None until that is known."""
        self._left: Runs = ()
        """The steps that were lost, from the last commit on, without those that are done again."""
        self._again = 0
        """The steps that are done again since they were lost."""
        self._places: dict[int, int] = {}
        """This process's rank in each world, by its generation."""
        self._parts: dict[int, tuple[tuple[int, ...], int]] = {}
        """The ranks of earlier worlds, by generation, whose parts of a step this process takes; and the most parts that
        one of the present ranks takes."""
        self._names: dict[int, str] = {}
        """The names of samplers and streams in the State, by identity."""
        self._buffers: list[Tensor] | None = None
        """The buffers of the models as this rank had them at the last commit, if steps since then were lost."""
        self._open: RecordedStep | None = None
        self._in_order = False
        """Whether the script has used each micro-batch of a step before it asked for the next."""
        self._generation, self._rank, self._size = 0, 0, 1
        self._optimizers: list[Any] = []
        self._watched: WeakSet[Any] = WeakSet()
        """The optimizers whose steps are known to come after the loop over micro-batches."""

    def __reduce__(self) -> Any:
        """A copy of a sampler or stream, such as that of a loader process, notes nothing."""
        return type(None), ()

    # For what gives steps their samples

    def lost(self, source: object, most: int) -> list[Deal]:
        """Return the next steps that have to be done again, in order, and ``most`` at most: none after the first one
        with other samples than those of ``source``."""
        name = self._names[id(source)]
        found = takewhile(lambda run: run.world.source == name, notes.each(self._left))
        return [Deal(run, self._size, *self._parts[run.world.generation]) for run in islice(found, most)]

    def world(
        self,
        source: object,
        *,
        rows: tuple[int, ...] | None,
        lanes: Lanes | None = None,
        total: int = 0,
        largest: int | None = None,
    ) -> World:
        """Return the present world, for steps with samples of ``source``. ``rows``: its shares; None: equal ones.
        ``lanes`` of a stream, ``total`` and ``largest`` of global batches: see :class:`~notes.World`."""
        return World(self._generation, self._size, rows, self._names[id(source)], lanes, total, largest)

    def step(self, world: World, *, at: int = 0, place: tuple[int, int] = (0, 0)) -> RecordedStep:
        """Return the next step, of the present world. ``at``: its number in the assignment of a stream. ``place``: the
        epoch of a sampler, and how many of its samples are left."""
        return RecordedStep(self, Run(world, (), 1, at), None, starts=(0,), place=place)

    def again(
        self, deal: Deal, starts: Sequence[int], *, samples: Samples, place: tuple[int, int] = (0, 0)
    ) -> RecordedStep:
        """Return the next step, which was lost. ``starts``: the numbers of the first micro-batches of each part.
        ``samples`` returns those of each part."""
        return RecordedStep(self, deal.run, deal, starts=starts, place=place, samples=samples)

    def settle(self) -> None:
        """Note the end of the step under way: the script asks for the next one."""
        self._close()

    # For the State

    def stepped(self) -> None:
        """Note that a step of the optimizer has ended. Raises :class:`UsageError` if its samples are not known, or a
        lost one could not be done again by the same loop."""
        if not self._active:
            return
        if self._open is None:
            raise UsageError(
                "run --replay: this step took its samples from elsewhere than the steps of elastic.GlobalBatches or "
                "ElasticStream, with its sampler or stream in the State, so it could not be done again as it was; "
                "iterate over steps(loader), or leave out --replay"
            )
        self._demand_after_loop()
        if not self._in_order and self._open.out_of_order:
            raise UsageError(
                "run --replay: use each micro-batch of a step, with its backward pass, before you ask for the next: "
                "before each one the random generators are set, and gradients are taken away"
            )
        self._in_order = True
        self._open.stepped = True

    def _demand_after_loop(self, *_: Any) -> None:
        """Raise :class:`UsageError` if an optimizer has stepped within the loop over a step's micro-batches."""
        if self._active and self._open is not None and not self._open.done:
            raise UsageError(
                "run --replay: call optimizer.step() after the loop over a step's micro-batches: a lost step may have "
                "more of them"
            )

    def notes(self, generation: int) -> str | None:
        """Return the notes that a commit of this world takes along now; None if this State is not recorded."""
        if self._seed is None or self._history is None:
            return None
        step = self._open
        last = [replace(step.run, rates=step.rates)] if step is not None and (step.stepped or step.done) else []
        return self._history.after([*self._done, *last], generation=generation).encode(
            self._seed, step=self._contents.steps()
        )

    def take_up(self, text: str | None, *, step: int, generation: int) -> None:
        """Note that this process goes on from a commit after ``step`` steps, made in the world ``generation``, with
        these notes; None: it has none. Those of another commit do not count: memory may hold a commit with an older
        part of its rank."""
        if self.single is not None:
            self._seed, self._left = self.single.begin()
        elif text is not None:
            try:
                found, head = history.decode(text)
            except (ValueError, TypeError, LookupError) as error:
                log.warning("run --replay: the notes of a commit cannot be read: %r", error)
                return
            if head.step == step and head.leads_through(generation, head.at):
                self._history, self._seed = found, head.seed

    def committed(self, generation: int) -> None:
        """Note a commit of this world: what was done before it is not lost any more."""
        self._close()
        if self._history is not None:
            self._history = self._history.after(self._done, generation=generation)
        if self._done:
            self._done, self._buffers = [], None

    def rolled_back(self, *, world_lost: bool) -> None:
        """Note that everything is as it was at the last commit. With ``world_lost``, what was done since then is to be
        done again; without it, the script itself has dropped that."""
        self._close(only_stepped=True)
        done = [run for run in self._done if world_lost or run.world.generation != self._generation]
        self._left, self._done, self._again = notes.joined([*done, *self._left]), [], 0
        if world_lost:
            self.left()
        if world_lost and self._buffers is None:
            self._buffers = [buffer.detach().clone() for buffer in self._live_buffers()]

    def left(self) -> None:
        """Note that this process has left its world. Until it has entered the next one nothing is noted: callbacks may
        step, too."""
        self._active = False

    def forget(self) -> None:
        """Note that this process goes on from another commit than its own."""
        if self._open is not None:
            self._open.undo()
        self._open, self._buffers = None, None
        self._done, self._left, self._history = [], (), None

    def ended(self) -> None:
        """Note the end of training."""
        self._close()
        self.forget()
        self._active = False
        for sampler in self._contents.samplers().values():
            if sampler.recorder is self:
                sampler.recorder = None
        if self.single is not None:
            self.single.training_ended()

    def enter(self, comms: Comms, *, generation: int, root: int) -> None:
        """Agree with the other ranks of a new world, which hold the same commit now, on what is to be done again.

        ``root``: the rank that had this commit. Raises :data:`~hvd_elastic_ext.worker.comms.PeerLost` if a rank is lost
        meanwhile, and :class:`UsageError` for a State whose steps cannot be done again. One without an optimizer, such
        as that of an evaluation, is not recorded.
        """
        if self.single is not None:
            self.single.demand_begun()
            self.single.models = self._contents.models
        self._optimizers = list(self._contents.optimizers().values())
        if not self._optimizers:
            if comms.rank() == 0:
                log.warning("run --replay: this State has no optimizer, so its steps are not noted")
            self.ended()
            return
        self._demand_repeatable()
        for optimizer in self._optimizers:
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                optimizer.register_step_post_hook(self._demand_after_loop)
                if self.single is not None:
                    self.single.watch(optimizer, partial(_parameters_of, optimizer))
        if self._open is not None:
            self._open.undo()
        self._open, self._done = None, []
        rank, size = comms.rank(), comms.size()
        mine = notes.encode(self._left)
        at = 0 if self._history is None else self._history.at
        table = torch.zeros(size, 5, dtype=torch.int64)
        first = torch.initial_seed() & _INT63 if self._seed is None else self._seed
        table[rank] = torch.tensor([notes.count(self._left), len(mine), self._seed is not None, first, at])
        comms.sum(table, name="replay.steps")
        lengths, knows, seeds = table[:, 0].tolist(), table[:, 2].tolist(), table[:, 3].tolist()
        from_rank = lengths.index(max(lengths))
        left = self._sent(comms, mine, root=from_rank, length=int(table[from_rank, 1])) if max(lengths) else ()
        parts = self._shared_out(comms, [run.world for run in left])
        self._seed = seeds[knows.index(1) if 1 in knows else root]
        if self._history is None or self._history.at != int(table[root, 4]):
            self._history = History(int(table[root, 4]))  # this process was not there, and has another's commit now
        self._left, self._parts = left, parts
        self._generation, self._rank, self._size = generation, rank, size
        self._places = {run.world.generation: self._places.get(run.world.generation, -1) for run in left}
        self._places[generation] = rank
        samplers = self._contents.samplers()
        self._names = {id(sampler): name for name, sampler in samplers.items()}
        for sampler in samplers.values():
            sampler.recorder = self
        if not left:
            self._buffers = None  # those of the next loss are other ones
        elif self._buffers is not None:
            self._put_back(self._buffers)
        self._active = True

    # Inside

    def _sent(self, comms: Comms, mine: bytes, *, root: int, length: int) -> Runs:
        data = torch.zeros(length, dtype=torch.uint8)
        if comms.rank() == root:
            data = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        comms.broadcast(data, root=root, name="replay.notes")
        try:
            return notes.decode(data.numpy().tobytes())
        except (ValueError, TypeError, LookupError) as error:
            raise StateError(f"the notes of rank {root} about lost steps cannot be read: {error!r}") from error

    def _shared_out(self, comms: Comms, worlds: Sequence[World]) -> dict[int, tuple[tuple[int, ...], int]]:
        """Return which ranks of earlier worlds this process stands for, and the most that one stands for, by
        generation."""
        sizes = {world.generation: world.size for world in worlds}
        if not sizes:
            return {}
        table = torch.zeros(comms.size(), len(sizes), dtype=torch.int64)
        table[comms.rank()] = torch.tensor([self._places.get(generation, -1) + 1 for generation in sizes])
        comms.sum(table, name="replay.places")
        shared = {}
        for (generation, size), column in zip(sizes.items(), table.T.tolist(), strict=True):
            parts = notes.deal([place - 1 if place else None for place in column], size)
            shared[generation] = parts[comms.rank()], max(map(len, parts))
        return shared

    def _demand_repeatable(self) -> None:
        """Raise :class:`UsageError` for what averages otherwise than by the step of a wrapped optimizer."""
        for name, optimizer in self._contents.optimizers().items():
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise UsageError(
                    f"run --replay: state.{name} ({type(optimizer).__name__}) is not an optimizer of torch, and only "
                    "their steps are repeated; leave out --replay"
                )
            # Horovod's optimizer for Adasum has no op at all.
            averages = isinstance(optimizer, Averaged) or getattr(optimizer, "op", None) == with_horovod.AVERAGE
            if not with_horovod.is_wrapped(optimizer):
                raise UsageError(
                    f"run --replay: state.{name} ({type(optimizer).__name__}) does not average gradients; wrap it by "
                    "hvd.DistributedOptimizer or elastic.wrap, in place of DDP, or leave out --replay"
                )
            if not averages:
                raise UsageError(f"run --replay: state.{name} has another op than hvd.Average; leave out --replay")
        for model in self._contents.models().values():
            if isinstance(model, DistributedDataParallel | ElasticDDP):
                raise UsageError(
                    "run --replay: DDP averages in each backward pass, and a lost step has more of them on some ranks; "
                    "give the model itself, and wrap the optimizer by elastic.wrap, or leave out --replay"
                )
            for path, module in model.named_modules():
                if "SyncBatchNorm" in type(module).__name__:
                    raise UsageError(
                        f"run --replay: {path or 'the model'} is a {type(module).__name__}, whose forward passes need "
                        "all ranks at once, and lost ones are gone; take BatchNorm, or leave out --replay"
                    )

    def begin(self, step: RecordedStep) -> None:
        """Note that a step has begun."""
        self._close()
        if self.single is not None:
            self.single.demand_recorded(step.run if step.deal is not None else None)
        if step.deal is None and self._left:
            self._drop_left()
        self._open = step
        if self.single is not None:
            self.single.step_begins(step.run, step.samples, self._contents.steps() + 1)

    def _drop_left(self) -> None:
        """The script does other steps than those that were lost, so later ones have nothing to do with them."""
        if self._rank == 0:
            log.warning(
                "run --replay: %d lost steps are not done again, as the script does other ones now: with samples of "
                "another sampler, or in global batches of another size",
                notes.count(self._left),
            )
        self._left, self._again = (), 0

    def _close(self, *, only_stepped: bool = False) -> None:
        """Note the end of the step under way, if it has ended; then its samples are consumed. ``only_stepped``: only
        a step of the optimizer counts."""
        step, self._open = self._open, None
        if step is None:
            return
        if self.single is not None:
            self.single.step_ended(stepped=step.stepped)
        step.undo()
        if not (step.stepped or (step.done and not only_stepped)):
            return
        notes.add(self._done, replace(step.run, rates=step.rates))
        if step.deal is None or not self._left:
            return
        self._left, self._again = notes.without_first(self._left), self._again + 1
        if not self._left:
            self._replayed(self._again, step.run.world.size)
            self._again = 0

    def seed(self, rank: int, *, place: tuple[int, int]) -> None:
        """Seed the generators for a rank's part of the present step. ``place``: where its samples begin."""
        assert self._seed is not None
        rng.seed(notes.seed(self._seed, step=self._contents.steps(), rank=rank, place=place))

    @property
    def rank(self) -> int:
        """This process's rank in the present world."""
        return self._rank

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers of the State."""
        return self._optimizers

    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def gradients(self) -> list[tuple[Tensor, int] | None]:
        """The gradients of all parameters, and how often each was changed."""
        parameters = [parameter for group in self.groups() for parameter in group["params"]]
        return [None if (grad := parameter.grad) is None else (grad, grad._version) for parameter in parameters]

    @property
    def in_order(self) -> bool:
        """Whether the script is known to use each micro-batch before it asks for the next."""
        return self._in_order

    def keep(self) -> Callable[[], None]:
        """Return a function that returns generators and buffers to what they are now."""
        states, buffers = rng.capture(), [buffer.detach().clone() for buffer in self._live_buffers()]
        own = self.keep_generators()

        def back() -> None:
            rng.restore(states)
            own()
            self._put_back(buffers)

        return back

    def keep_generators(self) -> Callable[[], None]:
        """The same for the generators in the State only."""
        states = [(generator, generator.get_state()) for generator in self._contents.generators()]

        def back() -> None:
            for generator, state in states:
                generator.set_state(state)

        return back

    def _live_buffers(self) -> list[Tensor]:
        return [buffer for model in self._contents.models().values() for buffer in model.buffers()]

    def _put_back(self, buffers: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for live, kept in zip(self._live_buffers(), buffers, strict=True):
                live.copy_(kept)


class RecordedStep:
    """One step: of this rank alone, or a lost one with the parts of several ranks."""

    def __init__(
        self,
        recorder: Recorder,
        run: Run,
        deal: Deal | None,
        *,
        starts: Sequence[int],
        place: tuple[int, int],
        samples: Samples = tuple,
    ) -> None:
        lanes = run.world.lanes
        self.run = run
        self.deal = deal
        self.done = False
        """Whether all its micro-batches were used."""
        self.stepped = False
        """Whether the optimizer has stepped since it began."""
        self.rates: tuple[float, ...] = ()
        self.out_of_order = False
        """Whether a micro-batch had no backward pass before the next one was asked for. It is seen only until a script
        has done a step in order."""
        self.samples = samples
        self._recorder = recorder
        self._starts = starts
        self._place = place if lanes is None else (lanes.epoch, run.at)
        self._before: list[tuple[Tensor, int] | None] | None = None
        """The gradients before the present micro-batch, if it must change them."""
        self._undo: list[Callable[[], None]] = []
        self._sums: dict[Tensor, Tensor] = {}
        """The gradients of the parts that are done, by parameter, if there are several."""
        self._at_begin: Callable[[], None] = _nothing
        """Returns generators in the State to what they were when the step began: all ranks begin with the same ones."""
        self._padding = False
        """Whether the present part has weight 0, so that this rank makes as many passes as the others."""
        self._own: Callable[[], None] | None = None
        """Returns generators and buffers to what they were after this rank's own part."""

    def before(self, number: int, *, weight: float) -> None:
        """Note that the micro-batch of this number and weight is taken next."""
        self._look_whether_used()
        if number == 0:
            self._recorder.begin(self)
            if self.deal is not None:
                self._reduce_nothing_within()
                self._at_begin = self._recorder.keep_generators()
        if number in self._starts:
            self._begin_part(self._starts.index(number))
        self._before = self._recorder.gradients() if weight and not self._recorder.in_order else None

    def _look_whether_used(self) -> None:
        before, self._before = self._before, None
        if before is not None and not any(map(_changed, before, self._recorder.gradients())):
            self.out_of_order = True

    def end(self) -> None:
        """Note that all micro-batches were used, and the optimizer steps next."""
        self._look_whether_used()
        if self._sums:
            self._add_up()
            for parameter, total in self._sums.items():
                parameter.grad = total
            self._sums = {}
        if self._own is not None:
            self._own()
        self._take_rates()
        self.done = True
        if (single := self._recorder.single) is not None:
            single.summed(self.rates)

    def undo(self) -> None:
        """Return what the step has changed for its time only."""
        for back in self._undo:
            back()
        self._undo = []

    def _begin_part(self, index: int) -> None:
        parts = (self._recorder.rank,) if self.deal is None else self.deal.parts
        if index == len(parts) == 0 or index == 1:
            self._own = self._recorder.keep()  # what follows is the part of another rank, or of none
        if index:
            self._add_up()
            for optimizer in self._recorder.optimizers:
                forget_reductions(optimizer)  # else Horovod refuses a zero_grad() before the next part
            self._at_begin()
        self._padding = bool(parts) and index >= len(parts)
        if (single := self._recorder.single) is not None:
            single.part_begins(index)
        self._recorder.seed(parts[index] if index < len(parts) else self._recorder.rank, place=self._place)

    def _add_up(self) -> None:
        """Take the gradients of a part away, and add them to those of the parts before.

        An allreduce adds up one sum of each rank. A gradient that all micro-batches add to has other bits.
        """
        with torch.no_grad():
            for group in self._recorder.groups():
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        before = self._sums.get(parameter)
                        if not self._padding:
                            self._sums[parameter] = parameter.grad if before is None else before.add_(parameter.grad)
                        parameter.grad = None

    def _reduce_nothing_within(self) -> None:
        """Let the optimizers average in their steps, and not after as many backward passes as usual."""
        for optimizer in self._recorder.optimizers:
            set_passes = optimizer.set_backward_passes_per_step
            usual = optimizer.backward_passes_per_step
            self._undo.append(lambda set_passes=set_passes, usual=usual: set_passes(usual))  # type: ignore[misc]
            set_passes(_INT63 >> 32)

    def _take_rates(self) -> None:
        """Note the learning rates, or take those that the step had, until the optimizer has stepped."""
        groups = [group for group in self._recorder.groups() if "lr" in group]
        present = tuple([float(group["lr"]) for group in groups])
        self.rates = present if self.deal is None else self.run.rates
        if self.rates == present or len(self.rates) != len(present):
            return
        rates = iter(self.rates)
        for optimizer in self._recorder.optimizers:
            self._lend(optimizer, [(group, next(rates)) for group in optimizer.param_groups if "lr" in group])

    def _lend(self, optimizer: Any, rates: Sequence[tuple[dict[str, Any], float]]) -> None:
        """Give an optimizer these rates for its next step.

        A scheduler may follow the step: it must not find the rates of another world.
        """
        lent = []
        for group, rate in rates:
            present = float(group["lr"])
            _set_rate(group, rate)
            lent.append((group, present, float(group["lr"])))

        def back(*_: Any) -> None:
            while lent:
                group, present, recorded = lent.pop()
                if float(group["lr"]) == recorded:  # else the script has set another one meanwhile
                    _set_rate(group, present)

        hook = optimizer.register_step_post_hook(back)
        self._undo += [back, hook.remove]


def _parameters_of(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _nothing() -> None:
    """Return nothing to what it was."""


def _changed(before: tuple[Tensor, int] | None, now: tuple[Tensor, int] | None) -> bool:
    """Whether something was added to a gradient, or there is a new one."""
    return now is not None and (before is None or now[0] is not before[0] or now[1] != before[1])


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
