"""Commits as a training process makes them, and a clerk to speak with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, Contents
from hvd_elastic_ext.worker.commits.memory import open_sides


@dataclass(frozen=True)
class Trained:
    """A model and its optimizer after a few steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def contents(self, *, epoch: int, rank: int = 0) -> Contents:
        """What a commit of them holds."""
        tensors: list[Tensor] = []
        optimizer = {"state_dict": self.optimizer.state_dict(), "names": [list(dict(self.model.named_parameters()))]}
        parts = {"model": write(self.model.state_dict(keep_vars=True), tensors), "optimizer": write(optimizer, tensors)}
        firm = [True] * len(tensors)
        values = {"epoch": epoch, "history": torch.arange(5.0) + epoch, "names": ("a", "b")}
        parts[trees.VALUES] = write(values, tensors)
        firm += [False] * (len(tensors) - len(firm))
        local = trees.encode_value(write({"program": "p", "rng": {"seed": rank}}, []))
        return Contents(trees.encode(parts), tensors, firm, local)


def trained(width: int = 8) -> Trained:
    """Trained on noise; its convolution lies in memory with the channels last."""
    torch.manual_seed(width)
    model = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8)).square().sum().backward()
        optimizer.step()
    return Trained(model, optimizer)


@dataclass(frozen=True)
class Kept:
    """A commit of one rank in memory, as an agent holds it."""

    descriptor: int
    record: Record
    buffer: CommitBuffer


@contextmanager
def kept(of: Trained, identity: Identity, *, step: int = 40, rank: int = 0) -> Iterator[Kept]:
    descriptors = [os.memfd_create(f"side-{index}") for index in range(2)]
    try:
        buffer = CommitBuffer(open_sides(descriptors))
        record = buffer.take(of.contents(epoch=identity.number, rank=rank), identity, step=step)
        yield Kept(descriptors[0], record, buffer)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class Clerk:
    """The process, and what is said to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, **order: Any) -> None:
        self.say(json.dumps(order))

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def do(self, **order: Any) -> dict[str, Any]:
        self.ask(**order)
        return self.answer()

    def done(self, **order: Any) -> dict[str, Any]:
        told = self.do(**order)
        assert told["ok"], told
        return told


@contextmanager
def clerk(descriptors: Sequence[int] = ()) -> Iterator[Clerk]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hvd_elastic_ext.checkpoint.programs.requests"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
    )
    try:
        yield Clerk(process)
    finally:
        process.kill()
        process.communicate()


def save(clerk: Clerk, store: str, commits: Sequence[Kept], **sealed: Any) -> str:
    """Each rank its part, then the seal; the checkpoint's name."""
    told = [
        clerk.done(
            do="write", store=store, fd=one.descriptor, identity=one.record.identity, part=rank, parts=len(commits),
            rank=rank,
        )
        for rank, one in enumerate(commits)
    ]  # fmt: skip
    receipts = [receipt for one in told for receipt in one["receipts"]]
    order = {"record": told[0]["record"], "parts": len(commits), "world": len(commits), "receipts": receipts}
    name: str = clerk.done(do="seal", store=store, **order, **sealed)["name"]
    return name
