"""What ranks agree on that train alone between two averages.

In a round nothing is sent. A rank comes to the next average when it has done its steps, when its part of the epoch is
used up, or at once when it has a notice. There, one small table says what each rank has contributed, whether the world
must end, and who has finished training. If a rank is lost before all have the average, nothing of it has happened on
those that do not have it: they repeat it in the next world with the same weights, or get it from one that has it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch

from hvd_elastic_ext.worker.comms import Comms
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


_COLUMNS: Final = 5
"""Of a rank in the table: samples, steps, the step, whether to stop, whether it has finished. Three for each sampler
follow."""


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
        self.sealing = False
        """Whether an average is being committed. At other times nothing is."""
        self.over = False
        """Whether all ranks have finished training: the State is like any other."""

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
        return self._place >= self._averager.every or used_up

    def stepped(self) -> None:
        """Note a step of the inner optimizer."""
        self._place += 1
        self._steps += 1

    def begin(self) -> None:
        """Note that the live state is the outer one."""
        self._place = self._steps = 0
        self._averager.begin()

    def average(self, *, step: int, stop: bool, finished: bool) -> Average:
        """Meet the other ranks and average. Raises ``HorovodInternalError`` if one is lost; then nothing has changed.

        ``step``: this rank's. ``stop``: whether it has a notice. ``finished``: whether it has finished training.
        """
        samplers = list(self._part.samplers().values())
        with waiting():
            row = [sum(sampler.contributed for sampler in samplers), self._steps, step, int(stop), int(finished)]
            for sampler in samplers:
                row += [*sampler.key, sampler.taken]
            table = self._told(row, name="round")
            samples, steps, done, stops, ends = table[:, :_COLUMNS].T.tolist()
            weights = samples if any(samples) else steps
            if any(steps):
                share = shares_of(weights)[self._comms.rank()]
                self._averager.apply(self._averager.collect(self._comms, share=share))
        for place, sampler in enumerate(samplers):
            epochs, passes, taken = table[:, _COLUMNS + 3 * place :][:, :3].T.tolist()
            sampler.averaged(list(zip(epochs, passes, strict=True)), taken)
        self._place = self._steps = 0
        return Average(max(done), any(stops), all(ends), tuple(weights))

    def enter(self) -> None:
        """Note a new world, in which all ranks call this: what they have taken of the samples is dealt to nobody."""
        samplers = self._part.samplers()
        mine = {name: np.empty((0, 2), dtype=np.int64) for name in samplers}
        for name, sampler in samplers.items():
            assert sampler.round is not None
            sampler.round.fold()
            mine[name] = sampler.round.rows()
        table = self._told([self._place, *map(len, mine.values())], name="round.entered")
        if not self._steps:  # it comes to the next average with the others, and not a round of its own later
            self._place = int(table[:, 0].max())
        for column, (name, sampler) in enumerate(samplers.items(), start=1):
            counts = table[:, column].tolist()
            rows = torch.zeros(sum(counts), 2, dtype=torch.int64)
            before = sum(counts[: self._comms.rank()])
            rows[before : before + len(mine[name])] = torch.from_numpy(mine[name])
            if len(rows):
                self._comms.sum(rows, name=f"round.taken.{name}")
            sampler.enter_world(rows.numpy())

    def _told(self, row: list[int], *, name: str) -> torch.Tensor:
        """Tell the other ranks ``row``, and return the rows of all."""
        table = torch.zeros(self._comms.size(), len(row), dtype=torch.int64)
        table[self._comms.rank()] = torch.tensor(row, dtype=torch.int64)
        self._comms.sum(table, name=name)
        return table
