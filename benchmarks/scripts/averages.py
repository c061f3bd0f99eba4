"""Measures what averages every H steps cost in loss, and what they send: a table, printed as Markdown.

    python -m benchmarks.scripts.averages [--results averages.json] [--rank-steps 512] [--every 4 16 64]

Four ranks train in one process, each with a model and an optimizer of its own: AdamW, with a cosine schedule down to
zero. All figures of a row are for the same number of samples. Many models are trained at once, in tensors with a
dimension more; a test compares them with those of our own classes.

*Settings*: each row has the best of a full grid by the mean loss of three seeds on validation data: the learning rate,
from the same :data:`RATES` for synchronous training, LocalSGD and DiLoCo; and for DiLoCo each outer learning rate with
each momentum besides. A row says so where its best value lies at the end of a grid. What is reported is the loss on
test data, which nothing was chosen by, of five other seeds.

*Losses*: in each :data:`LOST_EVERY` steps one rank is lost, with all since the last average. Its successor begins with
that average and with fresh moments, or (in the same slot) with those that its slot had at that average. Synchronous
training repeats a step after a loss, which changes nothing.

With ``--results`` each result is kept in that file, and none that it has is computed again: a run that was stopped goes
on. The same seeds give the same figures on the same machine.

Tasks: the handwritten digits of scikit-learn, and the next character of the texts of Python's ``help()``
(``pydoc_data/topics.py``).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import pydoc_data.topics
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Final, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.optim.averaging import means
from hvd_elastic_ext.worker.optim.local_sgd import DiLoCo

RANKS: Final = 4
BATCH: Final = 16
"""Samples of a rank in a step."""
LOST_EVERY: Final = 100
"""Steps in which one rank is lost: thirty seconds with steps of 0.3 s."""
RATES: Final = (0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""Learning rates of AdamW at the start of the schedule."""
OUTER_RATES: Final = (0.3, 0.5, 0.7, 1.0, 1.4)
"""Learning rates of DiLoCo's outer optimizer."""
MOMENTA: Final = (0.0, 0.2, 0.5, 0.8, 0.9)
"""Its Nesterov momentum. With a momentum of 0 and a rate of 1 DiLoCo is LocalSGD."""
TUNING_SEEDS: Final = (1000, 1001, 1002)
CONTEXT: Final = 12
"""Characters from which the next one is guessed."""
TEXT: Final = 400_000
"""Characters of the text."""

Data = tuple[Tensor, Tensor]
"""Inputs and labels."""


class Counting(AloneComms):
    """A world of several ranks that only counts the bytes that one of them sends."""

    def __init__(self, size: int) -> None:
        self.bytes = 0
        self._size = size

    def size(self) -> int:
        return self._size

    def sum(self, data: Tensor, *, name: str) -> None:
        self.bytes += data.nbytes


class Model(NamedTuple):
    """What is made of inputs, as a function of weights, so that many models are computed at once."""

    make: Callable[[], nn.Module]
    """A model with fresh weights."""
    outputs: Callable[[Sequence[Tensor], Tensor], Tensor]
    """Of the parameters of several models, each with the models as its first dimension, and the inputs of each."""


class Task(NamedTuple):
    """What is trained, and the data."""

    model: Model
    train: Data
    validation: Data
    test: Data


def digits() -> Task:
    """Handwritten digits."""
    data = load_digits()
    inputs, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    train, validation, test = ((inputs[part], labels[part]) for part in torch.split(order, [1000, 397, 400]))

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return Task(Model(make, _two_layers), train, validation, test)


