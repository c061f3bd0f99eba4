"""Sends commits from one agent to another, or from storage into an agent's memory, one at a time.

The launcher only says which commit goes where. The agents' helpers send it and verify it
(``checkpoint/transfer/transfer.py``). If that fails, both ends keep what they hold, and :mod:`custody` decides again:
it passes over a source that has only failed for as long as a holder is waited for (``--commit-wait``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.launcher.custody.holders import read
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.driver.helpers import TRANSFER_S, Purpose
from hvd_elastic_ext.launcher.membership import calls

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.custody.custody import CustodyDecision
    from hvd_elastic_ext.launcher.custody.holders import Holding
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent
    from hvd_elastic_ext.launcher.membership.rendezvous import Seat

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Transfer:
    """A transfer under way. ``source``: None for a checkpoint."""

    target: Seat
    source: Holding | None
    token: str
    began: float

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that take part: the holder's, if there is one, and the target's."""
        return (self.target.host,) if self.source is None else (self.source.seat.host, self.target.host)


class FailedTries(NamedTuple):
    """Failed tries in a row: start of the first and end of the last (mono), the hosts, and how often one of them has
    connected again since."""

    began: float
    ended: float
    hosts: tuple[str, ...]
    returns: int = 0

    @property
    def seconds(self) -> float:
        """For how long all tries have failed."""
        return self.ended - self.began


IN_A_ROW_S: Final = 3.0
"""Failed tries count as in a row if the next one begins within this time."""


@dataclass(slots=True)
class Transfers:
    """Transfers of commits, one at a time."""

    current: Transfer | None = None
    not_before: float = 0.0
    failures: dict[Seat | None, FailedTries] = field(default_factory=dict)
    """By seat of the holder; None: tries to load a checkpoint."""
    looked: dict[str, str] = field(default_factory=dict)
    """Hosts that have loaded the newest complete checkpoint, or found none, with the identity of the agent."""

    def failed(
        self, seat: Seat | None, *, began: float, now: float, hosts: tuple[str, ...], blame: bool = True
    ) -> None:
        """A try has failed. Without ``blame`` a connection was broken: that alone does not count against the holder,
        but it does not end a row of failures either.
        """
        before, first = self.failures.get(seat), began if blame else now
        if before is not None and began <= before.ended + IN_A_ROW_S:
            first = before.began
        self.failures[seat] = FailedTries(first, now, hosts, 0 if before is None else before.returns)

    def may_begin(self, now: float) -> bool:
        """Whether a transfer may start: none is under way, and the pause after a failed one is over."""
        return self.current is None and now >= self.not_before

    @property
    def next_look(self) -> float:
        """When the pause ends, or the transfer under way times out (mono)."""
        return self.not_before if self.current is None else self.current.began + TRANSFER_S

    @property
    def sending(self) -> Seat | None:
        """The seat whose commit is being sent."""
        return None if self.current is None or self.current.source is None else self.current.source.seat

    @property
    def failing(self) -> dict[Seat, float]:
        """By seat, for how many seconds all tries to send its commit have failed in a row."""
        return {seat: each.seconds for seat, each in self.failures.items() if seat is not None}

    @property
    def loading(self) -> float:
        """For how many seconds all tries to load a checkpoint have failed in a row."""
        each = self.failures.get(None)
        return 0.0 if each is None else each.seconds


# --- what happens


RETRY_S: Final = 1.0
"""Pause after a failed try."""
MAX_RECONNECTIONS: Final = 3
"""How often a reconnection of one end clears a holder's failures: a connection that always breaks must not clear
them for ever.
"""


def world_formed(job: JobState) -> None:
    """A world has formed: forget earlier failures."""
    job.transfers.failures.clear()
    job.transfers.looked.clear()


# --- begin and end


def begin(job: JobState, decision: CustodyDecision) -> None:
    """Begin the transfer that the decision wants, if agents can do it now."""
    source, target = decision.source, decision.target
    if not decision.transfers or not job.transfers.may_begin(job.now):
        return
    assert target is not None
    hosts = [] if source is None else [source.seat.host]
    if source is not None and job.calls.go_first(source.seat, target):
        calls.begin_first(job, source.seat, target)
        return
    if not job.busy.isdisjoint({target.host, *hosts}):
        return
    if job.calls.transfer is not None and not {target.host, *hosts}.isdisjoint(job.calls.transfer.hosts):
        calls.cancel(job)  # training waits for this one
    if source is None:
        _load(job, target)
    else:
        _send(job, source, target)


def time_out(job: JobState) -> None:
    """Give up a transfer that takes too long."""
    if job.transfers.current is not None and job.now >= job.transfers.current.began + TRANSFER_S:
        _failed(job, f"it took longer than {TRANSFER_S:g} s")


def _send(job: JobState, source: Holding, target: Seat) -> None:
    """Have ``source`` send its commit to ``target``."""
    token = f"{job.helper_number + 1:032x}"  # by its helper; not a secret: the agents authenticate by the job's key
    job.transfers.current = Transfer(target, source, token, job.now)
    commit = [*source.commit]
    if source.seat.host == target.host:
        slots = [source.seat.slot, target.slot]
        _ask(job, target.host, slots, {"do": "copy", "from": slots[0], "to": slots[1], "commit": commit})
        return
    request = {"do": "send", "transfer": token, "slot": source.seat.slot, "commit": commit}
    _ask(job, source.seat.host, [source.seat.slot], request)


