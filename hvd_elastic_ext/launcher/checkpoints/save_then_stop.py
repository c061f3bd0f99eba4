"""What is saved before everything stops: an exit, a sleep, a preemption, the end of training.

All four must not lose a commit, and none may wait for ever. While processes train, an attempt is made as any other
(:mod:`attempt`), and no process trains beyond the commit that it holds. When none trains any more, no commit can be
named: agents report what memory and storage hold, and the newest commit is written if storage has none as new
(:func:`next_step`, pure). A checkpoint counts only once an agent has found it, and one has read it back. Storage that
fails or does not answer delays an end only for a limited time; a sleep waits for it, since memory is lost with it.

Before hosts are taken away one is made at once, since hosts may go earlier than noticed, and one as late as is safe.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed
from hvd_elastic_ext.launcher.checkpoints import attempt, finished
from hvd_elastic_ext.launcher.checkpoints.attempt import Kept, members, newest_step, trains
from hvd_elastic_ext.launcher.custody.custody import is_awaited
from hvd_elastic_ext.launcher.custody.holders import whole_number, whole_numbers
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING, HeldBack, Plan
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.loopless import can_end_by_itself
from hvd_elastic_ext.launcher.membership import shortage
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, seat_of
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent
    from hvd_elastic_ext.launcher.membership.rendezvous import Seat

log = logging.getLogger(__name__)


Identity = tuple[int, int, int, int]


class Found(NamedTuple):
    """A checkpoint that ``host`` has found: its name, its path, and the commit and the step that it holds."""

    name: str
    path: str
    identity: Identity
    step: int
    host: str = ""
    finished: str | None = None
    """The mark of the command whose training ended with it; None if it was made while training went on."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of what memory and storage hold."""

    looked: bool = False
    """The agents have answered."""
    held: Mapping[Seat, Kept] = field(default_factory=dict)
    """The commit in the memory of each seat."""
    stored: Found | None = None
    """The newest checkpoint."""
    whole: bool = False
    """It was read back."""
    stateless: bool = False
    """Processes that do not keep commits have trained."""


class Step(Enum):
    """The next step."""

    LOOK = "see what memory and storage hold"
    WRITE = "write what memory holds"
    VERIFY = "read the checkpoint back"
    SLEEP = "nothing is left to save"
    WAIT = "it cannot be saved"


def next_step(
    known: Known, *, read_back: bool = True, useless: tuple[int, int, int] | None = None, ends: str | None = None
) -> Step:
    """Choose the next step. ``read_back``: a checkpoint counts only once it is read back. ``useless``: a commit from
    whose checkpoint no job can resume. ``ends``: the mark that the checkpoint of the end of training has. One of the
    same commit that was made a moment before does not have it, and the same command would train again."""
    if not known.looked:
        return Step.LOOK
    stored, newest = known.stored, max((kept.commit[1:] for kept in known.held.values()), default=None)
    if newest is not None and (stored is None or stored.identity[1:] < newest):
        return Step.WAIT if newest == useless else Step.WRITE
    if stored is None:
        return Step.WAIT if known.stateless else Step.SLEEP
    if ends is not None and stored.identity[1:] == newest and stored.finished != ends:
        return Step.WRITE
    return Step.SLEEP if known.whole or not read_back else Step.VERIFY


# --- decision: before all hosts are taken away


class Call(Enum):
    """What is due before all hosts are gone."""

    NONE = "nothing"
    NOW = "a checkpoint, and training goes on"
    LAST = "the last checkpoint"


MARGIN_S: Final = 5.0
"""Part of the time before the end at which the last checkpoint begins; see :func:`lead_s`."""
SHORTEST_S: Final = 30.0
"""Assumed time left if a notice names none: the shortest that clouds give."""
CANCELLED_AFTER_S: Final = 60.0
"""Training continues if hosts are still there this long after the announced end."""


