"""Host updates from the link, as States get them."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import Any

from horovod.common.elastic import State
from horovod.runner.elastic.worker import HostUpdateResult

from hvd_elastic_ext.worker.patches.horovod_hook import HostUpdates
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.process.standby import Standby
from hvd_elastic_ext.worker.sync.host_updates import HostsUpdate


class Ours:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_hosts_update(self, update: HostsUpdate) -> None:
        self.heard.append((update.generation, update.reason, update.deadline is not None))

    def on_hosts_updated(self, timestamp: float, result: object) -> None:
        self.heard.append("now")


def listening(*listeners: Any, generation: int | None = 1) -> HostUpdates:
    process = Standby(Link(), environ={})
    process.generation = generation
    return HostUpdates(SimpleNamespace(_listeners=set(listeners)), process)


def update(generation: int, *, leave: bool = False, in_s: float | None = None) -> dict[str, Any]:
    return {"tell": "update", "generation": generation, "leave": leave, "in_s": in_s, "reason": "more hosts"}


def test_our_state_gets_each_update_once_and_none_for_a_world_that_has_formed() -> None:
    ours = Ours()
    updates = listening(ours)
    for generation in (1, 2, 2, 1, 3):
        updates(update(generation, in_s=5.0 if generation == 3 else None))
    assert ours.heard == [(2, "more hosts", False), (3, "more hosts", True)]


def test_a_process_that_must_leave_is_notified_even_if_the_number_is_known() -> None:
    ours = Ours()
    updates = listening(ours)
    updates(update(2))
    updates(update(2, leave=True))
    assert ours.heard == [(2, "more hosts", False), "now"]


def test_a_stock_state_never_skips_the_sync_nor_ignores_an_update_as_old() -> None:
    state = State(bcast_object=lambda value: value, get_rank=lambda: 0)
    state._last_updated_timestamp = 9e12  # another host's clock, which was rank 0's, is years ahead
    updates = listening(state)
    updates(update(2))
    timestamp, result = state._host_messages.get_nowait()
    assert timestamp > state._last_updated_timestamp
    assert result == HostUpdateResult.mixed  # only "removed" alone makes the stock loop skip it


def test_a_pending_update_is_repeated_after_a_reset_and_an_old_one_is_not() -> None:
    updates = listening(generation=None)
    assert not updates.pending
    updates(update(1))
    assert updates.pending
    updates._process.generation = 1
    assert not updates.pending


def test_the_environment_for_peers_changes_with_the_next_world_only() -> None:
    environ = {"HOROVOD_GLOO_IFACE": "lo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
    ours, theirs = socket.socketpair()
    process = Standby(Link(theirs), environ=environ)
    with ours:
        process.link.on_message({"tell": "env", "env": {"HOROVOD_GLOO_IFACE": "eth0"}})
        assert environ["HOROVOD_GLOO_IFACE"] == "lo"
        process.link.start()
        seen: list[str] = []
        process.generation, process.planned = 1, None
        ours.sendall(b'{"tell": "world", "generation": 2}\n')
        process.init(lambda: seen.append(environ["HOROVOD_GLOO_IFACE"]), lambda: None, later=False)
        assert seen == ["eth0"]
    process.link.close()


def test_a_script_sees_that_it_must_leave_and_the_launcher_hears_of_each_change_once() -> None:
    ours, theirs = socket.socketpair()
    process = Standby(Link(theirs), environ={})
    seen: list[bool] = []
    for told in (
        {"tell": "reclaim", "leaving": True},
        {"tell": "reclaim", "leaving": True},
        {"tell": "reclaim", "leaving": False},
        update(2),
        update(2, leave=True),
        {"tell": "reclaim", "leaving": True},
        update(3),  # the reclaim stands
    ):
        process.link.on_message(told)
        seen.append(process.alive())
    assert seen == [False, False, True, True, False, False, False]
    with ours, ours.makefile("rb") as said:
        process.link.close()
        lines = [json.loads(line) for line in said]
    assert [line["leaving"] for line in lines if line["say"] == "warned"] == [True, False, True]
    assert process.link.status.progress == 7


def test_a_notice_withdrawn_between_two_checks_is_not_reported() -> None:
    process = Standby(Link(), environ={})
    process._on_message({"tell": "reclaim", "leaving": True})
    process._on_message({"tell": "reclaim", "leaving": False})
    assert process.alive()
