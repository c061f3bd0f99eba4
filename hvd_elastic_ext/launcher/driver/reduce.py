"""Applies each event to the state. Planners decide what follows, at the next look."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from hvd_elastic_ext.core import journal
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.core.messages.slot_protocol import NOT_STARTED
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.checkpoints import attempt, restore, save_then_stop
from hvd_elastic_ext.launcher.custody import holders, transfers
from hvd_elastic_ext.launcher.departures import notices, shutdown
from hvd_elastic_ext.launcher.driver import events, orders
from hvd_elastic_ext.launcher.driver.actions import Record
from hvd_elastic_ext.launcher.driver.events import Event
from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer, Purpose, answer_of
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import USAGE, Agent, LaunchEnd, Worker
from hvd_elastic_ext.launcher.health import blame, ends, silence
from hvd_elastic_ext.launcher.health.causes import SSH_FAILED, Cause
from hvd_elastic_ext.launcher.health.launcher_pauses import launcher_paused
from hvd_elastic_ext.launcher.membership import adoption, agents, calls, hosts, resizes
from hvd_elastic_ext.launcher.membership.engines import engine_of
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.membership.rendezvous import Question, Seat, is_for_a_rank, seat_of
from hvd_elastic_ext.launcher.membership.reports import signals, take_heartbeat, take_message
from hvd_elastic_ext.launcher.scaling import scaling

log = logging.getLogger(__name__)

LOST_AFTER_S: Final = 2.0
"""An agent that loses its connection so soon after the end of its launch has ended with it."""


def reduce(job: JobState, event: Event) -> None:
    """Apply an event to the state, as of :attr:`JobState.now`."""
    match event:
        case events.News(host, news):
            _news(job, host, news)
        case events.HostsChanged():
            hosts.listed(job, event)
        case events.AgentJoined(host, hello):
            _agent_joined(job, host, hello)
        case events.AgentUnfit(host, why):
            _agent_unfit(job, host, why)
        case events.AgentLost(host, reason):
            _agent_lost(job, host, reason)
        case events.LaunchEnded(host, code, remark):
            _launch_ended(job, host, code, remark)
        case events.AgentEnded(host, code, remark):
            shutdown.answered(job, host, well=code == 0, why=remark or f"exit code {code}")
        case events.LauncherPaused(seconds):
            launcher_paused(job, seconds)
        case events.PeersChanged(host):
            orders.tell_peers(job, host)
        case events.Expected(hosts_left, until):
            adoption.expect(job, hosts_left, until=until)
        case events.HealthChanged(ledger, name, fields):
            job.faults.ledger = ledger
            job.record(name, **fields)
            job.save()
        case events.WorldNotBegun(generation, why):
            engine_of(job).world_not_begun(job, generation, why)
        case events.Scaled() | events.HostsAskedFor() | events.ScaleByHand() | events.Observed():
            scaling.apply(job, event)
        case events.End(why):
            shutdown.end(job, why)
        case events.Look():
            pass


# --- hosts and agents


def _agent_joined(job: JobState, host: str, hello: Mapping[str, Any]) -> None:
    ended = agents.joined(job, host, hello)
    notices.joined(job, host, hello)
    for worker, code in ended:
        ends.exited(job, worker, {"code": code})  # their ends were not reported
    for part in (attempt, transfers, adoption, shutdown):
        part.agent_joined(job, host)


def _agent_unfit(job: JobState, host: str, why: str) -> None:
    agent = job.roster.agents.get(host)
    if agent is None:
        return
    log.warning("%s cannot be used: %s", host, why)
    blame.strike(job, Cause.NEVER_READY, agent.host, detail=why, tried_s=job.now - agent.since)
    orders.dismiss(job, agent)  # after the cooldown the next agent is checked again


def _agent_lost(job: JobState, host: str, reason: str) -> None:
    agent = job.roster.agents.get(host)
    if agent is not None:
        agent.joined = False
    for part in (restore, attempt, save_then_stop, transfers, calls):
        part.agent_lost(job, host)  # also of a fenced host
    if agent is None:
        return
    log.debug("connection to %s lost: %s", host, reason)
    job.roster.commits.agent_lost(host, last_message_at=agent.last_message_at, why=reason)
    if agent.finishing and not job.roster.on(host):
        job.roster.commits.agent_ended(host, "its agent has ended")
        del job.roster.agents[host]
    elif agent.launch_ended is not None and job.now - agent.launch_ended.at <= LOST_AFTER_S:
        _agent_ended(job, agent, agent.launch_ended)


def _launch_ended(job: JobState, host: str, code: int, remark: str) -> None:
    """A launch has ended: its agent could not be started, or has ended, or its ssh has lost the connection."""
    agent, detail = job.roster.agents.get(host), remark or f"exit code {code}"
    if agent is None:
        return
    if code == 0:  # it found a living agent
        adoption.handed_over(job, host)
    elif agent.last_message_at:
        end = LaunchEnd(job.now, code, detail)
        if code == SSH_FAILED:
            return  # a connection of ssh that broke says nothing about the agent
        if agent.joined:
            agent.launch_ended = end  # the loss of its connection may be read a moment later
        else:
            _agent_ended(job, agent, end)
    elif not adoption.failed(job, host, detail):
        del job.roster.agents[host]
        job.faults.first = job.faults.first or f"no agent could be started on {host}: {detail}"
        before = job.faults.ledger
        if not job.decisions_held:
            blame.strike(job, Cause.UNREACHABLE, agent.host, detail=detail, tried_s=job.now - agent.since)
        if job.faults.ledger is before:  # otherwise the line of the strike reports it
            log.warning("no agent could be started on %s: %s", host, detail)


def _agent_ended(job: JobState, agent: Agent, end: LaunchEnd) -> None:
    host, why = agent.host.name, f"its agent ended with exit code {end.code}"
    if not end.detail.startswith("exit code"):
        why += f": {external_text(end.detail)}"
    job.faults.first = job.faults.first or f"the agent on {host} ended: {end.detail}"
    job.roster.commits.agent_ended(host, why)
    silence.cut_off(job, agent, why, strike=job.outcome.failure is None)


# --- messages of agents


def _news(job: JobState, host: str, news: Mapping[str, Any]) -> None:
    agent = job.roster.agents.get(host)
    if agent is None:
        return
    agent.last_message_at = job.now
    event = str(news.get("event"))
    if (handler := _NEWS.get(event)) is not None:  # nearly all, and thousands at a change of a large world
        if "held" in news:
            _note_held(job, agent, news)
        worker = job.roster.of(host, news.get("slot"), news.get("life"))
        if worker is not None:
            handler(job, worker, news)
    elif event == "beats":
        _heartbeat(job, agent, news.get("slots"), part=news.get("part") is True)
    elif event in ("helper", "helper_ended"):
        for purpose, asked in job.helpers.items():
            if (host, news.get("id")) in asked.items():
                _ANSWERED[purpose](job, agent, answer_of(news))
    elif event == "usage":
        agent.usage = signals({name: news.get(name) for name in USAGE})
        agent.gpu_unknown = external_text(str(news.get("gpu_unknown") or ""))
    elif event == "template":
        _template(agent, news)
    else:
        _OF_AGENTS.get(event, _note_held)(job, agent, news)


def _template(agent: Agent, news: Mapping[str, Any]) -> None:
    """A host can start processes with their imports done, or says why it cannot."""
    host, memory = agent.host.name, news.get("memory")
    sizes = memory if isinstance(memory, dict) else {}
    if news.get("ready") is not True:
        log.info("%s: every process imports by itself (--preload): %s", host, external_text(str(news.get("reason"))))
        return
    if not agent.warm:
        log.info("%s: warm start is ready: new processes there have the script's imports done (--preload)", host)
    agent.warm = True
    mb = [size // 10**6 for name in ("rss", "anonymous") if type(size := sizes.get(name)) is int]
    log.debug("%s: new processes share a template's memory (MB, and of these no file's: %s)", host, mb)


def _note_held(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """Note which commit a slot's memory holds after its process or a helper has ended."""
    slot, event, slots, known = news.get("slot"), news.get("event"), news.get("slots"), job.roster.commits
    if not agent.joined:
        return
    calls.note_held(job, agent, news)
    host = agent.host.name
    if event == "forgotten" and isinstance(slot, int):
        known.forgotten(Seat(host, slot))
    elif event == "held" and isinstance(slots, dict):
        for number, held in slots.items():
            if (seat := seat_of(host, number)) is not None:
                known.newer(seat, holders.read(held), agent=agent.identity)
    elif "held" in news and isinstance(slot, int):
        known.newer(Seat(host, slot), holders.read(news["held"]), agent=agent.identity)