def call_for(now: float, by: float | None, lead_s: float) -> Call:
    """Which checkpoint an end at ``by`` (mono; None: no end is known) calls for."""
    if by is None or now > by + CANCELLED_AFTER_S:
        return Call.NONE
    return Call.LAST if now >= by - lead_s else Call.NOW


def lead_s(durable_s: float, waited_s: float = 0.0) -> float:
    """Seconds before the end at which the last checkpoint begins.

    ``durable_s``: time from its commit to its completion; ``waited_s``: time until the named commit is made.
    """
    return MARGIN_S + 3.0 * durable_s + 2.0 * waited_s


# --- decision: how long it may take


STORAGE_ANSWER_S: Final = 300.0
"""Shortest limit for storage that does not answer."""
DURATION_FACTOR: Final = 4.0
"""That limit is this multiple of the duration of the last checkpoint, if that is longer."""
WRITE_TRIES_S: Final = 20.0
"""How long to retry when storage fails."""
STOP_LIMIT_S: Final = 20.0
"""Longest time for the last checkpoint of a job that has to end: pods have 30 s in all."""
CTRL_C_LIMIT_S: Final = 60.0
"""The same after Ctrl-C: on a busy machine each program of an agent takes seconds to start, and a second Ctrl-C ends
the job at any time."""


def agents_needed(waited_s: float, *, saved: bool, answered: bool, durable_s: float) -> tuple[bool, str]:
    """Whether agents are still needed, and why; "" if all is saved.

    ``waited_s``: since the last process ended. ``saved``: the end of training is on storage, or there is nothing to
    save. ``answered``: no agent works on it now. ``durable_s``: how long the last checkpoint took.
    """
    if saved:
        return False, ""
    if answered and waited_s >= WRITE_TRIES_S:
        return False, f"it could not be written for {waited_s:.0f} s"
    if waited_s >= longest_s(durable_s):
        return False, f"storage did not answer for {waited_s:.0f} s"
    return True, "the end of training is made durable"


def longest_s(durable_s: float) -> float:
    """Seconds after which storage that does not answer is given up."""
    return max(STORAGE_ANSWER_S, DURATION_FACTOR * durable_s)


def stop_limit_s(*, by_hand: bool, on_its_way: bool = True) -> float:
    """Seconds from the signal. ``on_its_way``: agents are connected, and none has reported that it cannot write."""
    return CTRL_C_LIMIT_S if by_hand and on_its_way else STOP_LIMIT_S


# --- state


class Reason(Enum):
    """Why no process trains any more."""

    SLEEP = "too few hosts are left"
    EXIT = "the job has to end"
    END = "training is done"

    @property
    def ends_the_job(self) -> bool:
        """Then no host is waited for, and what is written is not read back: agents keep nothing beyond the end, and a
        sleep alone goes on from storage by itself."""
        return self is not Reason.SLEEP


@dataclass(slots=True)
class Saving:
    """How far a job without a process that trains has saved what memory holds."""

    since: float | None = None
    """Since when no process can train (mono); None while one may."""
    known: Known = field(default_factory=Known)
    skip: list[str] = field(default_factory=list)
    """Checkpoints that look complete but are not."""
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    asked_at: float = -math.inf
    again_at: float = -math.inf
    cannot_save: bool = False
    """Processes that do not keep commits have trained, so their state cannot be saved."""
    reason: Reason = Reason.SLEEP
    logged: str = ""

    @property
    def will_sleep(self) -> bool:
        """Whether waiting ends in sleep, as far as is known, however long that takes."""
        return self.since is not None and not self.cannot_save


@dataclass(slots=True)
class BeforePreemption:
    """``made``: which checkpoint was requested. ``since``: since when an end at an unknown time is known (mono)."""

    made: Call = Call.NONE
    since: float | None = None

    def goes_on_at(self, by: float | None) -> float | None:
        """When training continues at the latest although hosts were to go at ``by``: see :attr:`Preemption.all_by`."""
        if by == math.inf:
            by = None if self.since is None else self.since + SHORTEST_S
        return None if by is None else by + CANCELLED_AFTER_S


