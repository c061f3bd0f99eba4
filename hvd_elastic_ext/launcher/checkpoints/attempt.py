"""One attempt to make a checkpoint: when it is due, which commit becomes one, and what processes and agents do for it.

The launcher names a future commit, so that every rank keeps the same one. The agents write it beside training, each
rank its share. When all shares are written, one agent completes the checkpoint. A failure costs only this attempt: the
checkpoint before stays the newest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.launcher.checkpoints import interval
from hvd_elastic_ext.launcher.custody.custody import Stored
from hvd_elastic_ext.launcher.custody.holders import whole_number, whole_numbers
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.helpers import Purpose

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.checkpoints.schedule import Cadence
    from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent, Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

log = logging.getLogger(__name__)


AHEAD_S: Final = 0.5
"""Seconds. The named commit is this far ahead of the newest one, so that the message reaches all ranks before it."""
Name = tuple[int, int, int]
"""Of a commit: incarnation, generation, number."""


class Kept(NamedTuple):
    """The commit that a process keeps: its identity, its step, and its side of the memory.

    ``files``: a function of the user has saved the content there, and the other ranks keep only their own state.
    Training waited ``stall_s`` seconds for that.
    """

    commit: tuple[int, int, int, int]
    step: int
    side: int
    files: bool = False
    stall_s: float = 0.0


class Parts(NamedTuple):
    """Which of a commit's ``parts`` each member on one host writes; None: only its own state."""

    parts: int
    of: Mapping[ProcessId, int | None]


Work = Mapping[str, Parts]
"""The parts of each host that writes."""


@dataclass(slots=True)
class Attempt:
    """One checkpoint in progress. ``ranks``: the rank of each member of the world whose commit it contains."""

    generation: int
    ranks: Mapping[ProcessId, int]
    began: float
    wanted: Name
    stay: bool = False
    """No process trains beyond the commit, because the job ends with it."""
    at_rest: bool = False
    """No process trains, so it contains the commit in memory."""
    kept: dict[ProcessId, Kept] = field(default_factory=dict)
    misses: int = 0
    written: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    sealing: bool = False
    answer: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = math.inf
    kept_at: float = 0.0

    @property
    def stall_s(self) -> float:
        """Seconds that training waited for it, beyond the commit."""
        return max(kept.stall_s for kept in self.kept.values())

    @property
    def measurable(self) -> bool:
        """Whether training continues meanwhile, so that the cost can be measured."""
        return not (self.stay or self.at_rest)

    @property
    def hosts(self) -> dict[str, list[ProcessId]]:
        """The members on each host."""
        found: dict[str, list[ProcessId]] = {}
        for life in self.ranks:
            found.setdefault(life.seat.host, []).append(life)
        return found

    def work(self, *, apart: bool) -> Work:
        """What each host writes, if hosts share their storage. If they are ``apart``, each host writes a whole
        checkpoint, or none."""
        source = next((life for life, kept in self.kept.items() if kept.files), None)
        if source is None:
            return {
                host: Parts(
                    len(lives) if apart else len(self.ranks),
                    {life: place if apart else self.ranks[life] for place, life in enumerate(lives)},
                )
                for host, lives in self.hosts.items()
            }
        return {
            host: Parts(1, {life: 0 if life == source else None for life in lives})
            for host, lives in self.hosts.items()
            if not apart or host == source.seat.host
        }

    @property
    def root(self) -> str:
        """The host of the lowest rank, which completes the checkpoint."""
        return min(self.ranks.items(), key=lambda item: item[1])[0].seat.host


class Last(NamedTuple):
    """The newest checkpoint: when it was made, or this launcher began (mono), and its step."""

    at: float
    step: int


def due(now: float, step: int, last: Last, every: Cadence, interval_s: float) -> bool:
    """Whether another checkpoint is due. Pure. ``interval_s``: the interval that ``auto`` has chosen."""
    if every.notice_only or step <= last.step:
        return False
    if every.steps is not None:
        return step - last.step >= every.steps
    return now - last.at >= (interval_s if every.seconds is None else every.seconds)


