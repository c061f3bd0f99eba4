"""Commits to compare: what tests of the commit core have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, Contents
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.parts import torch_parts
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.state import journal
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.keeper import Keeper, WorkerSettings
from hvd_elastic_ext.worker.state.slot_memory import HeldCommit


def contents(number: int, *, count: int = 3, size: int = 5, local: bytes | None = None) -> Contents:
    """Tensors, a tree and a local tree in which every byte depends on ``number``."""
    tensors = [torch.full((size + index,), float(number)) for index in range(count)]
    tensors.append(torch.tensor(number))
    return Contents(
        tree=f"tree {number}".encode() * (1 + number % 3),
        tensors=tensors,
        firm=[index % 2 == 0 for index in range(len(tensors))],
        local=f"local {number}".encode() if local is None else local,
    )


def identity(number: int) -> Identity:
    return Identity(7, 0, 1, number)


@dataclass(frozen=True)
class Seen:
    """All of a commit, copied."""

    record: Record
    tree: bytes
    local: bytes
    tensors: tuple[bytes, ...]
    kinds: tuple[Any, ...]


def seen(buffer: CommitBuffer) -> Seen | None:
    """What ``buffer`` holds now, through and through."""
    commit = buffer.last()
    if commit is None:
        return None
    kinds = tuple((view.dtype, tuple(view.shape), view.stride()) for view in commit.views)
    return Seen(commit.record, commit.tree, commit.local, tuple(map(raw, commit.views)), kinds)


def raw(tensor: Tensor) -> bytes:
    """The elements, in order, as bytes."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


@contextmanager
def memory_files(count: int = 2) -> Iterator[list[int]]:
    """Descriptors as whoever starts training processes hands them down."""
    descriptors = [os.memfd_create(f"test-commit-{index}", os.MFD_ALLOW_SEALING) for index in range(count)]
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def buffer_over(descriptors: Sequence[int] | None) -> CommitBuffer:
    """What a process that was just started with ``descriptors`` sees."""
    return CommitBuffer(open_sides(descriptors))


def keeper_of(
    comms: Any,
    memory: Sequence[int] | None,
    *,
    seed: int = 0,
    width: int = 2,
    link: Link | None = None,
    settings: WorkerSettings | None = None,
    optimizer: bool = False,
    record: journal.Record | None = None,
    **options: Any,
) -> tuple[Keeper, Any, HeldCommit | None]:
    """A State of a model and a number, as ``owner`` has them, and of an ``optimizer`` if one is asked for.

    With a link it keeps commits for checkpoints.
    """
    torch.manual_seed(seed)
    net, names = nn.Linear(3, width), torch_parts.ParameterNames()
    owner = SimpleNamespace(model=net, epoch=seed)
    parts = {"model": torch_parts.part_for(net, names)}
    if optimizer:
        owner.optimizer = torch.optim.SGD(net.parameters(), 0.1)
        parts["optimizer"] = torch_parts.part_for(owner.optimizer, names)
    inventory = Inventory(owner, parts, names=["epoch"], part_for=torch_parts.part_for)
    names.models = lambda: inventory.values_of(torch_parts.ModelPart)
    clock, buffer = SystemClock(), buffer_over(memory)
    held = HeldCommit(buffer, link) if link else None
    keeper = Keeper(
        inventory, buffer=buffer, comms=comms, clock=clock,
        reporter=journal.Reporter(record, clock, sample=0.0, host=""), settings=settings or WorkerSettings(),
        program=options.pop("program", ""), held=held, **options,
    )  # fmt: skip
    return keeper, owner, held
