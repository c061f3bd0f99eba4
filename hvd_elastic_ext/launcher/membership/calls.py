"""Sends the results of finished calls from one slot to another, one at a time, and applies what is reported of them.

As with commits, the launcher only says which slot's results go where; the agents' helpers send them and verify them
(``checkpoint/programs/transfer_requests.py``). A transfer of a commit, and any other helper on the same host, comes
first: this one is then tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.core.call_results import UNEQUAL, result_of
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.driver.actions import Record
from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer, Purpose
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent, Worker
from hvd_elastic_ext.launcher.membership.rendezvous import Seat, seat_of
from hvd_elastic_ext.launcher.state.parts.calls import PastTransfer, call_number
from hvd_elastic_ext.launcher.state.parts.membership import TRANSFER_S

log = logging.getLogger(__name__)


RETRY_S: Final = 1.0
"""Pause after a failed try."""


# --- facts


def note_call(job: JobState, worker: Worker, value: object) -> None:
    """A process has named the call that it is in."""
    call = call_number(value)
    if call is not None:
        worker.call = call
        job.calls.named(call)


def result(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A process has kept the result of a call, or says why not."""
    call = call_number(message.get("call"))
    if call is None:
        return
    calls = job.calls
    differs = calls.refused.get(call) == UNEQUAL  # then no other rank's result counts for all
    kept = message.get("kept") is True and not differs
    reason = external_text(str(message.get("reason") or "")) or "no reason was given"
    calls.named(call + 1 if kept else call)  # one that cannot be kept is told before the next call begins
    if kept:
        calls.holds(worker.seat, max(call + 1, calls.pasts.get(worker.seat, 0)))
        calls.refused.pop(call, None)  # by an earlier launcher, or by another rank
    else:  # it may have been there until the ranks have compared it
        calls.holds(worker.seat, min(call, calls.pasts.get(worker.seat, 0)))
    if call == 0:
        calls.collectives, calls.record_due = kept, False
        if kept:
            if calls.recorded_in([worker.seat], worker.generation):
                job.save()
            return
    if not kept and not differs and (call not in calls.refused or reason == UNEQUAL):
        calls.refused[call] = reason
        for seat, results in list(calls.pasts.items()):  # another rank may have sent its own
            calls.holds(seat, results)
        job.save()
        if len(calls.refused) == 1:  # all later ones are refused for it
            then = (
                "a process that comes in a later call waits outside"
                if job.in_place
                else "each world from now on trains it again"
            )
            log.warning("%s was not kept: %s; %s", result_of(call), reason, then)
    before = calls.told.get(call)
    if before is None or (kept and not before):  # one rank speaks for all; another one may have kept it
        calls.told[call] = kept
        size = call_number(message.get("bytes"))
        why = {} if kept else {"reason": reason}
        fields = {"call": call, "step": worker.step, "bytes": size, "kept": kept, **why}
        job.do(Record("call_ended", worker.generation, fields))


def not_found(job: JobState, worker: Worker) -> None:
    """A process was told of results, and parks again in the same call: its slot's memory does not hold them, or it
    cannot read that memory. Then the others send it their results when it is in their world.
    """
    seat, calls = worker.seat, job.calls
    worker.blind = worker.blind or worker.useless
    worker.useless = True
    calls.holds(seat, min(calls.pasts.get(seat, 0), worker.call))