def ahead(newest: Name, per_s: float, misses: int, *, age_s: float = 0.0) -> Name:
    """Choose a commit that no rank has passed when the message arrives. Pure.

    ``per_s``: commits a second; ``age_s``: how long ago ``newest`` was the newest. The checkpoint waits for the
    commit, so it is as near as possible; a missed one costs a message and another try.
    """
    margin = 1 + math.ceil(per_s * (age_s + AHEAD_S))
    return (newest[0], newest[1], newest[2] + margin * 2**misses)


# --- state


WAITED_S: Final = 2.0
"""Assumed time until a named commit is kept, before the first measurement."""


class Useless(NamedTuple):
    """A whole checkpoint from which no job can resume, and ``why``."""

    commit: tuple[int, int, int]
    step: int
    path: str
    why: str


@dataclass(slots=True)
class Checkpoints:
    """The newest checkpoint, and the attempt to make the next one."""

    last: Last
    """When the newest checkpoint's commit was kept, and its step, whether or not a job can resume from it."""
    attempt: Attempt | None = None
    not_before: float = -math.inf
    """No attempt before then (mono)."""
    gives_way_since: float | None = None
    """Since when a checkpoint that is due waits for results of calls that are sent to other slots (mono)."""
    failed_in_a_row: int = 0
    asked: bool = False
    """A checkpoint was requested and is not made yet."""
    stay: bool = False
    """No process trains beyond the requested checkpoint."""
    staying: Attempt | None = None
    """The attempt at whose commit its members wait, because training stops there."""
    apart: bool = False
    """Hosts share no storage: each has a complete checkpoint of its own."""
    only_here: str | None = None
    """The newest checkpoint, if only the hosts that made it have it."""
    stored: Stored | None = None
    """The newest checkpoint from which a job can resume, and its commit."""
    storage_names: dict[str, str] = field(default_factory=dict)
    """By host, its name for its storage."""
    readers: frozenset[str] = frozenset()
    """Hosts that are known to have the newest checkpoint on their storage."""
    done: bool = False
    """Training is done: the next checkpoint is its end."""
    files: dict[ProcessId, Kept] = field(default_factory=dict)
    """What processes keep in place of their last commit."""
    logged_stateless: bool = False
    path: str | None = None
    """The path of the newest checkpoint that was made, or loaded, and from which a job can resume."""
    step: int | None = None
    """Its step."""
    useless: Useless | None = None
    """A newer one than that, from which no job can resume."""
    waited_s: float = WAITED_S
    """How long all took to keep the named commit of the last checkpoint; a guess at first."""

    @property
    def newest(self) -> tuple[str | None, int | None]:
        """The path of the newest checkpoint from which a job can resume, and its step."""
        return self.path, self.step

    @property
    def known(self) -> bool:
        """Whether a checkpoint is known, of this job or of the one before it."""
        return any(each is not None for each in (self.stored, self.only_here, self.path))

    @property
    def holds_training(self) -> bool:
        """Whether a checkpoint beyond which no process trains is requested, in progress, or made."""
        return self.staying is not None or (self.stay and (self.asked or self.attempt is not None))


# --- what follows from the state


TELLS_S: Final = 5.0
"""Latest time from a process's entry into a world to the report of its first commit."""


def newest_step(job: JobState) -> int:
    """The newest step that any member has reported."""
    return max((worker.step for worker in members(job)), default=0)


def members(job: JobState) -> Sequence[Worker]:
    """Processes of the newest world."""
    return job.roster.present(job.world.members)


def newest_of_all(job: JobState) -> Name | None:
    """The newest reported commit; None unless all members have reported one: others have no State of ours."""
    held = [worker.holds for worker in members(job)]
    known = [each for each in held if each is not None]
    return max(known) if known and len(known) == len(job.world.members) else None