COMMIT_S: Final = 10.0
"""Longest wait for the commit of the last checkpoint; then the one in memory is saved."""


@dataclass(slots=True)
class BeforeExit:
    """A job that has to end."""

    why: JobFailed | None = None
    since: float = 0.0
    """Since when (mono)."""
    commit_by: float = 0.0
    """When the wait for the commit of its last checkpoint is over (mono)."""
    reached: int = 0
    """The newest step that a process has reported since then."""
    lacks: str = ""
    """Why the last checkpoint may be older than that."""


@dataclass(slots=True)
class FinalCheckpoint:
    """The end of training: ``since`` when all processes have ended (mono); ``over``: nothing is left to save.

    ``waits``: agents have to stay for it, by the newest look.
    """

    over: bool
    since: float | None = None
    waits: bool = False


# --- what follows from the state


def covers_all_commits(job: JobState) -> bool:
    """Whether the newest checkpoint is as new as every known commit."""
    newest, known = job.roster.commits.newest, job.checkpoints.stored
    stored = None if known is None else known.commit
    return stored is not None and (newest is None or stored >= newest)


ANSWER_S: Final = 900.0
"""Longest time for a host's answer: it may have to read a whole checkpoint."""


def is_waiting(job: JobState) -> bool:
    """Whether an agent still has to answer, or writes a checkpoint."""
    return bool(job.helpers[Purpose.SAVE]) or (job.checkpoints.attempt is not None)


def next_look(job: JobState) -> float | None:
    """When the next step may be due (mono)."""
    return None if job.saving.since is None or is_waiting(job) else not_before(job)


def not_before(job: JobState) -> float:
    """When the next step is due, unless an agent has to answer first (mono)."""
    state = job.saving
    if state.since is None:
        return math.inf
    return max(_ready_at(job, state.since), state.again_at, job.checkpoints.not_before)


def _ready_at(job: JobState, since: float) -> float:
    """When hosts have been too few for long enough, or all holders of the newest commit will go (mono)."""
    at = since + (0.0 if job.saving.reason.ends_the_job else job.options.sleep_after_s)
    holders, going = job.roster.commits.newest_hosts(), notices.leaves_by(job)
    if not holders or not holders <= going.keys():
        return at
    ends = min(going[host] for host in holders)
    return since if ends == math.inf else max(since, min(at, ends - lead_s(job.cost.durable_s)))


def last_checkpoint_until(job: JobState) -> float:
    """When the wait for the last checkpoint of a job that has to end is over (mono)."""
    part = job.before_exit
    if part.why is None:
        return math.inf
    heard = any(agent.joined and job.now - agent.last_message_at < STOP_LIMIT_S for agent in job.roster.agents.values())
    on_its_way = heard and not job.checkpoints.failed_in_a_row
    return part.since + stop_limit_s(by_hand=ends_by_hand(job), on_its_way=on_its_way)


def ends_by_hand(job: JobState) -> bool:
    """Whether Ctrl-C ends the job."""
    why = job.before_exit.why
    return isinstance(why, Interrupted) and why.signal_number == signal.SIGINT


# --- what happens


RETRY_S: Final = 5.0
"""Pause after a failed attempt."""


