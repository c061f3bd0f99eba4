"""What ranks agree on that train alone between two averages.

In a round nothing is sent. A rank comes to the next average when it has done its steps, when its part of the epoch is
used up, or at once when it has a notice. With its part used up, it stays there until all have reached the end of
theirs: so they are in one epoch, and meet behind its loop as well. At an average, one small table says what each rank
has contributed, whether the world must end, and who has finished training. If a rank is lost before all have the
average, nothing of it has happened on those that do not have it: they repeat it in the next world with the same
weights, or get it from one that has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch

from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.data.rounds import COLUMNS, Reached, stays
from hvd_elastic_ext.worker.optim.local_sgd import Averager, shares_of
from hvd_elastic_ext.worker.optim.step_waits import waiting
from hvd_elastic_ext.worker.parts.averaged import AveragingPart


class Average(NamedTuple):
    """What the ranks have agreed on at an average."""

    step: int
    """The most steps of any rank."""
    stop: bool
    """Whether the world must end here: a rank has a notice."""
    finished: bool
    """Whether all ranks have finished training."""
    weights: tuple[int, ...]
    """What each rank has contributed: samples, or steps if no rank counts samples."""


log = logging.getLogger(__name__)

_COLUMNS: Final = 5
"""Of a rank in the table: samples, steps, the step, whether to stop, whether it has finished. For each sampler follow
its epoch and pass, how many samples were taken, and the other fields of :class:`Reached`."""
_OF_SAMPLER: Final = 6
_ENTERING: Final = 4
"""Of a sampler in the table of a new world: how much it has to tell, its epoch and pass, and whether loaders leave out
nothing."""


class Rounds:
    """Follows the rounds of one State."""

    def __init__(self, part: AveragingPart, comms: Comms) -> None:
        self._part = part
        self._averager: Averager = part.value
        self._comms = comms
        self._place = 0
        """Steps since the last average, as if this rank had been there from then on."""
        self._steps = 0
        """Steps that it has done since then."""
        self._waits: frozenset[str] = frozenset()
        """Samplers whose part this rank has used up, and others have not."""
        self._warned = False
        self._depth = 0
        """Calls of our loop that run with the State, one in another."""
        self.followed = False
        """Whether our loop runs, or has run, with the State. Another one would not average at its end."""
        self.sealing = False
        """Whether an average is being committed. At other times nothing is."""
        self.over = False
        """Whether all ranks have finished training: until the next sync, the State is like any other."""

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The optimizer whose steps count."""
        return self._averager.inner

    @property
    def holds_back(self) -> bool:
        """Whether what a rank has is not to be committed."""
        return not (self.sealing or self.over)

    @property
    def due(self) -> bool:
        """Whether this rank has done its part of the round."""
        used_up = any(sampler.used_up for sampler in self._part.samplers().values())
        return self._place >= self._averager.every or used_up or bool(self._waits)

    def stepped(self) -> None:
        """Note a step of the inner optimizer."""
        self._place += 1
        self._steps += 1
        if self._steps == 2 * self._averager.every and not self._warned and self._comms.rank() == 0:
            self._warned = True
            log.warning(
                "%d steps, and no average: with every=%d ranks average in state.commit() or "
                "state.check_host_updates(); call it after each step",
                self._steps, self._averager.every,
            )  # fmt: skip

    @contextmanager
    def call(self) -> Iterator[None]:
        """Context of our loop around a training function."""
        self.followed = True
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth:
                self.over = False  # the call around it goes on

    def begin(self) -> None:
        """Note that the live state is the outer one."""
        self._place = self._steps = 0
        self._waits = frozenset()
        self._averager.begin()

    def average(self, *, step: int, stop: bool, finished: bool) -> Average:
        """Meet the other ranks and average. Raises ``HorovodInternalError`` if one is lost; then nothing has changed.

        ``step``: this rank's. ``stop``: whether it has a notice. ``finished``: whether it has finished training.
        """
        named = self._part.samplers()
        samplers = list(named.values())
        at_end = self._waits | {name for name, sampler in named.items() if sampler.used_up}
        with waiting():
            row = [sum(sampler.contributed for sampler in samplers), self._steps, step, int(stop), int(finished)]
            for sampler in samplers:
                reached = sampler.reached
                row += [*reached.key, sampler.taken, *map(int, reached[1:])]
            table = self._told(row, name="round")
            samples, steps, done, stops, ends = table[:, :_COLUMNS].T.tolist()
            weights = samples if any(samples) else steps
            if any(steps):
                share = shares_of(weights)[self._comms.rank()]
                self._averager.apply(self._averager.collect(self._comms, share=share))
        stay = set[str]()
        for place, (name, sampler) in enumerate(named.items()):
            told = table[:, _COLUMNS + _OF_SAMPLER * place :][:, :_OF_SAMPLER].tolist()
            ranks = [Reached((epoch, past), *map(bool, rest)) for epoch, past, _, *rest in told]
            keys, taken = [rank.key for rank in ranks], [row[2] for row in told]
            if stays(sampler.reached, [rank for rank, gone in zip(ranks, ends, strict=True) if not gone]):
                stay.add(name)
            sampler.averaged(keys, taken)
        self._place = self._steps = 0
        self._waits = at_end & stay
        return Average(max(done), any(stops), all(ends), tuple(weights))

    def enter(self) -> bool:
        """Note a new world, in which all ranks call this: what they have taken of the samples is dealt to nobody.

        Return whether they must average before they train.
        """
        self._waits = frozenset()
        samplers = self._part.samplers()
        row = [self._place]
        for sampler in samplers.values():
            row += [len(sampler.rows()), *sampler.key, int(sampler.whole)]
        table = self._told(row, name="round.entered")
        if not self._steps:  # it comes to the next average with the others, and not a round of its own later
            self._place = int(table[:, 0].max())
        for place, (name, sampler) in enumerate(samplers.items()):
            counts, epochs, passes, whole = table[:, 1 + _ENTERING * place :][:, :_ENTERING].T.tolist()
            rows, mine = torch.zeros(sum(counts), COLUMNS, dtype=torch.int64), sampler.rows()
            before = sum(counts[: self._comms.rank()])
            rows[before : before + len(mine)] = torch.from_numpy(mine)
            self._comms.sum(rows, name=f"round.taken.{name}")
            sampler.enter_world(rows.numpy(), list(zip(epochs, passes, strict=True)), whole=any(whole))
        passes_by = torch.tensor([any(sampler.passes_by for sampler in samplers.values())], dtype=torch.int64)
        if samplers:
            self._comms.sum(passes_by, name="round.passes_by")
        return bool(passes_by)

    def _told(self, row: list[int], *, name: str) -> torch.Tensor:
        """Tell the other ranks ``row``, and return the rows of all."""
        table = torch.zeros(self._comms.size(), len(row), dtype=torch.int64)
        table[self._comms.rank()] = torch.tensor(row, dtype=torch.int64)
        self._comms.sum(table, name=name)
        return table