def can_commit(job: JobState) -> bool:
    """Whether every member has a State of ours, or has not reported one yet: only such States leave commits."""
    now, present = job.now, members(job)
    young = all(each.holds is not None or now - each.since < TELLS_S for each in present)
    return bool(present) and (young or job.roster.commits.newest is not None)


def trains(job: JobState) -> bool:
    """Whether the world may hold more than memory did before it: all have agreed on the state, and one did a step."""
    return job.settled and any(map(_has_stepped, members(job), repeat(job.generation)))


def _has_stepped(worker: Worker, generation: int) -> bool:
    committed = worker.holds is not None and worker.holds[1] >= generation
    return committed or worker.step_s is not None or worker.stepped_at is not None


def holding(job: JobState) -> frozenset[Seat]:
    """Seats with the checkpoint in their memory."""
    found = [job.loading_of(host) for host in job.restore.hosts]
    return frozenset(seat for loading in found if loading is not None for seat in loading.seats)


# --- what happens


WRITE_S: Final = 900.0
"""How long a host may take for its share."""
RETRY_S: Final = 5.0
"""Pause after a failed attempt; it doubles with each further one, up to :data:`MAX_RETRY_S`."""
MAX_RETRY_S: Final = 300.0
MAX_MISSES: Final = 8
"""How often a commit is named again, further ahead, before the attempt fails."""


def resumed_from(job: JobState, path: str, step: int, facts: Mapping[str, Any], commit: Name | None = None) -> None:
    """Training resumes from a checkpoint of ``step`` steps with a manifest that holds ``facts``."""
    state = job.checkpoints
    state.path, state.step, state.useless = path, step, None
    state.last = Last(job.now, step)
    state.stored = Stored(commit, step, path)
    interval.resumed_from(job, facts)


def request(job: JobState, *, stay: bool = True) -> bool:
    """Make a checkpoint as soon as possible; False if there is nothing to save.

    With ``stay`` no process trains beyond it, until :func:`withdraw_request`.
    """
    state = job.checkpoints
    if stay and state.staying is not None:
        return False  # nothing was trained since then
    state.stay = stay
    state.asked, state.not_before = job.options.durability is not None and can_commit(job), -math.inf
    return state.asked


def drop_older_attempt(job: JobState) -> None:
    """Give up an attempt with an older commit than the last checkpoint should have, unless all of it is written."""
    attempt = job.checkpoints.attempt
    if job.checkpoints.asked and attempt is not None and not (attempt.stay or attempt.at_rest or attempt.sealing):
        give_up(job, "the last checkpoint takes its place", blame=False)
        job.checkpoints.not_before = -math.inf


def training_finished(job: JobState) -> None:
    """Training is done: a named commit will not come, and the next checkpoint is the end of training."""
    state = job.checkpoints
    state.done = True
    training_stopped(job, "training is done")
    state.failed_in_a_row, state.not_before = 0, -math.inf


def training_stopped(job: JobState, why: str) -> None:
    """No process trains any more: a named commit will not come, and the commit in memory can be written."""
    state = job.checkpoints
    state.asked = False
    if state.attempt is not None and len(state.attempt.kept) < len(state.attempt.ranks):
        give_up(job, why, blame=False)
        state.not_before = -math.inf