def save_before(job: JobState, reason: Reason, *, short: str | None) -> Asleep | None:
    """Do the next step. ``short``: ``reason`` in words; None if processes can train.

    Returns how the job ends for now, once nothing can be lost by that.
    """
    state = job.saving
    if job.options.durability is None or (job.options.below_min != "sleep" and not reason.ends_the_job):
        return None
    state.reason = reason
    if short is None:
        training_resumed(job)
        return None
    state.since = job.now if state.since is None else state.since
    if job.now < not_before(job) or job.checkpoints.attempt is not None or job.transferring:
        return None
    if asked := job.helpers[Purpose.SAVE]:
        if job.now >= state.asked_at + ANSWER_S:
            _try_later(job, f"no answer from {', '.join(sorted(asked))} after {ANSWER_S:g} s")
        return None
    return _next(job, short)


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, and with it perhaps an answer: ask all again."""
    if host in job.helpers[Purpose.SAVE] or any(seat.host == host for seat in job.saving.known.held):
        _forget(job)


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """A host has reported or verified what is saved, or failed."""
    host, asked = agent.host.name, job.helpers[Purpose.SAVE]
    if answer.failed is not None:
        _try_later(job, f"{host}: {answer.failed}")
        return
    del asked[host]
    job.saving.answers[host] = answer.content
    if not asked:
        _take_answers(job)


def _next(job: JobState, short: str) -> Asleep | None:
    state = job.saving
    useless = None if job.checkpoints.done else job.checkpoints.useless  # as the end of training it counts
    match next_step(
        state.known,
        read_back=not state.reason.ends_the_job,
        useless=None if useless is None else useless.commit,
        ends=_mark_of_the_end(job),
    ):
        case Step.LOOK:
            return _ask_all(job, short)
        case Step.WRITE:
            _write(job)
        case Step.VERIFY:
            assert state.known.stored is not None
            _ask(job, [state.known.stored.host], do="verify", name=state.known.stored.name)
        case Step.WAIT if state.reason.ends_the_job:
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


def _mark_of_the_end(job: JobState) -> str | None:
    """The mark that the checkpoint of the commit in memory is to have; None if that is not the end of training: a later
    commit is lost, for example."""
    assert job.options.durability is not None
    newest = job.roster.commits.newest
    held = max((kept.commit[1:] for kept in job.saving.known.held.values()), default=None)
    ends = job.checkpoints.done and held is not None and (newest is None or held >= newest)
    return job.options.durability.mark if ends else None


def _ask_all(job: JobState, short: str) -> Asleep | None:
    # An agent that was sent a signal still has its grace period, and its memory until then.
    state = job.saving
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
    state = job.saving
    assert job.options.durability is not None
    state.asked_at, state.answers = job.now, {}
    for host in hosts:
        slots = sorted(seat.slot for seat in job.roster.lives if seat.host == host)
        full = {"place": job.options.durability.place, "urgent": True, **request}  # no process trains
        if not job.run_helper(Purpose.SAVE, host, slots, full):
            _try_later(job, f"{host} is not connected")
            return


def _take_answers(job: JobState) -> None:
    state = job.saving
    if state.known.looked:
        _take_check_of_checkpoint(job, next(iter(state.answers.values())))
        return
    held: dict[Seat, Kept] = {}
    stored: Found | None = None
    mark = None if job.options.durability is None else job.options.durability.mark
    try:
        for host, answer in state.answers.items():
            held |= _held(host, answer.get("held"))
            if (newest := answer.get("newest")) is not None:
                found = _found(host, newest)
                stored = max(filter(None, (stored, found)), key=lambda each: _newness(each, mark))
    except ValueError as error:
        _try_later(job, f"malformed answer: {error}")
        return
    stateless = not held and any(worker.live_at is not None for worker in job.roster.workers.values())
    state.known = Known(True, held, stored, stateless=stateless)


def _newness(found: Found, mark: str | None) -> tuple[Any, ...]:
    """Of two checkpoints of one commit, the one that is the end of training is the newer one: not every host sees it at
    once."""
    return found.identity[1:], found.finished is not None and found.finished == mark


def _take_check_of_checkpoint(job: JobState, answer: Mapping[str, Any]) -> None:
    state = job.saving
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
    state = job.saving
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
    state = job.saving
    if state.since is not None:
        state.since, state.cannot_save = None, False
        _forget(job)
        attempt.training_resumed(job)


def _forget(job: JobState) -> None:
    state = job.saving
    state.known, state.again_at = Known(), -math.inf
    job.helpers[Purpose.SAVE].clear()


def _try_later(job: JobState, why: str) -> None:
    state = job.saving
    _forget(job)
    state.again_at = job.now + RETRY_S
    what = f"the job does not {'end' if state.reason.ends_the_job else 'go to sleep'} yet: {why}"
    if what != state.logged:
        state.logged = what
        log.warning("%s", what)
        job.record("not_sealed" if state.reason.ends_the_job else "not_slept", reason=what)


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
    mark = value.get("finished")
    finished = mark if isinstance(mark, str) else None
    return Found(name, path, _identity(host, value.get("identity")), step, host, finished)


def _identity(host: str, value: Any) -> Identity:
    numbers = whole_numbers(value, 4)
    if numbers is None:
        raise ValueError(f"{host}: a commit is not four whole numbers")
    return numbers[0], numbers[1], numbers[2], numbers[3]


NO_COMMIT: Final = "the script has made no commit since (state.commit())"
"""Why steps are lost although the last commit is saved."""


def plan_exit(job: JobState) -> Plan:
    """End a job that has to end, once all is saved or the time is over."""
    part = job.before_exit
    if part.why is None or job.outcome.failure is not None:
        return NOTHING
    _end_newcomers(job)
    part.reached = max(part.reached, newest_step(job))
    until = last_checkpoint_until(job)
    # A world of an earlier launcher may be complete only now.
    saving = job.checkpoints.asked or not job.standing or attempt.request(job)
    if saving and job.now < until:
        stops_at = _stops_at(job)
        if job.now < stops_at:
            return Plan(min(stops_at, until))
        _stop_training(job)
        return Plan(until)
    if saving:
        lost = newest_step(job) - job.checkpoints.last.step
        what = f"{lost} steps since the newest one are lost" if lost > 0 else "what was trained since then is lost"
        log.warning("no last checkpoint in %g s; %s", until - part.since, what)
        part.lacks = f"no last checkpoint was complete in {until - part.since:g} s"
    job.fail(part.why)
    return NOTHING


def _end_newcomers(job: JobState) -> None:
    """End processes that are not in the world: their imports would take the CPU from the last checkpoint."""
    inside = set(job.world.members)
    for worker in job.roster.workers.values():
        if worker.life not in inside and worker.stage is not Stage.LIVE and worker.killed is None:
            orders.end(job, worker)


def _stops_at(job: JobState) -> float:
    """When a world that has not reached its next commit is ended (mono)."""
    part, attempt = job.before_exit, job.checkpoints.attempt
    if not (job.in_place or trains(job)):
        return job.now  # its processes are new: the commit from which it would continue is in memory
    if attempt is not None and not (attempt.stay or attempt.at_rest):
        part.commit_by = job.now + COMMIT_S  # an older one is completed first
    return part.commit_by


def _stop_training(job: JobState) -> None:
    """End a world that does not reach its next commit, perhaps because it hangs. Its last commit is in memory, and
    is saved.
    """
    attempt = job.checkpoints.attempt
    if job.standing and (attempt is None or len(attempt.kept) < len(attempt.ranks)):
        going = [worker for worker in members(job) if worker.killed is None]
        if going:
            log.warning("%s: the processes are ended, and the last commit is saved", _why_stopped(job))
            if job.settled and (job.in_place or trains(job)):
                job.before_exit.lacks = NO_COMMIT
        for worker in going:
            orders.kill(job, worker, Cause.TOLD)


def _why_stopped(job: JobState) -> str:
    if not job.settled:
        return "the world changes"
    if job.in_place or trains(job):
        return f"no commit in {job.now - job.before_exit.since:.0f} s"
    return "no step is made yet"


def save_before_exit(job: JobState) -> Plan:
    """Save the commit in memory if the job does not train; form no other world."""
    why = job.before_exit.why
    if why is None or job.standing:
        return NOTHING
    attempt.training_stopped(job, "the world is lost")
    if save_before(job, Reason.EXIT, short=str(why)) is not None:
        job.fail(why)
    return Plan(next_look(job), stop=True)


# --- planner: a job without enough hosts


def plan_sleep(job: JobState) -> Plan:
    """Save the newest commit while no world can form; end that once one does."""
    if job.decision.members is not None:
        training_resumed(job)
    elif job.options.below_min == "sleep" and not can_end_by_itself(job) and job.clean_exits.until is None:
        short = shortage.why_short(job)
        if short is None or not is_awaited(job):  # only the newest commit may be saved
            job.fail(save_before(job, Reason.SLEEP, short=short))
    return Plan(next_look(job))


# --- planner: before all hosts are taken away


def plan_preemption(job: JobState) -> Plan:
    """Ask for a checkpoint at once, and for the last one in time."""
    state = job.before_preemption
    now = job.now
    known = _known(job, job.preemption.all_by)
    before = lead_s(job.cost.durable_s, job.checkpoints.waited_s)
    wanted = call_for(now, known, before)
    if state.made is Call.LAST and not job.checkpoints.holds_training:
        state.made = Call.NONE  # another world has formed, and trains
    if state.made is Call.LAST and wanted is Call.NOW:
        wanted = Call.LAST  # it was faster than expected; steps after it could be lost
    if wanted is not state.made:
        if wanted is Call.NONE:
            attempt.withdraw_request(job)
            state.made = wanted
        elif attempt.request(job, stay=wanted is Call.LAST):
            state.made = wanted
    return Plan(None if known is None or wanted is not Call.NOW else known - before)


def why_not(job: JobState) -> HeldBack | None:
    """Why the next world does not form: the last checkpoint is made, and further steps would be lost."""
    if job.decision.members is None or job.before_preemption.made is not Call.LAST or not covers_all_commits(job):
        return None
    return HeldBack("all that training needs is about to go, and the last checkpoint is made")


def _known(job: JobState, by: float | None) -> float | None:
    """``by``: when less than training needs will be left (mono; infinite if unknown); None if enough will be."""
    part = job.before_preemption
    if by != math.inf:
        part.since = None
        return by
    part.since = job.now if part.since is None else part.since
    return part.since + SHORTEST_S


def plan_finished(job: JobState) -> Plan:
    """Start nothing if the newest checkpoint of this job says that training is done."""
    done, how = job.restore.done, job.options.durability
    if done is not None and how is not None and not (job.ending or job.world.begun):
        log.warning("%s", finished.message(done, how.place))
        job.final_checkpoint.over = job.outcome.finishing = True
    return NOTHING


def save_at_the_end(job: JobState) -> Plan:
    """Save the end of training once all processes have ended, or are late, and before the agents end."""
    ends = job.outcome.finishing and job.outcome.failure is None and job.shutdown.gone_by is None
    ready = ends and (job.shutdown.is_late(job.now) or not job.roster.workers)
    job.final_checkpoint.waits = ready and _needs_agents(job)
    return NOTHING


def _needs_agents(job: JobState) -> bool:
    """Whether there is still something to save. Logs how that ended."""
    state = job.final_checkpoint
    if state.over:
        return False
    if state.since is None:
        state.since = job.now
        training_resumed(job)
        attempt.training_finished(job)
    done = save_before(job, Reason.END, short="training is done")
    waits, why = agents_needed(
        job.now - state.since,
        saved=done is not None,
        answered=not is_waiting(job),
        durable_s=job.cost.durable_s,
    )
    if waits:
        return True
    state.over = True
    if done is not None and not job.roster.agents:
        why = "no agent is left that could write it"
    if why:
        _, step = job.checkpoints.newest
        useless = job.checkpoints.useless
        if step is not None:
            newest = f"the newest is of step {step}, and the same command continues from there"
        elif useless is not None:
            newest = f"the same command cannot go on: no job can resume from {useless.path}: {useless.why}"
        else:
            newest = "there is none, and the same command starts from the beginning"
        log.warning("training is done, but no checkpoint has its end: %s; %s", why, newest)
        job.record("not_sealed", reason=f"the end of training: {why}")
    elif done is not None and done.path is not None:
        log.warning("training is done; step %s is in %s", done.step, done.path)
    return False


# --- what the job waits for


def waits_at_the_end(job: JobState) -> Wait | None:
    """While the job ends: the end of training is made durable."""
    final = job.final_checkpoint
    if job.outcome.failure is not None or final.since is None or final.over:
        return None
    return _last_checkpoint(job, final.since + longest_s(job.cost.durable_s))


def waits_before_exit(job: JobState) -> Wait:
    """While a job that has to end makes its last checkpoint."""
    return _last_checkpoint(job, last_checkpoint_until(job))


def _last_checkpoint(job: JobState, until: float | None) -> Wait:
    doing = _saving(job)
    attempt = job.checkpoints.attempt
    older = job.before_exit.why is not None and attempt is not None and not (attempt.stay or attempt.at_rest)
    what = "for the last checkpoint" + (f": {'first the one before it: ' if older else ''}{doing}" if doing else "")
    then = ", then the job ends without it"
    if _commits_first(job) and not older:  # a script that does not commit is not waited for until the end
        until, then = job.before_exit.commit_by, ", then the processes are ended, and the last commit is saved"
    return Wait(what, until, f"{then}; a second Ctrl-C ends it now" if ends_by_hand(job) else then)


def _commits_first(job: JobState) -> bool:
    """Whether the last checkpoint of a job that has to end waits for the next commit of its processes."""
    attempt, part = job.checkpoints.attempt, job.before_exit
    waits = part.why is not None and job.standing and job.now < part.commit_by
    return waits and attempt is not None and len(attempt.kept) < len(attempt.ranks)


def waits_after_last_checkpoint(job: JobState) -> Wait | None:
    """No process trains beyond the checkpoint that was made because hosts are about to go."""
    if job.checkpoints.staying is None:
        return None
    what = "for other hosts: the last checkpoint is made, and hosts that training needs are about to go"
    return Wait(what, job.before_preemption.goes_on_at(job.preemption.all_by), ", then training goes on")


def waits_before_sleep(job: JobState) -> Wait | None:
    """While no world stands: memory is saved, and the job will sleep if that lasts."""
    state, attempt = job.saving, job.checkpoints.attempt
    if state.since is None or not (doing := _saving(job)):
        return None
    at = state.asked_at + ANSWER_S if attempt is None else attempt.deadline
    until = at if math.isfinite(at) else None  # infinite before the first write
    what = f"for the checkpoint before the job sleeps: {doing}"
    return Wait(what, until, ", then it is tried again", ends="it ends when the checkpoint is complete, or has failed")


def waits_to_sleep(job: JobState) -> Wait | None:
    """While no world stands: none can form, and the job will sleep if that lasts."""
    if not job.saving.will_sleep:
        return None
    return shortage.wait_until(job, next_look(job), ", then it saves what memory holds and sleeps (--sleep-after)")


def _saving(job: JobState) -> str:
    """How far the checkpoint on its way is; empty if there is none."""
    state, attempt = job.saving, job.checkpoints.attempt
    if attempt is not None:
        if absent := [str(life.seat) for life in attempt.ranks if life not in attempt.kept]:
            return f"the commit is not kept yet by {first_few(absent)}"
        step = next(iter(attempt.kept.values())).step
        hosts = first_few(sorted(job.helpers[Purpose.CHECKPOINT]))
        return f"step {step} is {'completed' if attempt.sealing else 'written'} by {hosts}"
    if not job.helpers[Purpose.SAVE]:
        return ""
    asked, stored = first_few(job.helpers[Purpose.SAVE]), state.known.stored
    if not state.known.looked or stored is None:
        return f"no answer yet from {asked} on what memory and storage hold"
    return f"step {stored.step} is read back by {asked}"