def _heartbeat(job: JobState, agent: Agent, slots: Any, *, part: bool) -> None:
    # Up to a thousand a second. A partial one holds nothing about processes that it does not name.
    host, workers = agent.host.name, job.roster.workers
    if not part:
        agent.heartbeats_at = agent.last_message_at
    for number, entry in slots.items() if isinstance(slots, dict) else ():
        seat = seat_of(host, number)
        worker = None if seat is None else workers.get(seat)
        if worker is None or not isinstance(entry, dict) or entry.get("life") != worker.life.number:
            continue
        worker.in_heartbeat_at = agent.last_message_at
        age, beat = entry.get("age"), entry.get("beat")
        if isinstance(beat, dict):
            worker.silent_s = finite_number(age) or 0.0
            take_heartbeat(worker, beat, job.now - worker.silent_s)
            worker.agreed_at_heartbeat = worker.agreed
            job.roster.remember(worker)


# --- messages of processes


def _process_message(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    message = news.get("message")
    if isinstance(message, dict) and isinstance(say := message.get("say"), str):
        _PROCESS_MESSAGES.get(say, _note_message)(job, worker, message)


def _note_message(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    take_message(worker, message, job.now)
    if "call" in message:
        calls.note_call(job, worker, message["call"])
    if message.get("collectives") is True:
        job.calls.collectives = job.calls.record_due = True
    job.roster.remember(worker)


def _parked(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    calls.note_call(job, worker, message.get("call"))
    if worker.stage is Stage.LIVE:
        return
    if message.get("at") == "init" and message.get("later") is True:
        worker.at_init = worker.at_init or worker.stage is Stage.BOOTING  # the next look decides whether it is ready
        return
    first = worker.stage is Stage.BOOTING and worker.told_in is None
    worker.stage, worker.since = Stage.PARKED, job.now
    if worker.told_in == worker.call:
        calls.not_found(job, worker)
    if first:
        job.record("parked", host=worker.seat.host, slot=worker.seat.slot)


def _entered(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    # This may be late, when the next world forms already. Without a generation it is the newest world.
    generation = message.get("generation") or job.generation
    newest = generation if isinstance(generation, int) and generation <= job.generation else -1
    worker.failure = worker.lost_peer = None  # of a program that ran before
    if worker.generation < newest:
        worker.generation, worker.since, worker.moved_at = newest, job.now, 0.0
        job.world.begun = True


def _worker_record(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    fields, event = message.get("fields"), message.get("event")
    if not isinstance(fields, dict) or not isinstance(event, str):
        return
    if event not in _OF_PROCESSES:
        log.warning("%s sent a journal event that is not theirs: %r", worker.seat, event)
        return
    own = {key: value for key, value in fields.items() if key not in _RESERVED_FIELDS}
    try:
        journal.check(event, own)
    except ValueError as error:
        log.warning("%s sent an invalid journal event: %s", worker.seat, error)
    else:
        job.do(Record(event, worker.generation, {"host": worker.seat.host, **own}))
    if event == "synced":
        worker.agreed = worker.generation
    elif event == "rolled_back":
        resizes.rolled_back(job, own.get("steps_lost"))
    elif event == "trains_alone":
        job.world.trains_alone = external_text(str(own.get("reason")))


def _question(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    try:
        body = base64.b64decode(news.get("body") or "", validate=True)
        number, method, path = int(news["id"]), str(news["method"]), str(news["path"])
    except (binascii.Error, KeyError, OverflowError, TypeError, ValueError):
        log.warning("%s sent an invalid rendezvous question", worker.seat)
        return
    if is_for_a_rank(method, path):
        _asked_for_a_rank(job, worker, number)
        return
    job.answer(job.rendezvous.ask(Question(worker.life, number, method, path, body), job.now))


def _asked_for_a_rank(job: JobState, worker: Worker, number: int) -> None:
    meeting, place = job.rendezvous, job.rendezvous.place(worker.life)
    answers = meeting.ask_for_rank(worker.life, number)
    if answers and place is not None:
        orders.name_world(job, worker, place.rank, place.size)
    job.answer(answers)
    if worker.leaving is not None and worker.life in meeting.waiting:
        worker.stopping_at = job.now  # it has left its world; any answer would abort it


def _question_withdrawn(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    if isinstance(number := news.get("id"), int):
        job.rendezvous.withdraw(worker.life, number)


_Handler = Callable[[JobState, Worker, Mapping[str, Any]], None]
"""Handles a message of a process."""

_RESERVED_FIELDS: Final = frozenset({"t", "mono", "at_mono", "generation", "event", "dropped"})
"""Fields of a journal line that no process may set."""
_OF_PROCESSES: Final = frozenset(
    (
        *("stepped", "committed", "synced", "rolled_back", "inherited", "call_skipped"),
        *("deadline_missed", "memory", "not_sealed", "trains_alone"),
    )
)
"""Events that processes may send. Other events have known fields, on which lines and reports rely."""

_ANSWERED: Final[Mapping[Purpose, Callable[[JobState, Agent, HelperAnswer], None]]] = {
    Purpose.CHECKPOINT: attempt.answered,
    Purpose.RESTORE: restore.answered,
    Purpose.SLEEP: save_then_stop.answered,
    Purpose.TRANSFER: transfers.answered,
    Purpose.PAST: calls.answered,
}
_OF_AGENTS: Final[Mapping[str, Callable[[JobState, Agent, Mapping[str, Any]], None]]] = {
    "notice": notices.sent_away,
    "going": notices.about_to_go,
    "staying": notices.staying,
    "advised": notices.advised,
    "notices_unavailable": notices.unavailable,
    "refused": agents.refused,
    "left": agents.left,
    "dropped": agents.dropped,
}
_NEWS: Final[Mapping[str, _Handler]] = {
    "started": lambda job, worker, news: agents.started(job, worker, news.get("pid"), warm=news.get("warm") is True),
    "said": _process_message,
    "asked": _question,
    "unasked": _question_withdrawn,
    "exited": ends.exited,
    "not_started": lambda job, worker, news: ends.exited(job, worker, {**news, "code": NOT_STARTED}),
}
_PROCESS_MESSAGES: Final[Mapping[str, _Handler]] = {
    "parked": _parked,
    "result": calls.result,
    "entered": _entered,
    "record": _worker_record,
    "commit_kept": attempt.commit_kept,
    "last_commit": attempt.last_commit,
    "commit_not_kept": attempt.commit_not_kept,
    "first_step": resizes.first_step,
}
"""All other messages only change what is known of the process."""