def last_commit(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A process that is done with training keeps other data in place of its last commit."""
    kept = _kept(message)
    if kept is not None:
        job.checkpoints.files[worker.life] = kept


def write_memory(job: JobState, held: Mapping[ProcessId, Kept]) -> None:
    """Make a checkpoint of ``held``, the same commit in every memory, while no process trains."""
    state = job.checkpoints
    files = {life: kept for life, kept in state.files.items() if life in held and kept.commit == held[life].commit}
    held = {**held, **files}
    now, name = job.now, next(iter(held.values())).commit[1:]
    ranks = {life: rank for rank, life in enumerate(held)}
    state.attempt = Attempt(job.generation, ranks, now, name, at_rest=True, kept=dict(held))
    _write(job, state.attempt)


def training_resumed(job: JobState) -> None:
    """Processes train again: the commit in memory will be overwritten."""
    state = job.checkpoints
    if state.attempt is not None and state.attempt.at_rest:
        give_up(job, "training goes on", blame=False)


def withdraw_request(job: JobState) -> None:
    """Drop the request for a checkpoint, and let waiting processes train on."""
    state = job.checkpoints
    state.asked = state.stay = False
    if state.attempt is not None and state.attempt.stay:
        give_up(job, "it is no longer needed", blame=False)
    if state.staying is not None:
        resume_waiting(job, state.staying)


def resume_waiting(job: JobState, attempt: Attempt) -> None:
    """Let processes that wait for a checkpoint train on."""
    job.checkpoints.staying = None
    job.tell_all(job.roster.present(attempt.ranks), "keep", commit=None)


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, and with it perhaps a request or an answer."""
    state = job.checkpoints
    if state.attempt is not None and host in state.attempt.hosts:
        give_up(job, f"the connection to {host} was lost", blame=False)


def agent_joined(job: JobState, host: str) -> None:
    """An agent has connected: end what an earlier launcher, or a lost message, left open.

    Otherwise its processes might wait for ever for a message that was lost.
    """
    state = job.checkpoints
    workers = job.roster.on(host)
    if job.options.durability is None or not workers:
        return
    agent_lost(job, host)
    if state.staying is not None and host in state.staying.hosts:
        return  # they have to wait
    job.tell_all(workers, "keep", commit=None)
    job.send(host, {"do": "drop", "slots": [worker.seat.slot for worker in workers]})


def _age_s(job: JobState, newest: Name) -> float:
    """How long ago, in seconds, ``newest`` was first seen."""
    ages = [
        each.silent_s + job.now - each.in_heartbeat_at
        for each in members(job)
        if each.holds == newest and each.in_heartbeat_at
    ]
    return max(0.0, min(ages, default=0.0))


def _pace_per_s(job: JobState) -> float:
    """Commits per second until the named one: none is skipped meanwhile."""
    return max((worker.commits_per_s for worker in members(job)), default=0.0)


def _reachable(job: JobState, lives: Iterable[ProcessId]) -> bool:
    """Whether every process can receive the name of the commit, which is sent once."""
    agents = [job.roster.agents.get(host) for host in {life.seat.host for life in lives}]
    return all(agent is not None and agent.joined for agent in agents)


# --- one attempt


def begin(job: JobState) -> None:
    """Begin an attempt, unless a process is not connected."""
    now, state = job.now, job.checkpoints
    newest = newest_of_all(job)
    ranks = {life: place.rank for life in job.world.members if (place := job.rendezvous.place(life))}
    if newest is None or len(ranks) != len(job.world.members) or not _reachable(job, ranks):
        return
    wanted = ahead(newest, _pace_per_s(job), 0, age_s=_age_s(job, newest))
    state.attempt = Attempt(job.generation, ranks, now, wanted, state.asked and state.stay)
    _ask(job, state.attempt)


def _ask(job: JobState, attempt: Attempt) -> None:
    attempt.kept.clear()
    job.tell_all(job.roster.present(attempt.ranks), "keep", commit=attempt.wanted, stay=attempt.stay)


def commit_kept(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A process keeps the commit that was named."""
    attempt, kept = job.checkpoints.attempt, _kept(message)
    if attempt is None or worker.life not in attempt.ranks or kept is None or kept.commit[1:] != attempt.wanted:
        return
    attempt.kept[worker.life] = kept
    if len(attempt.kept) == len(attempt.ranks):
        _write(job, attempt)


def commit_not_kept(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A process made the named commit before it received the name: name one further ahead."""
    attempt, writing = job.checkpoints.attempt, job.helpers[Purpose.CHECKPOINT]
    wanted, newest = message.get("wanted"), whole_numbers(message.get("newest"), 3)
    if attempt is None or worker.life not in attempt.ranks or writing or wanted != [*attempt.wanted]:
        return
    if isinstance(failed := message.get("failed"), str):
        give_up(job, f"{worker.seat}: {failed}")
        return
    attempt.misses += 1
    if newest is None:
        why = "has no access to its agent's memory; start it with the file descriptors of its parent"
        give_up(job, f"{worker.seat} {why}")
    elif attempt.misses > MAX_MISSES:
        give_up(job, "commits are made faster than processes can be told of them")
    else:
        further = ahead((newest[0], newest[1], newest[2]), _pace_per_s(job), attempt.misses)
        attempt.wanted = max(further, attempt.wanted)
        _ask(job, attempt)


def _write(job: JobState, attempt: Attempt) -> None:
    if len({(kept.commit, kept.step) for kept in attempt.kept.values()}) > 1:
        give_up(job, "ranks made commits of one number after different steps; commit at the same step on all ranks")
        return
    assert job.options.durability is not None
    attempt.kept_at = job.now
    if attempt.measurable:
        job.cost.slowing.begins(attempt.kept_at, newest_step(job))
    attempt.deadline = attempt.kept_at + WRITE_S
    attempt.written.clear()
    for host, (parts, of) in attempt.work(apart=job.checkpoints.apart).items():
        shares = {
            str(life.seat.slot): [part, attempt.ranks[life], attempt.kept[life].side] for life, part in of.items()
        }
        if not _send(job, attempt, host, list(of), do="write", parts=parts, shares=shares):
            return


def _send(job: JobState, attempt: Attempt, host: str, lives: list[ProcessId], **request: Any) -> bool:
    assert job.options.durability is not None
    commit = next(iter(attempt.kept.values())).commit
    full = {"place": job.options.durability.place, "commit": commit, **request}
    if attempt.stay or attempt.at_rest:
        full["urgent"] = True  # no training to give way to, and the time is limited
    if not job.run_helper(Purpose.CHECKPOINT, host, [life.seat.slot for life in lives], full):
        give_up(job, f"{host} is not connected", blame=False)
        return False
    return True


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """A host has written its share, or completed the checkpoint, or failed."""
    attempt, host, asked = job.checkpoints.attempt, agent.host.name, job.helpers[Purpose.CHECKPOINT]
    assert attempt is not None
    if answer.failed is not None:
        give_up(job, f"{host}: {answer.failed}")
        return
    del asked[host]
    if attempt.sealing:
        attempt.answer = answer.content if host == attempt.root else attempt.answer
    else:
        attempt.written[host] = answer.content
    if not asked and attempt.sealing:
        _completed(job, attempt)
    elif not asked:
        _complete(job, attempt)


def _complete(job: JobState, attempt: Attempt) -> None:
    """All shares are written: have the checkpoint completed."""
    state = job.checkpoints
    assert job.options.durability is not None
    if len({str(answer.get("store")) for answer in attempt.written.values()}) > 1 and not state.apart:
        state.apart = True
        log.warning(
            "%s is not the same storage on all hosts: each makes a complete checkpoint", job.options.durability.place
        )
        _write(job, attempt)
        return
    attempt.sealing = True
    facts = interval.facts(job, ended=attempt.stay or attempt.at_rest)
    if _is_the_end(job, attempt):
        facts["finished"] = job.options.durability.mark
    more = {"do": "seal", "world": len(attempt.ranks), "keep": job.options.durability.keep, "facts": facts}
    work = attempt.work(apart=state.apart)
    if not state.apart:
        written, (parts, of) = list(attempt.written.values()), work[attempt.root]
        _send(job, attempt, attempt.root, list(of), parts=parts, written=written, **more)
        return
    for host, (parts, of) in work.items():
        if not _send(job, attempt, host, list(of), parts=parts, written=[attempt.written[host]], **more):
            return


def _is_the_end(job: JobState, attempt: Attempt) -> bool:
    """Whether the checkpoint is the end of training."""
    newest = job.roster.commits.newest
    return job.checkpoints.done and attempt.at_rest and (newest is None or attempt.wanted >= newest)


def _completed(job: JobState, attempt: Attempt) -> None:
    state, now, answer = job.checkpoints, job.now, attempt.answer
    step = next(iter(attempt.kept.values())).step
    took = now - attempt.kept_at + attempt.stall_s
    if not attempt.at_rest:
        state.waited_s = attempt.kept_at - attempt.began - attempt.stall_s
    path, lacks = str(answer.get("path", "")), answer.get("not_resumable")
    useless = isinstance(lacks, str) and not _is_the_end(job, attempt)
    job.record(
        "sealed",
        path=path,
        step=step,
        call=answer.get("call"),
        bytes=answer.get("bytes"),
        seconds=round(took, 3),
        since_asked_s=round(now - attempt.began, 3),
        not_resumable=lacks if useless else None,
    )
    if isinstance(why := answer.get("not_removed"), str):
        log.warning("older checkpoints cannot be removed and take up room: %s", why)
    state.last = Last(attempt.kept_at, step)
    stored = Stored(next(iter(attempt.kept.values())).commit[1:], step, path)
    if useless:
        _found_useless(job, stored, str(lacks), answer)
    else:
        _found_resumable(job, attempt, stored)
    slowed = job.cost.slowing.ends(now, newest_step(job)) if attempt.measurable else None
    interval.measured(job, took, slowed, stall_s=attempt.stall_s)
    state.failed_in_a_row, state.asked = 0, state.asked and state.stay and not attempt.stay
    state.stay = state.stay and state.asked
    state.staying = attempt if attempt.stay else None
    _drop(job, attempt)


def _found_resumable(job: JobState, attempt: Attempt, stored: Stored) -> None:
    """The new checkpoint is the one from which the job, or the same command, can resume."""
    state = job.checkpoints
    state.path, state.step, state.stored, state.useless = stored.path, stored.step, stored, None
    state.only_here = state.path if state.apart else None
    state.storage_names.update({host: str(written.get("store")) for host, written in attempt.written.items()})
    word = state.storage_names.get(attempt.root)
    shared = frozenset(host for host, known in state.storage_names.items() if known == word)
    state.readers = frozenset(attempt.written) if state.apart else shared


def _found_useless(job: JobState, made: Stored, lacks: str, answer: Mapping[str, Any]) -> None:
    """No job can resume from the new checkpoint: the one before stays that from which one can, if there is any."""
    state, refused = job.checkpoints, job.calls.refused
    why = f"{lacks} ({refused[min(refused)]})" if refused else lacks
    known, path, step = state.useless is not None, answer.get("resumable"), whole_number(answer.get("resumable_step"))
    assert made.commit is not None
    state.useless = Useless(made.commit, made.step, made.path, why)
    if isinstance(path, str) and step is not None:
        state.path, state.step = path, step
    if known:
        return
    if state.path is None:
        then = "nor from an earlier one, so the same command could not go on"
    else:
        then = f"the same command would go on after step {state.step}, with the checkpoint {state.path}"
    log.warning("no job can resume from %s: %s; %s", made.path, why, then)


def give_up(job: JobState, why: str, *, blame: bool = True) -> None:
    """Give up the attempt. ``strikes``: something failed, so that the next one comes later."""
    state = job.checkpoints
    attempt = state.attempt
    assert attempt is not None
    job.cost.slowing.breaks()
    _drop(job, attempt)
    if not attempt.at_rest:
        resume_waiting(job, attempt)
    if not blame:
        state.not_before = job.now + RETRY_S
        return
    state.failed_in_a_row += 1
    pause = pause_after(state.failed_in_a_row, first=RETRY_S, longest=MAX_RETRY_S)
    state.not_before = job.now + pause
    stays = "" if state.path is None else "; the one before stays"
    log.warning("no checkpoint: %s%s; the next attempt is in %g s", why, stays, pause)
    job.record("not_sealed", reason=why, again_s=pause)


def _drop(job: JobState, attempt: Attempt) -> None:
    job.checkpoints.attempt = None
    job.helpers[Purpose.CHECKPOINT].clear()
    for host, lives in attempt.hosts.items():
        job.send(host, {"do": "drop", "slots": [life.seat.slot for life in lives]})


def _kept(message: Mapping[str, Any]) -> Kept | None:
    """What a process reports to keep; None if the message is malformed."""
    commit = whole_numbers(message.get("commit"), 4)
    step, side = whole_number(message.get("step")), whole_number(message.get("side"))
    if commit is None or step is None or side is None:
        return None
    stall_s = max(0.0, finite_number(message.get("stall_s")) or 0.0)
    return Kept((commit[0], commit[1], commit[2], commit[3]), step, side, message.get("files") is True, stall_s)


GIVES_WAY_S: Final = 30.0
"""Most seconds for which a checkpoint that is due waits for results of calls that are sent."""
STATELESS_AFTER_S: Final = 30.0
"""A process that trains this long without a commit has no State of ours."""


def plan(job: JobState) -> Plan:
    """Begin a checkpoint that is due; give up an attempt if its world has changed or its time is over."""
    state = job.checkpoints
    if job.options.durability is None:
        return NOTHING
    now = job.now
    if not job.settled:
        job.cost.slowing.breaks()
    elif state.attempt is None:
        job.cost.slowing.trains(now, newest_step(job))
    _warn_of_stateless(job)
    if state.staying is not None and state.staying.generation != job.generation:
        resume_waiting(job, state.staying)  # into the next world
    attempt = state.attempt
    if attempt is None:
        if now >= state.not_before and _due(job) and not _gives_way(job):
            state.gives_way_since = None
            begin(job)
    elif attempt.generation != job.generation or not (
        attempt.at_rest or len(job.roster.present(attempt.ranks)) == len(attempt.ranks)
    ):
        give_up(job, "the world has changed", blame=False)
    elif now >= attempt.deadline:
        give_up(job, f"no answer from {', '.join(sorted(job.helpers[Purpose.CHECKPOINT]))} after {WRITE_S:g} s")
    return Plan(_next_look(job))


def _gives_way(job: JobState) -> bool:
    """Whether a checkpoint that is due waits for results of calls that are being sent to another slot.

    A host runs one helper: where checkpoints come more often than such a transfer takes, no newcomer would ever get
    results.
    """
    state = job.checkpoints
    if job.calls.transfer is None or state.asked:
        return False
    if state.gives_way_since is None:
        state.gives_way_since = job.now
    return job.now < state.gives_way_since + GIVES_WAY_S


def _warn_of_stateless(job: JobState) -> None:
    """Warn once that a script without a State of ours gets no checkpoints."""
    state = job.checkpoints
    if state.logged_stateless or not job.settled:
        return
    others = [
        each for each in members(job) if each.holds is None and each.step and job.now - each.since > STATELESS_AFTER_S
    ]
    if others:
        state.logged_stateless = True
        reason = f"{others[0].seat} trains without a State of hvd_elastic_ext; use one, or --adopt"
        log.warning("no checkpoint is made: %s", reason)
        job.record("not_sealed", reason=reason)


def _next_look(job: JobState) -> float:
    """When something may be due (mono)."""
    state, how = job.checkpoints, job.options.durability
    if how is None or how.every.notice_only:
        return math.inf
    if state.attempt is not None:
        return state.attempt.deadline
    if state.gives_way_since is not None and job.now < state.gives_way_since + GIVES_WAY_S:
        return state.gives_way_since + GIVES_WAY_S
    seconds = job.cost.choice.seconds if how.every.seconds is None else how.every.seconds
    at = math.inf if how.every.steps else max(state.not_before, state.last.at + seconds)
    return at if at > job.now else math.inf  # a checkpoint that is due and cannot be made yet needs no earlier look


def _due(job: JobState) -> bool:
    state = job.checkpoints
    assert job.options.durability is not None
    newest = newest_of_all(job)
    if newest is None or not job.settled:
        return False
    every, seconds = job.options.durability.every, job.cost.choice.seconds
    return state.asked or due(job.now, newest_step(job), state.last, every, seconds)
