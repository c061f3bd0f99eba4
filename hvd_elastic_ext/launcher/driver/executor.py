"""Does the actions of planners and reducers: the only part of the driver that does anything outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.driver import actions
from hvd_elastic_ext.launcher.driver.actions import Action
from hvd_elastic_ext.launcher.membership.devices import StartedWith, device_env
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

Facts = Mapping[str, Any]
MAX_ORDERS_PER_MESSAGE: Final = 32
"""Most orders in one message to an agent: an order that starts a process may be long."""


class ExecutorBackend(Protocol):
    """What the executor needs of sockets and processes. ``facts``: what an agent reports of its machine."""

    def start_agent(self, host: Host) -> None:
        """Start an agent, or have a living one connect again. Events follow: it joins, or its launch ends."""

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        """Give a host's agent an order; False if it is not connected."""

    def stop_launch(self, host: str) -> None:
        """Give up the start of an agent."""

    def hang_up(self, host: str, reason: str) -> None:
        """Close the connection to a host's agent. A living agent connects again."""

    def end_agent(self, host: Host) -> None:
        """End a host's agent and all its processes, without a connection to it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What agents give to every process. It is never part of an order: orders are not encrypted."""

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        """The part of a start order that differs by seat. ``place``: what user code sees until there is a rank."""

    def peer_address(self, host: str) -> str:
        """The address at which other agents reach a host's agent."""

    def go_env(self, host: str) -> dict[str, str]:
        """What a host's process gets in its environment when it goes live."""

    def begin_world(self, generation: int, hosts: Sequence[str]) -> None:
        """Start what the engine starts for a world with known ranks. ``hosts``: the host of each rank."""

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        """Ask for this many hosts; those that are ``leaving`` are not needed any more. :class:`Scaled` follows."""

    def unfit(self, host: Host) -> str | None:
        """Why a host cannot be used, and what to do; None if it can."""


class Executor:
    """``facts_of``: what a host's agent reports of its machine. ``save``: saves the state for the next launcher."""

    def __init__(
        self,
        backend: ExecutorBackend,
        journal: Journal,
        *,
        facts_of: Callable[[str], Facts],
        save: Callable[[], None],
    ) -> None:
        self._backend, self._journal, self._facts_of, self._save = backend, journal, facts_of, save
        self._unsent: dict[str, list[Mapping[str, Any]]] = {}

    def do(self, wanted: Iterable[Action]) -> None:
        """Do all actions, in order. Orders to one agent are joined: thousands of processes need thousands of orders."""
        backend = self._backend
        for action in wanted:
            match action:
                case actions.Send(host, order):
                    self._order(host, order)
                case actions.Tell() | actions.AssignRanks():
                    for host, order in action.orders():
                        self._order(host, order)
                case actions.Record(event, generation, fields, at):
                    self._journal.record(event, generation=generation, at_mono=at, **fields)
                case actions.StartProcess():
                    self._start(action)
                case actions.GoLive(life, generation, place, later):
                    env = {**backend.go_env(life.seat.host), **place.environment()}
                    more = {"later": True} if later else {}
                    self._tell(life, {"tell": "go", "generation": generation, "env": env, **more})
                case actions.TellPeers(life):
                    if env := backend.go_env(life.seat.host):
                        self._tell(life, {"tell": "env", "env": env})
                case actions.SendCommit(host, order):
                    request = {**order["request"], "address": backend.peer_address(host)}
                    self._order(host, {**order, "request": request})
                case actions.Save():
                    self._save()
                case _:
                    self._send_all()  # the next action may end the connection
                    self._start_or_end(action)
        self._send_all()

    def _start_or_end(self, action: Action) -> None:
        match action:
            case actions.StartAgent(host):
                self._backend.start_agent(host)
            case actions.StopLaunch(host):
                self._backend.stop_launch(host)
            case actions.HangUp(host, reason):
                self._backend.hang_up(host, reason)
            case actions.EndAgent(host):
                self._backend.end_agent(host)
            case actions.BeginWorld(generation, hosts):
                self._backend.begin_world(generation, hosts)
            case actions.Scale(count, leaving, reason):
                self._backend.scale(count, leaving, reason)

    def _order(self, host: str, order: Mapping[str, Any]) -> None:
        self._unsent.setdefault(host, []).append(order)

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for host, orders in unsent.items():
            for first in range(0, len(orders), MAX_ORDERS_PER_MESSAGE):
                together = orders[first : first + MAX_ORDERS_PER_MESSAGE]
                self._backend.send(host, together[0] if len(together) == 1 else {"do": "all", "orders": together})

    def _tell(self, life: ProcessId, message: Mapping[str, Any]) -> None:
        to = {str(life.seat.slot): life.number}
        self._order(life.seat.host, {"do": "tell", "to": to, "message": message})

    def _start(self, start: actions.StartProcess) -> None:
        seat, number = start.life
        order = self._backend.start_order(seat, start.place)
        devices = device_env(
            {**self._backend.environment, **order["env"]},
            self._facts_of(seat.host),
            slot=start.device_of,
            slots=start.slots,
            local_ranks=start.neighbours,
            blocked=list(start.blocked),
        )
        note = StartedWith(start.place.local_rank, start.device_of).note()
        own = {"env": {**order["env"], **devices}, "life": number, "link": True, "note": note}
        self._order(seat.host, {**order, "do": "start", "slot": seat.slot, **own})