def _load(job: JobState, target: Seat) -> None:
    """Have ``target`` load the newest checkpoint."""
    job.transfers.current = Transfer(target, None, "", job.now)
    assert job.options.durability is not None
    request = {"do": "load", "place": job.options.durability.place, "ranks": {str(target.slot): 0}}
    _ask(job, target.host, [target.slot], request)


def cancel(job: JobState) -> None:
    """Stop the transfer under way, if any. What the target held before stays as it was."""
    transfer, job.transfers.current = job.transfers.current, None
    if transfer is not None:
        _drop(job, transfer)


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, perhaps with an answer."""
    if job.transfers.current is not None and host in job.transfers.current.hosts:
        _failed(job, f"the connection to {host} was lost", blame=False)


def agent_joined(job: JobState, host: str) -> None:
    """An agent is connected again: earlier tries may have failed because its connection was broken."""
    now = job.now
    for seat, each in job.transfers.failures.items():
        if seat is not None and host in each.hosts and each.returns < MAX_RECONNECTIONS:
            job.transfers.failures[seat] = each._replace(began=now, ended=now, returns=each.returns + 1)


def _ask(job: JobState, host: str, slots: list[int], request: Mapping[str, Any]) -> None:
    if not job.run_helper(Purpose.TRANSFER, host, slots, request):
        _failed(job, f"{host} is not connected", blame=False)


# --- answers


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """One end of the transfer listens for the other, or is done, or has failed."""
    transfer, host = job.transfers.current, agent.host.name
    assert transfer is not None
    receives, content = host == transfer.target.host, answer.content
    if answer.failed is not None:
        if receives or not answer.ended_well:  # the sender ends before the receiver
            _failed(job, f"{host}: {answer.failed}", for_good=content.get("for_good") is True and not receives)
    elif not receives and isinstance(address := content.get("listening"), list):
        _receive(job, transfer, address)
    elif receives:
        _done(job, transfer, agent, content)


def _receive(job: JobState, transfer: Transfer, address: list[Any]) -> None:
    assert transfer.source is not None
    target = transfer.target
    request = {"do": "receive", "transfer": transfer.token, "slot": target.slot, "from": address}
    _ask(job, target.host, [target.slot], {**request, "commit": [*transfer.source.commit]})


def _done(job: JobState, transfer: Transfer, agent: Agent, answer: Mapping[str, Any]) -> None:
    held = read(answer.get("held"))
    if held is None and transfer.source is not None:
        _failed(job, f"{transfer.target.host}: an invalid answer")
        return
    job.transfers.current = None
    job.helpers[Purpose.TRANSFER].clear()
    if transfer.source is None:
        job.transfers.looked[transfer.target.host] = agent.identity
    if held is None:
        return
    job.roster.commits.reported(transfer.target, *held, agent=agent.identity)
    took = round(job.now - transfer.began, 3)
    to = {"host": transfer.target.host, "slot": transfer.target.slot, "step": held[1], "seconds": took}
    if transfer.source is None:
        path = str(answer.get("path"))
        job.record("resumed", path=path, call=answer.get("call"), **to, reason=f"the newest commit left is {path}")
        return
    source = transfer.source.seat
    # The sender still waits if the receiver had the commit already.
    job.send(source.host, {"do": "drop", "slots": [source.slot]})
    job.record("sent", source=source.host, bytes=answer.get("bytes"), **to, reason=f"only {source} held it")


def _failed(job: JobState, why: str, *, for_good: bool = False, blame: bool = True) -> None:
    transfer, job.transfers.current = job.transfers.current, None
    assert transfer is not None
    _drop(job, transfer)
    now = job.now
    job.transfers.not_before = now + RETRY_S
    seat = None if transfer.source is None else transfer.source.seat
    if seat is not None and for_good:
        job.roster.commits.not_held(seat)
    else:
        job.transfers.failed(seat, began=transfer.began, now=now, hosts=transfer.hosts, blame=blame)
    what = "no checkpoint could be loaded" if transfer.source is None else f"{transfer.source.seat} sent no commit"
    job.record("not_sent", host=transfer.target.host, reason=f"{what}: {why}")


def _drop(job: JobState, transfer: Transfer) -> None:
    slots = {transfer.target.host: [transfer.target.slot]}
    if transfer.source is not None:
        slots.setdefault(transfer.source.seat.host, []).append(transfer.source.seat.slot)
    for host in job.helpers[Purpose.TRANSFER]:
        job.send(host, {"do": "drop", "slots": slots.get(host, [])})
    job.helpers[Purpose.TRANSFER].clear()


# --- planner


def plan_time_out(job: JobState) -> Plan:
    """Give up a transfer that takes too long."""
    time_out(job)
    return NOTHING


def plan(job: JobState) -> Plan:
    """Do what the decision on the next world wants; forget agents that would not end any more."""
    part = job.custody
    part.may_end_since = {host: at for host, at in part.may_end_since.items() if host in part.asked_for}
    part.asked_for.clear()
    if part.needs_none:
        cancel(job)
    else:
        begin(job, part.decision)
    return NOTHING
