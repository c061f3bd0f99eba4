"""A device that is played."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.log.append(f"{self.name} is done")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device whose streams tell what they are asked: "own", and "present" for the one of the training."""
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("own", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("present", log))
    monkeypatch.setattr(torch.cuda, "stream", lambda used: nullcontext())
    return log
