"""What an agent passes on of its processes, and in which order."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from hvd_elastic_ext.agent.slots import worker_link
from hvd_elastic_ext.agent.slots.worker_link import WorkerLink


def test_a_process_that_is_done_has_its_last_heartbeat_passed_on_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "RendezvousProxy", MagicMock())
    socket_link, agent, told = MagicMock(), MagicMock(), list[tuple[str, Any]]()
    monkeypatch.setattr(worker_link, "SocketLink", socket_link)
    agent.now.return_value = 7.0
    agent.tell.side_effect = lambda event, **fields: told.append((event, fields["message"]))
    WorkerLink(0, agent).begin(1)
    hears = socket_link.call_args.kwargs["received"]
    hears({"say": "beat", "step": 1})
    hears({"say": "looping"})
    hears({"say": "barrier", "call": 0, "number": 1})  # this host's own matter
    hears({"say": "beat", "step": 10})
    hears({"say": "done"})
    assert told == [
        ("said", {"say": "looping"}),
        ("said", {"say": "beat", "step": 10}),
        ("said", {"say": "done"}),
    ]
