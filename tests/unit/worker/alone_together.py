"""Ranks that train alone between averages, each in a thread, in one world after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.optim.local_sgd import Averager, DiLoCo, LocalSGD
from hvd_elastic_ext.worker.parts import choose, torch_parts
from hvd_elastic_ext.worker.state import journal
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.keeper import Keeper, WorkerSettings
from hvd_elastic_ext.worker.state.mixin import StateMethods
from hvd_elastic_ext.worker.stock import HorovodInternalError, HostsUpdatedInterrupt, stand_ins
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.placed_samplers import PlacedSampler

Make = Callable[[nn.Module, torch.optim.Optimizer], Averager]
BATCH = 2


def local_sgd(every: int) -> Make:
    return lambda model, inner: LocalSGD(inner, every=every)


def diloco(every: int) -> Make:
    def make(model: nn.Module, inner: torch.optim.Optimizer) -> Averager:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        return DiLoCo(model, inner, outer, every=every)

    return make


class Elsewhere:
    """The collectives of whatever world its process is in."""

    rides_along = True

    def __init__(self) -> None:
        self.present: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.present, name)


class Process(StateMethods, stand_ins.State):
    """A process with a State of a linear model. Its task: the sum of a sample's two numbers."""

    def __init__(
        self, make: Make, *, count: int = 96, seed: int = 0, lr: float = 0.05, memory: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.comms, self.lines = Elsewhere(), list[tuple[str, dict[str, Any]]]()
        torch.manual_seed(seed)
        self.data = torch.randn(count, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        self.model = nn.Linear(2, 1).double()
        self.inner = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.5)
        self.averaging = make(self.model, self.inner)
        self.sampler = PlacedSampler((0, 1), count, seed=3)
        self.epoch = 0
        self.taken = list[tuple[int, int]]()
        """Epoch and sample of each that was trained with, in order."""
        self.at_averages = [0]
        """How many of these were there at each average."""
        names, values = torch_parts.ParameterNames(), ("model", "inner", "averaging", "sampler")
        parts = {name: choose.part_for(getattr(self, name), names) for name in values}
        inventory = Inventory(self, parts, names=["epoch"], part_for=lambda value: choose.part_for(value, names))
        names.models = lambda: inventory.values_of(torch_parts.ModelPart)
        reporter = journal.Reporter(self._record, SystemClock(), sample=0.0, host="")
        keeper = Keeper(
            inventory, buffer=CommitBuffer(open_sides(memory)), comms=self.comms, clock=SystemClock(),
            reporter=reporter, settings=WorkerSettings(), program="",
        )  # fmt: skip
        keeper.seal = self.save
        self.__dict__["_keeper"] = keeper

    def _record(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    @property
    def step(self) -> int:
        return self._keeper._steps.done

    @property
    def commits(self) -> int:
        return self._keeper._identity().number

    @property
    def moments(self) -> list[float]:
        """The inner optimizer's; empty before its first step."""
        found = [entry["momentum_buffer"].reshape(-1) for entry in self.inner.state.values()]
        return torch.cat(found).tolist() if found else []

    @property
    def weights(self) -> list[float]:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()]).tolist()

    def enter(self, comms: LockstepComms) -> None:
        """Enter a world, as the loop does: a new place, and a sync."""
        self.comms.present = comms
        self.sampler.place = (comms.rank(), comms.size())
        self._keeper.inbox.entered()
        self.sync()

    def train(self, steps: int | None = None, *, epochs: int = 1, before_step: Callable[[], None] = int) -> None:
        """Train for so many steps, or to the end of the last of ``epochs``."""
        while self.epoch < epochs:
            self.sampler.set_epoch(self.epoch)
            own = list(self.sampler)
            for start in range(0, len(own), BATCH):
                if steps == 0:
                    return
                before_step()
                self.step_on(own[start : start + BATCH])
                steps = None if steps is None else steps - 1
            self.epoch += 1

    def step_on(self, samples: Sequence[int]) -> None:
        chosen = self.data[list(samples)]
        self.inner.zero_grad()
        (self.model(chosen).squeeze(1) - chosen.sum(1)).pow(2).mean().backward()
        self.inner.step()
        self.taken += [(self.epoch, sample) for sample in samples]
        self.sampler.record_batch(0, len(samples))
        before = self.commits
        try:
            self.commit()
        finally:
            if self.commits != before:
                self.at_averages.append(len(self.taken))


def a_world(processes: Sequence[Process], main: Callable[[Process], Any]) -> list[Any]:
    """Let the processes enter a world in this order, and do ``main``; what each has returned. A process that meets an
    interrupt leaves with that, as its result: a State rolls back after a loss."""

    def rank_main(comms: LockstepComms) -> Any:
        process = processes[comms.rank()]
        with process._training():
            try:
                process.enter(comms)
                return main(process)
            except HorovodInternalError as lost:
                process.restore()
                return lost
            except HostsUpdatedInterrupt as interrupt:
                return interrupt

    return list(in_lockstep(len(processes), rank_main)[0])


def dies(process: Process) -> None:
    """The process is killed: its peers are told as soon as they wait for it."""
    process.comms.present._fabric.leave("a peer was killed")