def note_held(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """An agent reports the results in the memory of one slot, or of some."""
    host, slot, pasts = agent.host.name, news.get("slot"), news.get("pasts")
    if news.get("event") == "forgotten" and isinstance(slot, int):
        job.calls.holds(Seat(host, slot), 0)
    elif isinstance(slot, int) and (found := call_number(news.get("past"))) is not None:
        job.calls.holds(Seat(host, slot), found)
    elif isinstance(pasts, dict):
        slots = news.get("slots")
        for number in slots if isinstance(slots, dict) else pasts:
            if (seat := seat_of(host, number)) is not None:
                job.calls.holds(seat, call_number(pasts.get(number)) or 0)


def note_record(job: JobState, seat: Seat, status: Mapping[str, Any]) -> None:
    """An agent has joined, and reports whether a process has kept what collectives returned, and in which world. The
    process's own message may be lost.
    """
    calls, generation = job.calls, call_number(status.get("recorded"))
    if status.get("collectives") is not True:
        return
    calls.collectives = True
    if generation is None:
        calls.record_due = True
    elif calls.recorded is None or generation >= calls.record_world:
        calls.record_due = False
        if calls.recorded_in([seat], generation):
            job.save()


def inventory(job: JobState, host: str, statuses: Mapping[str, Any]) -> None:
    """An agent has joined, and reports its slots."""
    found = [
        (seat, results)
        for number, status in statuses.items()
        if isinstance(status, dict)
        and (results := call_number(status.get("past"))) is not None
        and (seat := seat_of(host, number)) is not None
    ]
    if found or job.calls.pasts:
        job.calls.agent_joined(host, found)


# --- transfers


def begin_first(job: JobState, source: Seat, target: Seat) -> None:
    """The same for a commit that is to follow: no other past is sent before."""
    transfer = job.calls.transfer
    if transfer is None or (transfer.source, transfer.target) != (source, target):
        cancel(job)
        begin(job, source, target)
    if job.calls.transfer is not None:
        job.calls.transfer.first = True


def begin(job: JobState, source: Seat, target: Seat) -> bool:
    """Begin to send the results of ``source`` to ``target``, if their agents can do it now."""
    calls, hosts = job.calls, {source.host, target.host}
    if calls.transfer is not None or job.now < calls.not_before:
        return False
    if not hosts.isdisjoint(job.helping):
        return False
    results, current = calls.pasts[source], calls.recorded is not None and not calls.is_stale(source)
    record = {"record": True} if current and calls.is_stale(target) else {}
    token = f"{job.helper_number + 1:032x}"  # as of commits
    world = calls.record_world if current else None
    calls.transfer = PastTransfer(target, source, results, token, job.now, record=world)
    if source.host == target.host:
        request = {"do": "copy_past", "from": source.slot, "to": target.slot, "results": results, **record}
        _ask(job, target.host, [source.slot, target.slot], request)
    else:
        request = {"do": "send_past", "transfer": token, "slot": source.slot, "results": results}
        _ask(job, source.host, [source.slot], request)
    return True


def look(job: JobState) -> None:
    """Give up a transfer that takes too long, or whose helper was replaced."""
    transfer = job.calls.transfer
    if transfer is None:
        return
    if not transfer.asked <= job.helpers[Purpose.PAST].keys():
        _failed(job, "another helper took the place of its own")
    elif job.now >= transfer.began + TRANSFER_S:
        _failed(job, f"it took longer than {TRANSFER_S:g} s")


def cancel(job: JobState) -> None:
    """Stop the transfer under way, if any."""
    if job.calls.transfer is not None:
        _end(job, drop=True)


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, perhaps with an answer."""
    if job.calls.transfer is not None and host in job.calls.transfer.hosts:
        _failed(job, f"the connection to {host} was lost", blame=False)


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """One end listens for the other, or is done, or has failed."""
    transfer, host = job.calls.transfer, agent.host.name
    if transfer is None:
        return
    receives, content = host == transfer.target.host, answer.content
    if answer.failed is not None:
        if receives or not answer.ended_well:  # the sender ends before the receiver
            if content.get("for_good") is True and not receives:
                job.calls.holds(transfer.source, 0)  # it does not hold them; the next report says what it holds
            _failed(job, f"{host}: {answer.failed}")
    elif not receives and isinstance(address := content.get("listening"), list):
        request = {"do": "receive_past", "transfer": transfer.token, "slot": transfer.target.slot, "from": address}
        record = {"record": True} if transfer.record is not None and job.calls.is_stale(transfer.target) else {}
        _ask(job, transfer.target.host, [transfer.target.slot], {**request, "results": transfer.results, **record})
    elif receives and "results" in content:
        _done(job, transfer, content)


def _done(job: JobState, transfer: PastTransfer, content: Mapping[str, Any]) -> None:
    results = call_number(content.get("results"))
    if results is None or results < transfer.results:
        _failed(job, f"{transfer.target.host}: an invalid answer")
        return
    sender = transfer.source.host
    if sender != transfer.target.host and sender in job.helpers[Purpose.PAST]:
        job.send(sender, {"do": "drop", "slots": []})  # it still waits if the receiver had the results already
    _end(job, drop=False)
    job.calls.holds(transfer.target, results)
    if transfer.record == job.calls.record_world and job.calls.recorded_in([transfer.target], transfer.record):
        job.save()
    what = f"the results of {results - 1} calls" if results > 1 else "what collectives returned before the first call"
    log.info("%s went from %s to %s", what, transfer.source, transfer.target)


def _ask(job: JobState, host: str, slots: list[int], request: Mapping[str, Any]) -> None:
    assert job.calls.transfer is not None
    job.calls.transfer.asked.add(host)
    if not job.run_helper(Purpose.PAST, host, slots, request):
        _failed(job, f"{host} is not connected", blame=False)


def _failed(job: JobState, why: str, *, blame: bool = True) -> None:
    transfer = job.calls.transfer
    assert transfer is not None
    _end(job, drop=True)
    if transfer.first:
        job.transfers.failed(transfer.source, began=transfer.began, now=job.now, hosts=transfer.hosts, blame=blame)
    job.calls.not_before = job.now + RETRY_S
    log.warning("%s got no results of calls from %s: %s", transfer.target, transfer.source, why)


def _end(job: JobState, *, drop: bool) -> None:
    for host in job.helpers[Purpose.PAST] if drop else ():
        job.send(host, {"do": "drop", "slots": []})
    job.helpers[Purpose.PAST].clear()
    job.calls.transfer = None
