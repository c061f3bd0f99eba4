"""The executor does what was decided, in order, with few messages."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.driver.executor import TOGETHER, Executor
from hvd_elastic_ext.launcher.rules.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.state import actions
from hvd_elastic_ext.launcher.state.actions import Action, Send
from tests.support.clock import ManualClock

PLACE = Place(0, 1, 0, 1, 0, 1)


class ExecutorBackend:
    """Notes what is done."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Any]] = []
        self.environment: Mapping[str, str] = {}

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        self.done.append((host, order))
        return True

    def hang_up(self, host: str, reason: str) -> None:
        self.done.append((host, reason))

    def stop_launch(self, host: str) -> None:
        self.done.append((host, "stop launch"))

    def start_agent(self, host: Host) -> None:
        self.done.append((host.name, "start"))

    def end_agent(self, host: Host) -> None:
        self.done.append((host.name, "end"))

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        return {"env": {"PLACE": place.text()}}

    def peer_address(self, host: str) -> str:
        return f"address of {host}"

    def go_env(self, host: str) -> dict[str, str]:
        return {"PEERS": host} if host == "a" else {}

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        pass

    def begin_world(self, generation: int, hosts: Sequence[str]) -> None:
        """No engine starts a program."""

    def unfit(self, host: Host) -> str | None:
        return None


def done(*wanted: Action) -> list[tuple[str, Any]]:
    backend = ExecutorBackend()
    Executor(backend, Journal(io.StringIO(), ManualClock()), facts_of=lambda host: {}, save=lambda: None).do(wanted)
    return backend.done


def order(number: int) -> dict[str, Any]:
    return {"do": "drop", "slots": [number]}


def test_orders_to_one_agent_go_in_one_message_in_their_order() -> None:
    assert done(Send("a", order(1)), Send("b", order(2)), Send("a", order(3))) == [
        ("a", {"do": "all", "orders": [order(1), order(3)]}),
        ("b", order(2)),
    ]


def test_a_message_has_a_bounded_number_of_orders() -> None:
    sent = done(*(Send("a", order(number)) for number in range(2 * TOGETHER + 1)))
    assert [len(each.get("orders", [each])) for _, each in sent] == [TOGETHER, TOGETHER, 1]


def test_orders_are_sent_before_the_connection_is_closed() -> None:
    wanted = (Send("a", order(1)), actions.HangUp("a", "silent"), Send("a", order(2)), actions.StopLaunch("a"))
    assert [each for _, each in done(*wanted)] == [order(1), "silent", order(2), "stop launch"]


def test_a_journal_line_is_written_with_its_own_time() -> None:
    lines, clock = io.StringIO(), ManualClock(mono=10.0, wall=1000.0)
    executor = Executor(ExecutorBackend(), Journal(lines, clock), facts_of=lambda host: {}, save=lambda: None)
    executor.do([actions.Record("slept", 3, {"reason": "x"}, 4.0)])
    line = json.loads(lines.getvalue())
    assert (line["event"], line["generation"], line["mono"], line["t"]) == ("slept", 3, 4.0, 994.0)


def test_what_only_the_edges_know_is_added_to_orders() -> None:
    life = ProcessId(Seat("a", 1), 7)
    request = {"do": "send", "transfer": "t"}
    [(_, together)] = done(
        actions.GoLive(life, 2, PLACE),
        actions.TellPeers(life),
        actions.TellPeers(ProcessId(Seat("a", 0), 1)),
        actions.SendCommit("a", {"do": "errand", "id": 1, "slots": [1], "request": request}),
        actions.StartProcess(ProcessId(Seat("a", 2), 1), PLACE, 4, {2: 0}, ()),
    )
    live, peers, _, helper, start = together["orders"]
    assert live["to"] == {"1": 7}
    assert live["message"]["env"]["PEERS"] == "a"
    assert peers["message"] == {"tell": "env", "env": {"PEERS": "a"}}
    assert helper["request"] == {**request, "address": "address of a"}
    assert (start["do"], start["slot"], start["life"], start["note"]) == ("start", 2, 1, "0")


def test_a_process_whose_peers_need_nothing_is_told_nothing() -> None:
    assert done(actions.TellPeers(ProcessId(Seat("b", 0), 1))) == []
