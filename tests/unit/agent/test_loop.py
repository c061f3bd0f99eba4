"""A host that may open too few files for its slots."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from hvd_elastic_ext.agent import loop
from hvd_elastic_ext.agent.descriptors import Outbox
from hvd_elastic_ext.agent.loop import Agent
from hvd_elastic_ext.io import file_limits


@pytest.fixture
def agent() -> Iterator[Agent]:
    reader, writer = os.pipe()
    made = Agent(reader, Outbox(writer), wake=reader, clock=time.monotonic, joining=lambda *_: pytest.fail("joins"))
    yield made
    os.close(reader)
    os.close(writer)


def test_it_says_so_once_with_the_number_that_it_needs(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(loop, "warn", said.append)
    monkeypatch.setattr(file_limits, "present_limit", lambda: 40)
    for slots in range(1, 6):
        agent._check_open_files(slots)
    assert said == [
        "this process may open 40 files (ulimit -n), and a host with 3 slots needs at least 46; "
        "raise the hard limit (ulimit -Hn 46 or more) and start again"
    ]
