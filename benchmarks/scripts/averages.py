"""Measures what averages every H steps cost in loss, and what they send: a table, printed as Markdown.

    python -m benchmarks.scripts.averages [--seeds 5] [--rank-steps 512] [--every 4 16 64]

Four ranks train in one process, each with a model of its own, so that it takes minutes on two cores. All figures of a
row are for the same number of samples. *Lost*: after so many steps one rank is lost, with all since the last average,
and another begins with that average and a new optimizer. Beside them: synchronous training, in which a loss takes back
one step. Each row has its best learning rate of :data:`RATES`, by one run with a seed of its own.

Tasks: the handwritten digits of scikit-learn, and the next character of the texts of Python's ``help()``
(``pydoc_data/topics.py``).
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import mean
from typing import Final, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.optim.averaging import means
from hvd_elastic_ext.worker.optim.local_sgd import Averager, DiLoCo, LocalSGD

RANKS: Final = 4
BATCH: Final = 16
"""Samples of a rank in a step."""
LOST_EVERY: Final = 96
"""Steps from one loss to the next: thirty seconds with steps of 0.3 s."""
RATES: Final = (0.002, 0.004, 0.008)
"""Learning rates of Adam."""
TUNING_SEED: Final = 1000
CONTEXT: Final = 12
"""Characters from which the next one is guessed."""
TEXT: Final = 120_000
"""Characters of the text."""


class Counting(AloneComms):
    """A world of several ranks that only counts the bytes that one of them sends."""

    def __init__(self, size: int) -> None:
        self.bytes = 0
        self._size = size

    def size(self) -> int:
        return self._size

    def sum(self, data: Tensor, *, name: str) -> None:
        self.bytes += data.nbytes


class Task(NamedTuple):
    """What is trained: how a model is made, inputs and labels to train with and to test with."""

    model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits() -> Task:
    """Handwritten digits."""
    data = load_digits()
    inputs, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    train, test = order[:1400], order[1400:]

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return Task(model, (inputs[train], labels[train]), (inputs[test], labels[test]))


def characters() -> Task:
    """The next character of a text."""
    text = "".join(pydoc_data.topics.topics.values())[:TEXT]
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([known[character] for character in text])
    windows = codes.unfold(0, CONTEXT + 1, 1)
    cut = len(windows) * 9 // 10
    test = windows[cut :: max(1, (len(windows) - cut) // 2000)]

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Embedding(len(known), 12),
            nn.Flatten(),
            nn.Linear(12 * CONTEXT, 96),
            nn.ReLU(),
            nn.Linear(96, len(known)),
        )

    return Task(model, (windows[:cut, :-1], windows[:cut, -1]), (test[:, :-1], test[:, -1]))


TASKS: Final = {"digits": digits, "characters": characters}


class Rank:
    """One rank: a model, its optimizer, and what averages them."""

    def __init__(self, task: Task, kind: str, every: int, seed: int, lr: float = RATES[0]) -> None:
        torch.manual_seed(seed)
        self.model = task.model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.averaging: Averager = LocalSGD(self.optimizer, every=every)
        if kind == "DiLoCo":
            outer = torch.optim.SGD(self.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            self.averaging = DiLoCo(self.model, self.optimizer, outer, every=every)

    def gradients(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(inputs), labels).backward()  # type: ignore[no-untyped-call]

    def begin_with(self, other: Rank, *, weights: Sequence[Tensor]) -> None:
        """Begin as a newcomer, with the outer state of ``other`` and the ``weights`` of the last average."""
        with torch.no_grad():
            for mine, theirs in zip(self.model.parameters(), weights, strict=True):
                mine.copy_(theirs)
        if self.averaging.outer is not None and other.averaging.outer is not None:
            self.averaging.outer.load_state_dict(other.averaging.outer.state_dict())
        self.averaging.begin()


def batches(task: Task, steps: int, seed: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """For each step, what each rank gets. The same for all kinds of training."""
    generator = torch.Generator().manual_seed(1000 + seed)
    inputs, labels = task.train
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (RANKS, BATCH), generator=generator)
        yield [(inputs[mine], labels[mine]) for mine in chosen]


def tested(model: nn.Module, task: Task) -> float:
    """The loss on data that nobody trains with."""
    with torch.no_grad():
        return F.cross_entropy(model(task.test[0]), task.test[1]).item()


def synchronous(task: Task, steps: int, seed: int, lr: float) -> float:
    """Train with averages of gradients in each step. A roll-back repeats a step, and so changes nothing here."""
    rank = Rank(task, "LocalSGD", 1, seed, lr)
    for given in batches(task, steps, seed):
        rank.gradients(torch.cat([inputs for inputs, _ in given]), torch.cat([labels for _, labels in given]))
        rank.optimizer.step()
    return tested(rank.model, task)


def averaged(task: Task, steps: int, seed: int, lr: float, *, kind: str, every: int, losses: bool) -> float:
    """Train with averages every so many steps."""
    ranks = [Rank(task, kind, every, seed, lr) for _ in range(RANKS)]
    outer = [parameter.detach().clone() for parameter in ranks[0].model.parameters()]
    done = [0] * RANKS
    for number, given in enumerate(batches(task, steps, seed), start=1):
        for place, (rank, batch) in enumerate(zip(ranks, given, strict=True)):
            rank.gradients(*batch)
            rank.optimizer.step()
            done[place] += 1
        if losses and number % LOST_EVERY == LOST_EVERY // 2 + 1 and number % every:
            lost = number // LOST_EVERY % RANKS
            newcomer = Rank(task, kind, every, seed, lr)
            newcomer.begin_with(ranks[(lost + 1) % RANKS], weights=outer)
            ranks[lost], done[lost] = newcomer, 0
        if number % every == 0 or number == steps:
            parts = [
                rank.averaging.collect(AloneComms(), share=count / sum(done))
                for rank, count in zip(ranks, done, strict=True)
            ]
            whole = [torch.stack(each).sum(0) for each in zip(*parts, strict=True)]
            for rank in ranks:
                rank.averaging.apply(whole)
            outer = [parameter.detach().clone() for parameter in ranks[0].model.parameters()]
            done = [0] * RANKS
    return tested(ranks[0].model, task)


def bytes_a_step(task: Task, every: int) -> tuple[float, float]:
    """What a rank sends in a step, on average: with averages every so many steps, and synchronously."""
    rank, sent, each = Rank(task, "DiLoCo", every, 0), Counting(RANKS), Counting(RANKS)
    rank.gradients(*next(batches(task, 1, 0))[0])
    parameters = list(rank.model.parameters())
    means(each, [parameter.grad for parameter in parameters], parameters)
    rank.averaging.collect(sent, share=1.0)
    table = RANKS * 8 * 8
    """Of five numbers of each rank, and three for a sampler."""
    return (sent.bytes + table) / every, float(each.bytes)


def best_rate(train: Callable[[int, float], float]) -> float:
    """The learning rate with the smallest loss. ``train``: by seed and rate."""
    return min(RATES, key=lambda lr: train(TUNING_SEED, lr))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rank-steps", type=int, default=512)
    parser.add_argument("--every", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.tasks:
        task = TASKS[name]()
        steps = args.rank_steps
        rate = best_rate(partial(synchronous, task, steps))
        base = [synchronous(task, steps, seed, rate) for seed in range(args.seeds)]
        print(f"\n{name}, {steps * RANKS * BATCH} samples, synchronous: {mean(base):.4f} (rate {rate:g})\n")
        print("| | rate | bytes a step | none lost | one lost every 96 steps |\n|---|---|---|---|---|", flush=True)
        for kind in ("LocalSGD", "DiLoCo"):
            for every in args.every:
                train = partial(averaged, task, steps, kind=kind, every=every)
                rate, cells = best_rate(partial(train, losses=False)), []
                for losses in (False, True):
                    found = [train(seed, rate, losses=losses) for seed in range(args.seeds)]
                    cells.append(f"{mean(found):.4f} ({mean(found) / mean(base) - 1:+.1%})")
                ours, theirs = bytes_a_step(task, every)
                share = f"{ours:.0f} (1/{theirs / ours:.1f})"
                print(f"| {kind}, H = {every} | {rate:g} | {share} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
