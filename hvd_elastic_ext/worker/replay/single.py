"""A process that executes one recorded step, for ``hvd-elastic replay``: what it does in place of training.

It has a world of its own and the commit of a checkpoint. The script's loop executes the recorded steps after it, with
the parts of all ranks, as a survivor alone would. In the step that is asked for, gradients are looked at before the
optimizer changes anything, and then this process ends, without another line of the script. It also ends where training
would go on otherwise: it must not train, and nothing that it has counts.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.recorded_steps import REQUEST
from hvd_elastic_ext.worker.process.steps import is_preparing
from hvd_elastic_ext.worker.replay import history, notes
from hvd_elastic_ext.worker.replay.notes import Run, Runs

Samples = Callable[[], Sequence[Sequence[Any]]]
"""Returns the samples of each part of a step."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for."""

    step: int
    """The number of the step, by the optimizer's count."""
    seed: int
    left: Runs
    """The recorded steps after the commit."""

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Read what the command has written: the step, where the commit is among noted steps, and the notes."""
        found = json.loads(data)
        kept, head = history.decode(found["notes"])
        runs = notes.joined(run for piece in kept.pieces for run in piece.runs)
        for _ in range(int(found["at"]) - head.began):
            runs = notes.without_first(runs)
        return cls(int(found["step"]), head.seed, runs)


class Single:
    """The step that is asked for. ``end`` gets the report, or an error, and does not return."""

    def __init__(self, request: Request, end: Callable[[Mapping[str, Any]], NoReturn]) -> None:
        self._request = request
        self._end = end
        self._begun = False
        """Whether a State has gone on from the commit."""
        self._seen: _Seen | None = None
        """What is seen of the step, while it is under way."""
        self._optimizers: list[tuple[Any, Callable[[], list[Tensor]]]] = []
        self.models: Callable[[], Mapping[str, nn.Module]] = dict
        """The models, by name in the State."""

    # For the recorder

    def begin(self) -> tuple[int, Runs]:
        """Note that a State goes on from the commit; its seed, and the steps that it does again."""
        self._begun = True
        return self._request.seed, self._request.left

    def demand_begun(self) -> None:
        """End this process if another State than that of the commit would train."""
        if not self._begun:
            self._fail("the script trains another State than that of the checkpoint; give it the code of the job")

    def demand_recorded(self, run: Run | None) -> None:
        """End this process if its next step (None) is not a recorded one."""
        if run is None:
            self._fail(
                "the script comes to other steps than those that were recorded: to samples of another sampler, or to "
                "global batches of another size"
            )

    def training_ended(self) -> None:
        """End this process: its script would go on after training."""
        if self._begun:
            self._fail("the script's training ended before that step")

    def watch(self, optimizer: Any, parameters: Callable[[], list[Tensor]]) -> None:
        """Look at each step of this optimizer before it is done."""
        self._optimizers.append((optimizer, parameters))
        optimizer.register_step_pre_hook(self._updates)

    def step_begins(self, run: Run, samples: Samples, number: int) -> None:
        """Note that the optimizer's step of this number begins, or is tried again."""
        if number == self._request.step:
            self._seen = _Seen(run, samples())

    def part_begins(self, index: int) -> None:
        """Note that the micro-batches of a part of the step come next."""
        if self._seen is not None:
            self._seen.part = index

    def summed(self, rates: Sequence[float]) -> None:
        """Note that all micro-batches were used: gradients are the mean over the global batch."""
        if self._seen is not None:
            self._seen.rates = rates
            self._seen.gradients = {
                id(each): _norm(each) for _, parameters in self._optimizers for each in parameters()
            }

    def step_ended(self, *, stepped: bool) -> None:
        """Note that the script has left the step. One in which no optimizer stepped is not the one that is meant."""
        if self._seen is not None and stepped:
            self._report(self._seen)
        if self._seen is not None:
            self._seen.leave()
            self._seen = None

    # Inside

    def _updates(self, optimizer: Any, *_: Any) -> None:
        """Before an optimizer's step."""
        seen = self._seen
        if seen is None or is_preparing():
            return
        for known, parameters in self._optimizers:
            if known is optimizer:
                seen.updates |= {id(each): _norm(each) for each in parameters()}
                seen.stepped.add(id(optimizer))
        if len(seen.stepped) == len(self._optimizers):
            self._report(seen)

    def _report(self, seen: _Seen) -> NoReturn:
        self._end(seen.report(self._request.step, self._named()))

    def _named(self) -> list[tuple[str, Tensor]]:
        """The parameters of all optimizers, each with its name in the State."""
        names = {
            id(parameter): f"{name}.{path}"
            for name, model in self.models().items()
            for path, parameter in model.named_parameters()
        }
        every = [parameter for _, parameters in self._optimizers for parameter in parameters()]
        return [(names.get(id(each), f"parameter {number}"), each) for number, each in enumerate(every)]

    def _fail(self, why: str) -> NoReturn:
        self._end({"error": why})


