"""The executor does the actions in order, with few messages."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.driver import actions, recording
from hvd_elastic_ext.launcher.driver.actions import Action, Send
from hvd_elastic_ext.launcher.driver.executor import MAX_ORDERS_PER_MESSAGE, Executor
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, RankAssignments, Seat
from tests.support.clock import ManualClock

PLACE = Place(0, 1, 0, 1, 0, 1)


class ExecutorBackend:
    """Notes all actions."""

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
        """Do nothing: no engine starts a program."""

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
    sent = done(*(Send("a", order(number)) for number in range(2 * MAX_ORDERS_PER_MESSAGE + 1)))
    assert [len(each.get("orders", [each])) for _, each in sent] == [MAX_ORDERS_PER_MESSAGE, MAX_ORDERS_PER_MESSAGE, 1]


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
        actions.GoLive(life, 3, PLACE, later=True),
        actions.TellPeers(life),
        actions.TellPeers(ProcessId(Seat("a", 0), 1)),
        actions.SendCommit("a", {"do": "helper", "id": 1, "slots": [1], "request": request}),
        actions.StartProcess(ProcessId(Seat("a", 2), 1), PLACE, 4, 2, {2: 0}, ()),
    )
    live, late, peers, _, helper, start = together["orders"]
    assert "later" not in live["message"]
    assert late["message"]["later"] is True
    assert live["to"] == {"1": 7}
    assert live["message"]["env"]["PEERS"] == "a"
    assert peers["message"] == {"tell": "env", "env": {"PEERS": "a"}}
    assert helper["request"] == {**request, "address": "address of a"}
    assert (start["do"], start["slot"], start["life"], start["note"]) == ("start", 2, 1, "0/2")
    [(_, spare)] = done(actions.StartProcess(ProcessId(Seat("a", 5), 1), PLACE, 4, 1, {2: 0}, ()))
    assert spare["note"] == "0/1"


def test_a_process_whose_peers_need_nothing_is_told_nothing() -> None:
    assert done(actions.TellPeers(ProcessId(Seat("b", 0), 1))) == []


A, B = ProcessId(Seat("a", 0), 3), ProcessId(Seat("b", 1), 1)
MANY: list[Action] = [
    actions.Tell((A, B, ProcessId(Seat("a", 1), 2)), {"tell": "update"}),
    actions.AssignRanks(4, RankAssignments({A: Place(0, 2, 0, 1, 0, 2), B: Place(1, 2, 0, 1, 1, 2)}, [7, 9])),
]


def test_what_many_are_told_goes_to_each_host_in_its_order() -> None:
    first, second = done(*MANY)
    assert (first[0], second[0]) == ("a", "b")
    update, world, answer = first[1]["orders"]
    assert update == {"do": "tell", "to": {"0": 3, "1": 2}, "message": {"tell": "update"}}
    assert world["message"] == {"tell": "world", "generation": 4, "rank": 0, "size": 2}
    assert answer == {"do": "answer", "slot": 0, "id": 7, "status": 200, "body": "MCwyLDAsMSwwLDI="}


def test_a_recording_has_what_many_are_told_as_the_order_of_each() -> None:
    told, world, answer = (recording.described(MANY)[at] for at in (0, 2, 4))
    assert told == 'Send a {"do":"tell","message":{"tell":"update"},"to":{"0":3,"1":2}}'
    assert world.startswith("Send a ")
    assert '"generation":4' in world
    assert answer.startswith('Send a {"body":"MCwyLDAsMSwwLDI="')
