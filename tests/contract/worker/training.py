"""A small training, and the journal of its process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


def trained(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = nn.Linear(3, 2)
    optimizer = make(net.parameters())
    step(net, optimizer)
    return net, optimizer


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()


def train(state: Any) -> None:
    """One step, and what a user notes of it."""
    step(state.model, state.optimizer)
    state.batch += 1
    state.history.append(state.batch)


def given_a_journal(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Path:
    journal = directory / "worker.jsonl"
    journal.touch()
    monkeypatch.setenv("HVD_ELASTIC_WORKER_JOURNAL", str(journal))
    monkeypatch.setenv("HVD_ELASTIC_SAMPLE", "0")
    return journal


def events(journal: Path, name: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [line for line in lines if name in (None, line["event"])]