class _Seen:
    """What is seen of the step."""

    def __init__(self, run: Run, samples: Sequence[Sequence[Any]]) -> None:
        self.part = 0
        self.rates: Sequence[float] = ()
        self.gradients: dict[int, float | None] = {}
        """Norms by parameter, as the micro-batches have left them."""
        self.updates: dict[int, float | None] = {}
        """The same when the optimizer steps: clipped or unscaled, perhaps."""
        self.stepped: set[int] = set()
        self._run = run
        self._samples = samples
        self._losses: list[float | None] = [None] * len(samples)
        self._plain = torch.autograd.backward

        @functools.wraps(self._plain)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **options: Any) -> Any:
            self._add(tensors, grad_tensors)
            return self._plain(tensors, grad_tensors, *args, **options)

        torch.autograd.backward = backward

    def leave(self) -> None:
        """Look at no other backward pass."""
        torch.autograd.backward = self._plain

    def _add(self, tensors: Any, factors: Any) -> None:
        """Add what a backward pass begins with, if it is one number."""
        root = tensors if isinstance(tensors, Tensor) else tensors[0] if len(tensors) == 1 else None
        if root is None or root.numel() != 1 or factors is not None or self.part >= len(self._losses):
            return
        self._losses[self.part] = (self._losses[self.part] or 0.0) + float(root.detach())

    def report(self, step: int, named: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
        """What the command prints."""
        known = [loss for loss in self._losses if loss is not None]
        return {
            "step": step,
            "loss": sum(known) if len(known) == len(self._losses) else None,
            "world": {"generation": self._run.world.generation, "size": self._run.world.size},
            "learning_rates": list(self.rates),
            "ranks": [
                {"rank": rank, "loss": None if loss is None else loss * self._run.world.size, "samples": list(samples)}
                for rank, (loss, samples) in enumerate(zip(self._losses, self._samples, strict=True))
            ],
            "gradients": [
                {
                    "parameter": name,
                    "shape": list(parameter.shape),
                    "norm": self.gradients.get(id(parameter)),
                    "norm_at_update": self.updates.get(id(parameter)),
                }
                for name, parameter in named
            ],
        }


def _norm(parameter: Tensor) -> float | None:
    """The norm of its gradient, in 32 bits at least; None without one."""
    if (grad := parameter.grad) is None:
        return None
    values = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad.detach()
    wide = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    return float(torch.linalg.vector_norm(wide))


# --- the process


@functools.cache
def current() -> Single | None:
    """The step that this process is to execute; None in a job."""
    given = os.environ.get(REQUEST)
    if given is None:
        return None
    asked, told = map(int, given.split(","))
    return Single(Request.decode(_whole(asked)), functools.partial(_end, told))


def _whole(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _end(descriptor: int, report: Mapping[str, Any]) -> NoReturn:
    """Write the report, and end this process at once: no ``finally`` of the script, and nothing at its exit."""
    data = to_text(report, instead=str).encode()
    os.pwrite(descriptor, data, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
