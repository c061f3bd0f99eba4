"""Saves what memory holds before a job sleeps or ends: in a checkpoint that is complete and read back.

No process trains any more, so no commit is named: agents report what memory and storage hold, and the newest commit is
written if storage has none as new. A checkpoint counts only once an agent has found it, and one has read it back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.core.errors import Asleep
from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.custody.holders import whole_number, whole_numbers
from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer, Purpose
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat, seat_of
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Kept
from hvd_elastic_ext.launcher.rules.checkpoints.memory import Found, Identity, Known, Step, next_step
from hvd_elastic_ext.launcher.state.facts.memory import ANSWER_S, not_before

log = logging.getLogger(__name__)


RETRY_S: Final = 5.0
"""Pause after a failed attempt."""


def save_before(
    job: JobState, *, short: str | None, skip_waiting: bool = False, read_back: bool = True
) -> Asleep | None:
    """Do the next step. ``short``: why no process can train; None if some can.

    Returns how the job ends for now, once nothing can be lost by that. ``skip_waiting``: do not wait for hosts that may
    still come, even in a job that may not sleep. ``read_back``: read the checkpoint back.
    """
    state = job.before_sleep
    if job.options.durability is None or (job.options.below_min != "sleep" and not skip_waiting):
        return None
    state.skip_waiting, state.read_back = skip_waiting, read_back
    if short is None:
        training_resumed(job)
        return None
    state.since = job.now if state.since is None else state.since
    if job.now < not_before(job) or job.checkpoints.attempt is not None or job.transferring:
        return None
    if asked := job.helpers[Purpose.SLEEP]:
        if job.now >= state.asked_at + ANSWER_S:
            _try_later(job, f"no answer from {', '.join(sorted(asked))} after {ANSWER_S:g} s")
        return None
    return _next(job, short)


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, and with it perhaps an answer: ask all again."""
    if host in job.helpers[Purpose.SLEEP] or any(seat.host == host for seat in job.before_sleep.known.held):
        _forget(job)


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """A host has reported or verified what is saved, or failed."""
    host, asked = agent.host.name, job.helpers[Purpose.SLEEP]
    if answer.failed is not None:
        _try_later(job, f"{host}: {answer.failed}")
        return
    del asked[host]
    job.before_sleep.answers[host] = answer.content
    if not asked:
        _take_answers(job)


def _next(job: JobState, short: str) -> Asleep | None:
    state = job.before_sleep
    useless = None if job.checkpoints.done else job.checkpoints.useless  # as the end of training it counts
    match next_step(state.known, read_back=state.read_back, useless=None if useless is None else useless.commit):
        case Step.LOOK:
            return _ask_all(job, short)
        case Step.WRITE:
            _write(job)
        case Step.VERIFY:
            assert state.known.stored is not None
            _ask(job, [state.known.stored.host], do="verify", name=state.known.stored.name)
        case Step.WAIT if state.skip_waiting:
            return Asleep(short)
        case Step.WAIT if useless is not None:
            state.cannot_save = True
            _try_later(job, f"no job can resume from {useless.path}: {useless.why}")
        case Step.WAIT:
            state.cannot_save = True
            _try_later(job, "it trains without a State of hvd_elastic_ext; use one, or --adopt")
        case Step.SLEEP:
            stored = state.known.stored
            return Asleep(short, path=stored and stored.path, step=stored and stored.step)
    return None


def _ask_all(job: JobState, short: str) -> Asleep | None:
    # An agent that was sent a signal still has its grace period, and its memory until then.
    state = job.before_sleep
    agents = [
        agent
        for agent in job.roster.agents.values()
        if agent.last_message_at and (agent.leaves_by is not None or not agent.finishing)
    ]
    if any(not agent.joined for agent in agents):
        state.again_at = job.now + RETRY_S
        return None  # it connects again, or is cut off; it may hold the newest commit
    if not agents:
        path, step = job.checkpoints.newest
        return Asleep(short, path=path, step=step)
    _ask(job, [agent.host.name for agent in agents], do="held", skip=state.skip)
    return None


def _ask(job: JobState, hosts: Sequence[str], **request: Any) -> None:
    state = job.before_sleep
    assert job.options.durability is not None
    state.asked_at, state.answers = job.now, {}
    for host in hosts:
        slots = sorted(seat.slot for seat in job.roster.lives if seat.host == host)
        full = {"place": job.options.durability.place, "urgent": True, **request}  # no process trains
        if not job.run_helper(Purpose.SLEEP, host, slots, full):
            _try_later(job, f"{host} is not connected")
            return