def characters() -> Task:
    """The next character of a text."""
    text = "".join(pydoc_data.topics.topics.values())[:TEXT]
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([known[character] for character in text])
    cuts = [len(text) * 8 // 10, len(text) * 9 // 10]

    def part(first: int, end: int, most: int) -> Data:
        windows = codes[first:end].unfold(0, CONTEXT + 1, 1)
        windows = windows[:: max(1, len(windows) // most)]
        return windows[:, :-1], windows[:, -1]

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Embedding(len(known), 8),
            nn.Flatten(),
            nn.Linear(8 * CONTEXT, 64),
            nn.ReLU(),
            nn.Linear(64, len(known)),
        )

    def outputs(weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        first = torch.arange(len(inputs))[:, None, None] * len(known)
        vectors = F.embedding(inputs + first, weights[0].reshape(-1, 8))
        return _two_layers(weights[1:], vectors.flatten(2))

    whole = part(0, cuts[0], TEXT), part(cuts[0], cuts[1], 3000), part(cuts[1], len(text), 3000)
    return Task(Model(make, outputs), *whole)


def _two_layers(weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
    first, its_bias, last, last_bias = weights
    hidden = torch.baddbmm(its_bias[:, None], inputs, first.transpose(1, 2)).relu()
    return torch.baddbmm(last_bias[:, None], hidden, last.transpose(1, 2))


TASKS: Final = {"digits": digits, "characters": characters}
KEPT: Final = "kept"
FRESH: Final = "fresh"


class Settings(NamedTuple):
    """One way to train."""

    kind: str
    """``synchronous``, ``LocalSGD`` or ``DiLoCo``."""
    every: int
    rate: float
    outer_rate: float = 0.0
    momentum: float = 0.0
    losses: str = ""
    """Empty: no rank is lost. What a successor begins with: :data:`FRESH` moments, or those :data:`KEPT` for it."""


class AdamW:
    """``torch.optim.AdamW`` with its defaults, for many models at once, each of which has a rate of its own."""

    def __init__(self, weights: Tensor) -> None:
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.steps = torch.zeros(*weights.shape[:-1], 1)

    def step(self, weights: Tensor, gradients: Tensor, *, rates: Tensor) -> None:
        """Change the weights. ``rates``: of a form that fits theirs."""
        self.steps += 1
        self.mean.lerp_(gradients, 0.1)
        self.square.mul_(0.999).addcmul_(gradients, gradients, value=0.001)
        weights.mul_(1 - 0.01 * rates)
        scale = self.square.sqrt().div_((1 - 0.999**self.steps).sqrt()).add_(1e-8)
        weights.addcdiv_(self.mean * (-rates / (1 - 0.9**self.steps)), scale)

    def forget(self, rank: int) -> None:
        """Begin anew on one rank."""
        for each in (self.mean, self.square, self.steps):
            each[:, rank] = 0

    def copy_of(self, other: AdamW, rank: int) -> None:
        """Begin with what ``other`` has for one rank."""
        for mine, theirs in zip(
            (self.mean, self.square, self.steps), (other.mean, other.square, other.steps), strict=True
        ):
            mine[:, rank] = theirs[:, rank]


class Outer:
    """What an average makes of the ranks' weights: their mean, or an outer step of DiLoCo."""

    def __init__(self, settings: Settings, weights: Tensor) -> None:
        self.weights = weights.clone()
        """Of the last average, by model."""
        self._optimizer: torch.optim.Optimizer | None = None
        if settings.kind == "DiLoCo":
            self._optimizer = torch.optim.SGD(
                [self.weights], lr=settings.outer_rate, momentum=settings.momentum, nesterov=settings.momentum > 0
            )

    def average(self, weights: Tensor, done: Sequence[int]) -> None:
        """``weights``: by model and rank. ``done``: how much each rank counts."""
        whole = (weights * (torch.tensor(done) / sum(done))[:, None]).sum(1)
        if self._optimizer is None:
            self.weights.copy_(whole)
        else:
            self.weights.grad = self.weights - whole
            self._optimizer.step()


def trained(task: Task, steps: int, seeds: Sequence[int], rates: Sequence[float], settings: Settings) -> Tensor:
    """Train a model for each rate and, within that, each seed; return their weights.

    Synchronous training is that of one rank with the samples of all. A roll-back repeats a step, and changes nothing.
    """
    ranks = 1 if settings.kind == "synchronous" else RANKS
    outer = Outer(settings, torch.stack([_fresh(task.model, seed) for seed in seeds]).repeat(len(rates), 1))
    weights = outer.weights[:, None].repeat(1, ranks, 1).requires_grad_()
    highest = torch.tensor(rates).repeat_interleave(len(seeds))[:, None, None]
    adam = AdamW(weights)
    kept = copy.deepcopy(adam)
    done = [0] * ranks
    lost = lost_at(steps) if settings.losses else {}
    for number, (inputs, labels) in enumerate(batches(task, steps, seeds)):
        if ranks == 1:
            inputs, labels = inputs.flatten(1, 2)[:, None], labels.flatten(1, 2)[:, None]
        elif (place := lost.get(number)) is not None:
            weights.data[:, place] = outer.weights
            adam.forget(place)
            if settings.losses == KEPT:
                adam.copy_of(kept, place)
            done[place] = 0
        whole = [part.repeat(len(rates), *[1] * (part.dim() - 1)).flatten(0, 1) for part in (inputs, labels)]
        (gradients,) = torch.autograd.grad(_losses(task.model, weights, *whole).sum(), weights)
        with torch.no_grad():
            adam.step(weights, gradients, rates=decayed(highest, number, steps))
            done = [each + 1 for each in done]
            if ranks > 1 and ((number + 1) % settings.every == 0 or number + 1 == steps):
                outer.average(weights, done)
                weights.copy_(outer.weights[:, None])
                done = [0] * ranks
                kept = copy.deepcopy(adam) if settings.losses == KEPT else kept
    return weights.detach()[:, 0]


def _fresh(model: Model, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.cat([parameter.detach().flatten() for parameter in model.make().parameters()])


def _losses(model: Model, weights: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of each model. ``weights``: all of a model in the last dimension."""
    forms = [parameter.shape for parameter in model.make().parameters()]
    parts = torch.split(weights.flatten(0, -2), [form.numel() for form in forms], 1)
    outputs = model.outputs([part.view(-1, *form) for part, form in zip(parts, forms, strict=True)], inputs)
    found = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
    return found.view(labels.shape).mean(1)


def losses_of(model: Model, weights: Tensor, data: Data) -> list[float]:
    """The loss of each model on data that it did not train with."""
    found = []
    with torch.no_grad():
        for each in weights:
            found += _losses(model, each[None], *(part[None] for part in data)).tolist()
    return [loss if math.isfinite(loss) else math.inf for loss in found]


def batches(task: Task, steps: int, seeds: Sequence[int]) -> Iterator[Data]:
    """For each step, what each rank gets: inputs and labels by seed, rank and sample. The same for all kinds."""
    generators = [torch.Generator().manual_seed(100_000 + seed) for seed in seeds]
    inputs, labels = task.train
    for _ in range(steps):
        chosen = torch.stack([torch.randint(len(inputs), (RANKS, BATCH), generator=each) for each in generators])
        yield inputs[chosen], labels[chosen]


def decayed(rates: Tensor, step: int, steps: int) -> Tensor:
    """The learning rates of a step, counted from 0: a cosine from ``rates`` to zero."""
    return rates * (1 + math.cos(math.pi * step / steps)) / 2


def lost_at(steps: int) -> dict[int, int]:
    """The ranks that are lost, by the number of steps before it: one in each so many, at random, always the same."""
    chance = random.Random(1)
    return {
        first + chance.randrange(1, LOST_EVERY): chance.randrange(RANKS)
        for first in range(0, steps - LOST_EVERY + 1, LOST_EVERY)
    }


def bytes_a_step(task: Task, every: int) -> tuple[float, float]:
    """What a rank sends in a step, on average: with averages every so many steps, and synchronously."""
    sent, each = Counting(RANKS), Counting(RANKS)
    model = task.model.make()
    parameters = list(model.parameters())
    means(each, [torch.zeros_like(parameter) for parameter in parameters], parameters)
    inner, outer = torch.optim.AdamW(parameters), torch.optim.SGD(parameters)
    DiLoCo(model, inner, outer, every=every).collect(sent, share=1.0)
    table = RANKS * 8 * 8
    """Of five numbers of each rank, and three for a sampler."""
    return (sent.bytes + table) / every, float(each.bytes)


class Results:
    """Losses that are kept in a file, and computed where it has none."""

    def __init__(self, file: Path | None, steps: int) -> None:
        self._file = file
        self._steps = steps
        self._tasks: dict[str, Task] = {}
        self._known: dict[str, list[float]] = {}
        if file is not None and file.exists():
            self._known = json.loads(file.read_text())

    def task(self, name: str) -> Task:
        """The task of that name, made once."""
        if name not in self._tasks:
            self._tasks[name] = TASKS[name]()
        return self._tasks[name]

    def losses(
        self, name: str, settings: Settings, seeds: Sequence[int], rates: Sequence[float], *, data: str
    ) -> dict[float, list[float]]:
        """The loss of each seed by learning rate, on the data of that name, ``validation`` or ``test``."""
        keys = {rate: self._key(name, settings._replace(rate=rate), seeds, data) for rate in rates}
        missing = [rate for rate, key in keys.items() if key not in self._known]
        if missing:
            task = self.task(name)
            found = losses_of(
                task.model,
                trained(task, self._steps, seeds, missing, settings),
                task.test if data == "test" else task.validation,
            )
            for place, rate in enumerate(missing):
                self._known[keys[rate]] = found[place * len(seeds) : (place + 1) * len(seeds)]
            self._keep()
        return {rate: self._known[key] for rate, key in keys.items()}

    def _key(self, name: str, settings: Settings, seeds: Sequence[int], data: str) -> str:
        return f"{name} {self._steps} {data} {list(seeds)} {list(settings)}"

    def _keep(self) -> None:
        if self._file is None:
            return
        new = self._file.with_name(f"{self._file.name}.new")
        new.write_text(json.dumps(self._known, indent=0))
        os.replace(new, self._file)


class Grid(NamedTuple):
    """The values from which settings are chosen."""

    rates: Sequence[float] = RATES
    outer_rates: Sequence[float] = OUTER_RATES
    momenta: Sequence[float] = MOMENTA

    def outer(self, kind: str) -> list[tuple[float, float]]:
        """Outer rates and momenta of a kind."""
        return list(itertools.product(self.outer_rates, self.momenta)) if kind == "DiLoCo" else [(0.0, 0.0)]

    def at_the_end(self, chosen: Settings) -> list[str]:
        """The names of the chosen values beyond which there may be better ones. None is below a momentum of 0."""
        used: dict[str, Sequence[float]] = {"rate": self.rates}
        if chosen.kind == "DiLoCo":
            used |= {"outer_rate": self.outer_rates, "momentum": self.momenta}
        return [
            name
            for name, values in used.items()
            if getattr(chosen, name) in (values[0], values[-1]) and (name, getattr(chosen, name)) != ("momentum", 0)
        ]


def tuned(results: Results, name: str, kind: str, every: int, grid: Grid) -> Settings:
    """The settings with the smallest mean loss on validation data."""
    found = {}
    for outer_rate, momentum in grid.outer(kind):
        each = Settings(kind, every, 0.0, outer_rate, momentum)
        for rate, losses in results.losses(name, each, TUNING_SEEDS, grid.rates, data="validation").items():
            found[each._replace(rate=rate)] = mean(losses)
    return min(found, key=lambda settings: found[settings])


def tested(results: Results, name: str, settings: Settings, seeds: Sequence[int]) -> list[float]:
    """The loss of each seed on test data."""
    return results.losses(name, settings, seeds, [settings.rate], data="test")[settings.rate]


def beside(found: Sequence[float], base: Sequence[float]) -> str:
    """A mean loss, and how much higher it is than that of the same seeds in synchronous training.

    After ± comes the standard error of the mean, over the seeds.
    """
    ratios = [100 * (mine / theirs - 1) for mine, theirs in zip(found, base, strict=True)]
    error = f" ± {stdev(ratios) / math.sqrt(len(ratios)):.1f}" if len(ratios) > 1 else ""
    return f"{mean(found):.4f} ({100 * (mean(found) / mean(base) - 1):+.1f}{error} %)"


def described(chosen: Settings, grid: Grid) -> str:
    """The chosen values; a star stands at one that lies at an end of its grid."""
    ends = grid.at_the_end(chosen)
    names = ["rate", *(["outer_rate", "momentum"] if chosen.kind == "DiLoCo" else [])]
    return ", ".join(f"{getattr(chosen, name):g}{'*' if name in ends else ''}" for name in names)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rank-steps", type=int, default=512)
    parser.add_argument("--every", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--outer-rates", type=float, nargs="+", default=OUTER_RATES)
    parser.add_argument("--momenta", type=float, nargs="+", default=MOMENTA)
    parser.add_argument("--results", type=Path, help="file for the results; a run goes on from what it has")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.results, args.rank_steps)
    grid = Grid(args.rates, args.outer_rates, args.momenta)
    seeds = range(args.seeds)
    for name in args.tasks:
        chosen = tuned(results, name, "synchronous", 1, grid)
        base = tested(results, name, chosen, seeds)
        print(f"\n{name}, {args.rank_steps * RANKS * BATCH} samples; synchronous: {beside(base, base).split(' (')[0]}")
        print(f"(rate {described(chosen, grid)}); a star: at the end of its grid\n")
        print("| | rate; outer rate, momentum | bytes a step | none lost | lost, fresh moments | lost, kept moments |")
        print("|---|---|---|---|---|---|", flush=True)
        for kind, every in itertools.product(("LocalSGD", "DiLoCo"), args.every):
            chosen = tuned(results, name, kind, every, grid)
            cells = [
                beside(tested(results, name, chosen._replace(losses=losses), seeds), base)
                for losses in ("", FRESH, KEPT)
            ]
            ours, theirs = bytes_a_step(results.task(name), every)
            share = f"{ours:.0f} (1/{theirs / ours:.1f})"
            print(f"| {kind}, H = {every} | {described(chosen, grid)} | {share} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
