"""One commit at a time goes from the agent that holds it to another one, or from storage into an agent's memory.

The launcher only says who sends what to whom. The agents' errands do the work and verify it
(``checkpoint/transfer/transfer.py``); neither end loses what it holds if that fails.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.launcher.rules.checkpoints.attempt import last_words
from hvd_elastic_ext.launcher.rules.membership.custody import Holding
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.commit_holders import read
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Agent

log = logging.getLogger(__name__)

TRANSFER_S: Final = 900.0
"""How long one may take: the largest commits, over a slow network."""
AGAIN_S: Final = 1.0
"""Pause after one that failed."""
ROW_S: Final = 3.0
"""A try that begins later than this after one that failed has not failed in a row with it: much may have changed."""


@dataclass(slots=True)
class Transfer:
    """On its way. ``source`` is None for a checkpoint; ``asked``: the errand that is waited for, and whose it is."""

    target: Seat
    source: Holding | None
    token: str
    began: float
    asked: dict[int, str]

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.target.host,) if self.source is None else (self.source.seat.host, self.target.host)


RETURNS: Final = 3
"""How often a holder is asked as if nothing had failed, when its connection or that of the receiver is back: where one
of them breaks each time, it is not asked for ever."""


class Failures(NamedTuple):
    """Tries in a row that have failed: when the first one began and the last one ended (mono), between which hosts that
    was, and how often one of them has come back meanwhile."""

    began: float
    ended: float
    hosts: tuple[str, ...]
    returns: int = 0


class Transfers:
    """See the module's docstring."""

    def __init__(self, station: Station, *, place: str | None) -> None:
        self._failures: dict[Seat | None, Failures] = {}
        """Of each slot whose commit could not be sent; of None, those to load a checkpoint."""
        self._looked: dict[str, str] = {}
        """Hosts that have loaded the newest checkpoint that is whole, or found none, and which agent that was."""
        self._station = station
        self._place = place
        self._current: Transfer | None = None
        self._not_before = 0.0

    @property
    def _now(self) -> Transfer | None:
        """What is on its way."""
        return self._current

    @_now.setter
    def _now(self, transfer: Transfer | None) -> None:
        self._current = transfer
        self._station.transferring = frozenset(() if transfer is None else transfer.hosts)

    def may_begin(self, now: float) -> bool:
        return self._now is None and now >= self._not_before

    def next_look(self) -> float | None:
        """When something is due (mono)."""
        return self._not_before if self._now is None else self._now.began + TRANSFER_S

    @property
    def failing(self) -> dict[Seat, float]:
        """By slot, for how many seconds all tries in a row to send its commit have failed."""
        return {seat: each.ended - each.began for seat, each in self._failures.items() if seat is not None}

    @property
    def sending(self) -> Seat | None:
        """The slot whose commit is on its way."""
        return None if self._now is None or self._now.source is None else self._now.source.seat

    def overslept(self, seconds: float) -> None:
        """The launcher stood still: no time has passed for what is on its way."""
        if self._now is not None:
            self._now.began += seconds

    @property
    def loading(self) -> float:
        """For how many seconds all tries in a row to load a checkpoint have failed."""
        each = self._failures.get(None)
        return 0.0 if each is None else each.ended - each.began

    @property
    def looked(self) -> frozenset[str]:
        """Hosts whose agent has loaded the newest checkpoint that is whole, or found none."""
        agents = self._station.roster.agents
        there = ((host, agents.get(host), itself) for host, itself in self._looked.items())
        return frozenset(host for host, agent, itself in there if agent is not None and agent.itself == itself)

    def formed(self) -> None:
        """A world has formed: what failed before does not count any more."""
        self._failures.clear()
        self._looked.clear()

    # --- begin and end

    def send(self, source: Holding, target: Seat) -> None:
        """Have ``source`` send its commit to ``target``."""
        station, token = self._station, secrets.token_hex(16)
        self._now = Transfer(target, source, token, station.now(), {})
        commit = [*source.commit]
        if source.seat.host == target.host:
            slots = [source.seat.slot, target.slot]
            self._ask(target.host, slots, {"do": "copy", "from": slots[0], "to": slots[1], "commit": commit})
            return
        address = station.hands.peer_address(source.seat.host)
        request = {"do": "send", "transfer": token, "slot": source.seat.slot, "commit": commit, "address": address}
        self._ask(source.seat.host, [source.seat.slot], request)

    def load(self, target: Seat) -> None:
        """Have ``target`` load the newest checkpoint."""
        self._now = Transfer(target, None, "", self._station.now(), {})
        request = {"do": "load", "place": self._place, "ranks": {str(target.slot): 0}}
        self._ask(target.host, [target.slot], request)

    def cancel(self) -> None:
        """Nobody needs it any more. What the target held before stays as it was."""
        transfer, self._now = self._now, None
        if transfer is not None:
            self._drop(transfer)

    def look(self, now: float) -> None:
        """Give up what takes too long."""
        if self._now is not None and now >= self._now.began + TRANSFER_S:
            self._failed(f"it took longer than {TRANSFER_S:g} s")

    def lost(self, host: str) -> None:
        """A connection was lost, and with it perhaps an answer."""
        if self._now is not None and host in self._now.hosts:
            self._failed(f"the connection to {host} was lost", blame=False)

    def came(self, host: str) -> None:
        """An agent has come back: what failed may have failed because its connection was broken already."""
        now = self._station.now()
        for seat, each in self._failures.items():
            if seat is not None and host in each.hosts and each.returns < RETURNS:
                self._failures[seat] = each._replace(began=now, ended=now, returns=each.returns + 1)

    def _ask(self, host: str, slots: list[int], request: Mapping[str, Any]) -> None:
        assert self._now is not None
        number = self._station.new_errand()
        self._now.asked[number] = host
        order = {"do": "errand", "id": number, "slots": slots, "request": request}
        if not self._station.hands.send(host, order):
            self._failed(f"{host} is not connected", blame=False)

    # --- answers

    def take(self, agent: Agent, news: Mapping[str, Any]) -> bool:
        """Take in what an agent says of its errand; False if it is about something else."""
        transfer, number = self._now, news.get("id")
        if transfer is None or news.get("event") not in ("errand", "errand_ended"):
            return False
        host = transfer.asked.get(number) if isinstance(number, int) else None
        if host != agent.host.name:
            return False
        answer = news.get("answer")
        if news["event"] == "errand_ended":
            if not (host != transfer.target.host and news.get("code") == 0):  # a sender is done before the receiver
                self._failed(f"{host}: {last_words(news)}")
        elif not isinstance(answer, dict):
            self._failed(f"{host}: an answer that is none")
        elif isinstance(why := answer.get("failed"), str):
            self._failed(f"{host}: {why}", for_good=answer.get("for_good") is True and host != transfer.target.host)
        elif isinstance(address := answer.get("listening"), list):
            self._receive(transfer, address)
        elif host == transfer.target.host:
            self._done(transfer, agent, answer)
        return True

    def _receive(self, transfer: Transfer, address: list[Any]) -> None:
        assert transfer.source is not None
        target = transfer.target
        request = {"do": "receive", "transfer": transfer.token, "slot": target.slot, "from": address}
        self._ask(target.host, [target.slot], {**request, "commit": [*transfer.source.commit]})

    def _done(self, transfer: Transfer, agent: Agent, answer: Mapping[str, Any]) -> None:
        held, station = read(answer.get("held")), self._station
        if held is None and transfer.source is not None:
            self._failed(f"{transfer.target.host}: an answer that is none")
            return
        self._now = None
        if transfer.source is None:
            self._looked[transfer.target.host] = agent.itself
        if held is None:
            return
        station.roster.commits.told(transfer.target, *held, agent=agent.itself)
        took = round(station.now() - transfer.began, 3)
        to = {"host": transfer.target.host, "slot": transfer.target.slot, "step": held[1], "seconds": took}
        if transfer.source is None:
            path = str(answer.get("path"))
            log.warning(
                "%s has loaded %s, of step %d: nothing in memory is as new", transfer.target.host, path, held[1]
            )
            station.record("resumed", path=path, **to, reason=f"the newest commit left is {path}")
            return
        source = transfer.source.seat
        # The sender waits for a receiver that does not come where that had got it already.
        station.hands.send(source.host, {"do": "drop", "slots": [source.slot]})
        log.warning("step %d went from %s to %s: only %s held it", held[1], source, transfer.target, source.host)
        station.record("sent", source=source.host, bytes=answer.get("bytes"), **to, reason=f"only {source} held it")

    def _failed(self, why: str, *, for_good: bool = False, blame: bool = True) -> None:
        transfer, self._now = self._now, None
        assert transfer is not None
        self._drop(transfer)
        now = self._station.now()
        self._not_before = now + AGAIN_S
        seat = None if transfer.source is None else transfer.source.seat
        if seat is not None and for_good:
            self._station.roster.commits.disowned(seat)
        else:
            before = self._failures.get(seat)
            first = transfer.began if blame else now  # a link that broke once is no fault of the holder's
            if before is not None and transfer.began <= before.ended + ROW_S:
                first = before.began
            self._failures[seat] = Failures(first, now, transfer.hosts, 0 if before is None else before.returns)
        what = "no checkpoint could be loaded" if transfer.source is None else f"{transfer.source.seat} sent no commit"
        log.warning("%s: %s", what, why)
        self._station.record("not_sent", host=transfer.target.host, reason=f"{what}: {why}")

    def _drop(self, transfer: Transfer) -> None:
        slots = {transfer.target.host: [transfer.target.slot]}
        if transfer.source is not None:
            slots.setdefault(transfer.source.seat.host, []).append(transfer.source.seat.slot)
        for host in dict.fromkeys(transfer.asked.values()):
            self._station.hands.send(host, {"do": "drop", "slots": slots.get(host, [])})
