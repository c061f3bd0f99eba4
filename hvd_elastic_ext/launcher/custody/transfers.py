"""Sends commits from one agent to another, or from storage into an agent's memory, one at a time.

The launcher only says which commit goes where. The agents' helpers send it and verify it
(``checkpoint/transfer/transfer.py``). If that fails, both ends keep what they hold.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.launcher.custody.custody import CustodyDecision, Holding
from hvd_elastic_ext.launcher.custody.holders import read
from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer, Purpose
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.parts.membership import TRANSFER_S, Transfer

log = logging.getLogger(__name__)


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
