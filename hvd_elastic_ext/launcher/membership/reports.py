"""What processes report of themselves: heartbeats, messages that need no immediate action, lines of the journal."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core import journal
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.custody.holders import whole_number, whole_numbers
from hvd_elastic_ext.launcher.driver.actions import Record
from hvd_elastic_ext.launcher.membership import calls, resizes
from hvd_elastic_ext.launcher.membership.rendezvous import seat_of

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent, Worker

log = logging.getLogger(__name__)


MOST_SIGNALS: Final = 16
"""Most signals in a message."""


def take_heartbeat(worker: Worker, beat: Mapping[str, Any], at: float) -> None:
    """Apply a heartbeat that a process has sent ``at`` a time (mono)."""
    progress, waiting = whole_number(beat.get("progress")), beat.get("waiting") is True
    step_s, commit_s, call_s = map(finite_number, map(beat.get, ("step_s", "commit_s", "call_s")))
    every, observed = whole_number(beat.get("every")), signals(beat["observed"]) if "observed" in beat else None
    held, done, stepped_at = _commit_of(beat), whole_number(beat.get("step")), finite_number(beat.get("stepped_at"))
    stepped = _stepped(beat.get("stepped"))
    step, counted = worker.step, worker.progress
    if held is not None:
        worker.holds, worker.step = held, step if done is None else done
    elif worker.holds is None and done is not None:  # else sent before the first commit: a heartbeat may be late
        worker.step = done
    worker.step_s, worker.stepped_at = step_s, stepped_at
    worker.progress = worker.progress if progress is None else progress
    # From 0 to the step of a commit is not a step: the process has only loaded it.
    if worker.step > step and worker.generation and (step or worker.holds is None):
        worker.step_came = at
    if worker.progress != counted:
        if worker.moved_at:
            worker.steps_s.append((at - worker.moved_at) / max(1, worker.step - step))
        if stepped is not None:
            _measure(worker, stepped)
        elif worker.moved_at and worker.step > step:
            worker.iteration_s = worker.steps_s[-1]
        worker.moved_at = at
    worker.stepped = stepped
    worker.waiting = waiting
    if waiting:
        worker.waits_since, worker.waits_until = min(worker.waits_since, at), at
    else:
        worker.waits_since = math.inf
    if observed is not None:
        worker.observed = observed
    worker.every, worker.commit_s, worker.call_s = every, commit_s, call_s
    worker.share = _share(beat.get("share"))
    worker.averages = beat.get("averages") is True


def _measure(worker: Worker, stepped: tuple[int, float]) -> None:
    """Note the length of the steps since the last heartbeat. The first step in a world includes waits for others."""
    if not worker.moved_at:
        worker.measured_from = None
    if stepped == worker.stepped:
        return  # progress of another kind, such as a commit
    since = worker.measured_from
    if since is not None and stepped[0] > since[0] and stepped[1] > since[1]:
        worker.iteration_s = (stepped[1] - since[1]) / (stepped[0] - since[0])
    worker.measured_from = stepped


def _stepped(value: object) -> tuple[int, float] | None:
    """The number of steps and the time of the last one, as a process reports them."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    count, at = whole_number(value[0]), finite_number(value[1])
    return None if count is None or at is None else (count, at)


def _share(value: object) -> tuple[int, int] | None:
    """A process's samples of a global batch, and all of them."""
    numbers = whole_numbers(value, 2)
    return None if numbers is None or not 0 <= numbers[0] <= numbers[1] else (numbers[0], numbers[1])


def shares(job: JobState) -> dict[int, float]:
    """The part of the global batch that each rank gets, where shares follow the ranks' speed."""
    found = {}
    for worker in job.roster.present(job.world.members):
        if worker.share is not None and worker.share[1] and (rank := job.rank(worker.life)) is not None:
            found[rank] = round(worker.share[0] / worker.share[1], 4)
    return found


def signals(message: object) -> dict[str, float]:
    """Signals in a message; entries that are not a name and a finite number are left out."""
    found = {name: finite_number(value) for name, value in message.items()} if isinstance(message, dict) else {}
    return {str(name)[:64]: value for name, value in list(found.items())[:MOST_SIGNALS] if value is not None}


def _commit_of(message: Mapping[str, Any]) -> tuple[int, int, int] | None:
    commit = whole_numbers(message.get("commit"), 3)
    return None if commit is None else (commit[0], commit[1], commit[2])


def _take_commit(worker: Worker, commit: tuple[int, int, int] | None, step: int | None) -> None:
    if commit is not None:
        worker.holds = commit
    elif worker.holds is not None:
        return  # sent before the first commit: a heartbeat may be late
    worker.step = worker.step if step is None else step


def take_message(worker: Worker, message: Mapping[str, Any], now: float) -> None:
    """Apply a message of a process that needs no immediate action."""
    match message.get("say"):
        case "looping":
            worker.loops, worker.done, worker.left = True, False, False  # a script may train more than once
            worker.call = whole_number(message.get("call")) or worker.call
            worker.failure = worker.lost_peer = None  # of a program that ran before
        case "synced":
            commit, step = _commit_of(message), whole_number(message.get("step"))
            worker.loops, worker.agreed = True, worker.generation
            _take_commit(worker, commit, step)
        case "done":
            worker.done = True
        case "left":
            commit, step = _commit_of(message), whole_number(message.get("step"))
            _take_commit(worker, commit, step)
            worker.left = message.get("well") is True
        case "terminated":
            worker.terminated = True
        case "failed":
            digest, error, traceback = (str(message.get(key, "")) for key in ("digest", "error", "traceback"))
            worker.failure, worker.failed_at = (digest, error, traceback), now
        case "peer_lost":
            worker.lost_peer = external_text(str(message.get("error", "")))
        case "warned":
            worker.warned = message.get("leaving") is True
        case "beat":
            take_heartbeat(worker, message, now)
            worker.agreed_at_heartbeat = worker.agreed


def note(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A message of a process that only changes what is known of it."""
    take_message(worker, message, job.now)
    if "call" in message:
        calls.note_call(job, worker, message["call"])
    if message.get("collectives") is True:
        job.calls.collectives = job.calls.record_due = True
    job.roster.remember(worker)


def heartbeats(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """What the processes of a host do, by their agent."""
    # Up to a thousand a second. A partial one holds nothing about processes that it does not name.
    host, workers, slots = agent.host.name, job.roster.workers, news.get("slots")
    if news.get("part") is not True:
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


# --- lines of the journal


_RESERVED_FIELDS: Final = frozenset({"t", "mono", "at_mono", "generation", "event", "dropped"})
"""Fields of a journal line that no process may set."""
_OF_PROCESSES: Final = frozenset(
    (
        *("stepped", "committed", "synced", "rolled_back", "replayed", "inherited", "call_skipped"),
        *("averaged", "deadline_missed", "memory", "not_sealed", "shares", "trains_alone"),
    )
)
"""Events that processes may send. Other events have known fields, on which lines and reports rely."""


def record(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A line of the journal, by a process."""
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