def _take_answers(job: JobState) -> None:
    state = job.before_sleep
    if state.known.looked:
        _take_check_of_checkpoint(job, next(iter(state.answers.values())))
        return
    held: dict[Seat, Kept] = {}
    stored: Found | None = None
    try:
        for host, answer in state.answers.items():
            held |= _held(host, answer.get("held"))
            if (newest := answer.get("newest")) is not None:
                found = _found(host, newest)
                stored = found if stored is None or found.identity[1:] > stored.identity[1:] else stored
    except ValueError as error:
        _try_later(job, f"malformed answer: {error}")
        return
    stateless = not held and any(worker.live_at is not None for worker in job.roster.workers.values())
    state.known = Known(True, held, stored, stateless=stateless)


def _take_check_of_checkpoint(job: JobState, answer: Mapping[str, Any]) -> None:
    state = job.before_sleep
    stored = state.known.stored
    assert stored is not None
    if answer.get("whole") is True:
        state.known = Known(True, state.known.held, stored, whole=True)
        return
    job.record(
        "checkpoint_skipped", host=stored.host, reason=f"{stored.name} (step {stored.step}): {answer.get('why')}"
    )
    state.skip.append(stored.name)
    _forget(job)
    state.again_at = job.now + RETRY_S


def _write(job: JobState) -> None:
    state = job.before_sleep
    newest = max(kept.commit[1:] for kept in state.known.held.values())
    having = {seat: kept for seat, kept in state.known.held.items() if kept.commit[1:] == newest}
    state.skip.clear()  # the new checkpoint may have the same name
    lives = {ProcessId(seat, job.roster.lives.get(seat, 0)): kept for seat, kept in having.items()}
    _forget(job)
    attempt.write_memory(job, dict(sorted(lives.items(), key=lambda each: _rank_order(job, each[0]))))


def _rank_order(job: JobState, life: ProcessId) -> tuple[float, ProcessId]:
    """Ranks keep the order of the last world, so that each gets its own random generators back."""
    place = job.rendezvous.place(life)
    return (math.inf if place is None else place.rank), life


def training_resumed(job: JobState) -> None:
    """Processes train, or are about to."""
    state = job.before_sleep
    if state.since is not None:
        state.since, state.cannot_save = None, False
        _forget(job)
        attempt.training_resumed(job)


def _forget(job: JobState) -> None:
    state = job.before_sleep
    state.known, state.again_at = Known(), -math.inf
    job.helpers[Purpose.SLEEP].clear()


def _try_later(job: JobState, why: str) -> None:
    state = job.before_sleep
    _forget(job)
    state.again_at = job.now + RETRY_S
    what = f"the job does not {'end' if state.skip_waiting else 'go to sleep'} yet: {why}"
    if what != state.logged:
        state.logged = what
        log.warning("%s", what)
        job.record("not_sealed" if state.skip_waiting else "not_slept", reason=what)


def _held(host: str, slots: Any) -> dict[Seat, Kept]:
    """An agent's report of the commit in each slot's memory; raises ValueError for anything else."""
    if not isinstance(slots, dict):
        raise ValueError(f"{host}: held is not an object")
    held = {}
    for slot, value in slots.items():
        seat, numbers = seat_of(host, slot), whole_numbers(value[1:], 2) if isinstance(value, list) else None
        if seat is None or numbers is None:
            raise ValueError(f"{host}: held of a slot is not a commit, a step and a side")
        held[seat] = Kept(_identity(host, value[0]), numbers[0], numbers[1])
    return held


def _found(host: str, newest: Any) -> Found:
    """An agent's report of the newest checkpoint; raises ValueError for anything else."""
    value = newest if isinstance(newest, dict) else {}
    name, path, step = value.get("name"), value.get("path"), whole_number(value.get("step"))
    if not isinstance(name, str) or not isinstance(path, str) or step is None:
        raise ValueError(f"{host}: newest has no name, path or step")
    return Found(name, path, _identity(host, value.get("identity")), step, host)


def _identity(host: str, value: Any) -> Identity:
    numbers = whole_numbers(value, 4)
    if numbers is None:
        raise ValueError(f"{host}: a commit is not four whole numbers")
    return numbers[0], numbers[1], numbers[2], numbers[3]
