"""Commits as a training process makes them, and checkpoints as agents make them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, Contents
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.state.contents import Inventory


@dataclass(frozen=True)
class Trained:
    """A model and its optimizer after a few steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def contents(self, *, epoch: int, rank: int = 0) -> Contents:
        """Return the contents of a commit of them."""
        tensors: list[Tensor] = []
        optimizer = {"state_dict": self.optimizer.state_dict(), "names": [list(dict(self.model.named_parameters()))]}
        parts = {"model": write(self.model.state_dict(keep_vars=True), tensors), "optimizer": write(optimizer, tensors)}
        firm = [True] * len(tensors)
        values = {"epoch": epoch, "history": torch.arange(5.0) + epoch, "names": ("a", "b")}
        parts[trees.VALUES] = write(values, tensors)
        firm += [False] * (len(tensors) - len(firm))
        local = trees.encode_value(write({"program": "p", "rng": {"seed": rank}}, []))
        return Contents(trees.encode(parts), tensors, firm, local)


@dataclass(frozen=True)
class OfParts:
    """Parts of a State, of any framework."""

    inventory: Inventory

    def contents(self, *, epoch: int, rank: int = 0) -> Contents:
        """Return the contents of a commit of them."""
        written = self.inventory.write()
        local = rng.write_rank_local("p", keep_rng=False, descriptions=self.inventory.descriptions)
        return Contents(written.tree, written.tensors, written.firm, local)


def trained(width: int = 8) -> Trained:
    """Return a model trained on noise. The weights of its convolution are in channels-last order in memory."""
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
def kept(of: Trained | OfParts, identity: Identity, *, step: int = 40, rank: int = 0) -> Iterator[Kept]:
    descriptors = [os.memfd_create(f"side-{index}") for index in range(2)]
    try:
        buffer = CommitBuffer(open_sides(descriptors))
        record = buffer.take(of.contents(epoch=identity.number, rank=rank), identity, step=step)
        yield Kept(descriptors[0], record, buffer)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def written(place: Path, one: Kept, *, part: int = 0, parts: int = 1) -> dict[str, Any]:
    """Return an agent's request to write this commit as one part of a checkpoint."""
    commit = {"place": str(place), "commit": [*one.record.identity], "parts": parts}
    return {"do": "write", **commit, "shares": {"0": [part, part, 0]}, "sides": {"0": [one.descriptor]}}


def done(request: dict[str, Any]) -> dict[str, Any]:
    answer = agent_requests.answered(request)
    assert "failed" not in answer, answer
    return answer


def save(place: Path, commits: Sequence[Kept], **facts: Any) -> str:
    """Write the part of each rank, then seal the checkpoint. Return its name."""
    parts = len(commits)
    answers = [done(written(place, one, part=rank, parts=parts)) for rank, one in enumerate(commits)]
    seal = {"parts": parts, "world": parts, "written": answers, "keep": 3, "facts": facts}
    return Path(done({"do": "seal", "place": str(place), **seal})["path"]).name
