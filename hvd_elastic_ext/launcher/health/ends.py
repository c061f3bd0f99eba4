"""The end of a process: its cause, whether it is only a victim's, the strike that follows, and whether it ends the job.

A process ends as a *victim* if a peer of its world was lost: its operations fail, and a script without an elastic loop
ends by that. A peer's connections close before its process has ended, and hosts report at different speed, so the end
of a victim may come before that of its cause: it waits :data:`GRACE_S` for it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.messages.slot_protocol import NOT_STARTED
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.departures import clean_exits, notices, shutdown
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health import liveness, strikes
from hvd_elastic_ext.launcher.health.causes import SIGNALLED, SSH_FAILED, Cause, Ending, Evidence, ending, evidence
from hvd_elastic_ext.launcher.health.loopless import Ended, WorldPhase, world_outcome
from hvd_elastic_ext.launcher.health.strikes import Unexplained
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import engine_of
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId


def exited(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    """A process has ended. ``news``: its exit code, and what its agent knows of that."""
    code = code if isinstance(code := news.get("code"), int) else 1
    members, rank = job.world.members, job.rank(worker.life)
    after = "after" if worker.done else "before"
    if worker.done and code and _is_between_calls(job, worker, code):
        worker.done = False
    rank = worker.rank if rank is None else rank  # it may have ended between two worlds
    job.roster.remove(worker)
    if worker.step_came:
        job.faults.stepped_at = max(job.faults.stepped_at, worker.step_came)
    if worker.life in members and not worker.done:
        job.resize.stopped(job.now)
    job.roster.ended[worker.seat] = worker.life.number
    job.rendezvous.ended(worker.life)
    if worker.life in job.world.left_out and (code < 0 or SIGNALLED < code < SSH_FAILED):
        job.fleet.cut_off_live.add(worker.life)  # it has not left: others may wait for it
    if worker.life in members and worker.generation < job.generation:
        job.answer(job.rendezvous.give_up())  # its peers would wait for its addresses for ever
    found = _ending(job, worker, code, oom=bool(news.get("oom")))
    cause = worker.killed or found.cause
    how = f"{found.text}: {reason}" if isinstance(reason := news.get("reason"), str) else found.text
    if worker.killed is not None:  # the exit code says only that it was killed
        how = _why_killed(worker, worker.killed)
    if victim := is_victim(job, worker, cause, how, code=code):
        cause, how = Cause.PEER_LOST, f"{Cause.PEER_LOST}: {found.text.removeprefix(f'{found.cause}: ')}"
        job.world.not_at_fault.add(worker.life)
    why = external_text(strikes.with_error(worker, how)) if cause.fault else how
    place = {"host": worker.seat.host, "slot": worker.seat.slot, **({} if rank is None else {"rank": rank})}
    job.record("exited", **place, code=code, cause=str(cause), reason=why)
    _note_end(job, worker, cause, how, code, victim=victim)
    liveness.ended(job, worker, well=worker.done or (cause is Cause.LEFT and code == 0))
    if worker.left and code and not worker.done:  # under MPI it waits for its peers before it ends
        clean_exits.advise(job, f"{strikes.named(job, worker)} left the training function, and others did not")
    decided_later = code == 0 and worker.loops and not worker.done and clean_exits.note(job, worker, cause)
    if worker.done:
        _done(job, worker, code)
    elif world_outcome(job).phase in (WorldPhase.ENDING, WorldPhase.DONE, WorldPhase.FAILED):
        return  # the last end decides
    elif cause is Cause.LEFT:
        orders.delay_restart(job, worker.seat)
        if decided_later:
            return
        _end_job(job, strikes.process_left(job, worker, found.text, members=members))
    elif job.outcome.finishing:
        trained = worker.life in members and not worker.is_newcomer
        if trained and (cause.fault or cause is Cause.PEER_LOST) and not _others_finish(job, worker):
            shutdown.end(job, JobFailed(f"{worker.seat} {how}, before its training was done; that of others is"))
    elif cause.fault:
        _failed(job, worker, cause, how, code=code, when=f"{after} its training was done")


def not_started(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    """A process could not be started."""
    exited(job, worker, {**news, "code": NOT_STARTED})


def not_a_victim(job: JobState, worker: Worker, cause: Cause, how: str, *, code: int) -> None:
    """A process was taken for one that ended because of a lost peer, and none was lost."""
    if world_outcome(job).phase not in (WorldPhase.ENDING, WorldPhase.DONE, WorldPhase.FAILED):
        error = "" if worker.lost_peer is None or worker.failure is not None else f": {worker.lost_peer}"
        how = external_text(f"{how}{error}")
        _failed(job, worker, cause, how, code=code, when="before its training was done")


def _why_killed(worker: Worker, cause: Cause) -> str:
    if cause is Cause.BEHIND:
        return f"{cause}: {worker.behind}; the next process in its slot catches up"
    silent = f"no heartbeat for {worker.silent_then_s:.1f} s, " if cause is Cause.SILENT else ""
    return f"{cause}: {silent}killed by the launcher"


def _ending(job: JobState, worker: Worker, code: int, *, oom: bool) -> Ending:
    members = job.world.members
    found = ending(
        code,
        done=worker.done,
        told_to_leave=worker.leaving is not None,
        departure=notices.departure_cause(job, worker.seat.host),
        peer_lost=worker.life in members and _has_lost_another(job, worker),
        oom=oom,
        warned=worker.warned,
    )
    if code == 0 and found.cause is Cause.LEFT and worker.stage is Stage.BOOTING:
        found = Ending(found.cause, "ended with exit code 0 without having asked for a world")
    elif code == 0 and found.cause is Cause.LEFT and not worker.loops:
        found = Ending(found.cause, "ended with exit code 0; it began no elastic loop")
    return engine_of(job).cause_of_end(job, worker, found, code)


def _has_lost_another(job: JobState, worker: Worker) -> bool:
    """Whether the world has lost a process other than this one. When all end, this reads thousands."""
    return any(life != worker.life and job.roster.alive(life) is None for life in job.world.members)


def _done(job: JobState, worker: Worker, code: int) -> None:
    """A process that was done with training has ended."""
    job.outcome.finishing = True
    generation, who = job.outcome.failed
    if code and worker.killed is None:
        shutdown.end(job, JobFailed(f"{worker.seat} ended with exit code {code} after training was done"))
    elif 0 < worker.generation == generation and not _others_finish(job, worker):  # the last world's
        shutdown.end(job, JobFailed(f"{who}; that of others is"))


def _is_between_calls(job: JobState, worker: Worker, code: int) -> bool:
    """Whether a process that was done with a training call, and has failed, was to train again, as far as known.

    Others may begin another call. Nobody knows whether they do: if they end well instead, the job fails. A process that
    the launcher has killed may have hung at the end of the script. One that has failed because its world has lost
    another is not at fault, even if it is the last one.
    """
    if job.outcome.finishing:
        return False
    if any(each.call > worker.call for each in job.roster.workers.values()) or follows_another(job, worker):
        return True
    if worker.killed is not None:
        return False
    others = [each for each in job.roster.present(job.world.members) if each is not worker and each.killed is None]
    return bool(others) or worker.call > 1 or code < 0 or SIGNALLED < code < SSH_FAILED


def _failed(job: JobState, worker: Worker, cause: Cause, how: str, *, code: int, when: str) -> None:
    """A process has failed while the job trains. ``when``: before or after the end of its training."""
    members = job.world.members
    # Once some are done, the others do the last steps without it.
    if not (any(each.done for each in job.roster.present(members)) and _others_finish(job, worker)):
        error = "" if worker.failure is None else f": {worker.failure[1]}"
        job.outcome.failed = worker.generation, f"{worker.seat} {how}{error}, {when}"
    job.fleet.recovering.add(worker.seat.host)
    _end_job(job, strikes.failed(job, worker, cause, how, code=code, members=members))


def _others_finish(job: JobState, worker: Worker) -> bool:
    """Whether other members that are not done yet do the last steps without this one."""
    others = [each for each in job.roster.present(job.world.members) if each is not worker]
    return any(not (each.done or each.is_newcomer) for each in others)


def _end_job(job: JobState, why: JobFailed | None) -> None:
    if why is not None:
        shutdown.end(job, why)


def _note_end(job: JobState, worker: Worker, cause: Cause, how: str, code: int, *, victim: bool) -> None:
    """A process has ended, and is not in the roster any more."""
    state = job.loopless
    state.note(worker)
    state.kept = state.kept or worker.warned
    # Also on a host that will go: that is the cause of every end there.
    by_itself = worker.killed is None and worker.leaving is None and not worker.warned
    well = worker.done or (code == 0 and by_itself)
    error = "" if worker.failure is None or well else f": {worker.failure[1]}"
    state.last = f"{worker.seat} {how}"
    digest = "" if worker.failure is None or well else worker.failure[0]
    entry = Ended(
        strikes.named(job, worker), f"{how}{error}", well, own=worker.failure is not None, victim=victim, error=digest
    )
    if worker.life in job.world.members:
        if state.of != job.generation:
            state.ended.clear()
        state.of = job.generation
        state.ended[worker.life] = entry
    elif worker.stage is Stage.BOOTING and (well or cause.fault):
        state.never_joined.pop(worker.seat, None)  # in the order of the ends
        state.never_joined[worker.seat] = entry


# --- victims of a lost peer


GRACE_S: Final = 5.0
"""How long the end of the cause may come after that of a victim: its interpreter has to shut down, on a busy
machine."""


def is_victim(job: JobState, worker: Worker, cause: Cause, how: str, *, code: int) -> bool:
    """Whether a process that has ended is taken for a victim, as far as known; :func:`explained` may find later that
    it is not one.
    """
    members = job.world.members
    if not job.in_place or not cause.fault or worker.life not in members or worker.killed is not None:
        return False
    lost = worker.lost_peer is not None
    found = evidence(code, cause, error=worker.failure is not None, lost_peer=lost)
    if found is Evidence.OWN:
        return False
    if worker.generation < job.generation:  # it may still be in the world before, and have lost others there
        members = (*members, *job.world.left_out)
    if found is Evidence.UNCLEAR:
        without = {worker.life, *(each.worker.life for each in job.faults.unexplained)}
        without |= {life for life, end in job.loopless.ended.items() if end.well} | job.fleet.unreported_ends.keys()
        return explained(job, members, without=without)
    job.faults.unexplained.append(Unexplained(worker, how, code, members, job.generation, job.now + GRACE_S))
    return True


def follows_another(job: JobState, worker: Worker) -> bool:
    """Whether a process has reported that an operation with its peers has failed, and its world has lost a member by
    something else.
    """
    without = {worker.life, *(each.worker.life for each in job.faults.unexplained)}
    return worker.lost_peer is not None and explained(job, job.world.members, without=without)


def explained(job: JobState, members: tuple[ProcessId, ...], *, without: Container[ProcessId]) -> bool:
    """Whether a member other than ``without`` is lost, is killed, or has reported an error of its own."""
    for life in members:
        if life in without:
            continue
        other = job.roster.alive(life)
        if other is None or other.killed is not None or (other.failure is not None and other.lost_peer is None):
            return True
    return False


# --- planner


def plan(job: JobState) -> Plan:
    """Take in their ends, once that world was taken over."""
    ends = job.fleet.unreported_ends
    for life in [each for each in job.world.members if each in ends] if ends else ():
        worker, code = job.fleet.unreported_ends.pop(life)
        worker.unseen = True
        if life.seat not in job.roster.workers:
            job.roster.add(worker)
            exited(job, worker, {"code": code})
    return NOTHING


# --- planner: victims


def plan_victims(job: JobState) -> Plan:
    """Forget those whose cause is known. If no other process of a world has failed, blame the first of them: an
    operation can fail without a lost peer, as with different shapes on two ranks.
    """
    waiting, job.faults.unexplained = job.faults.unexplained, []
    if not waiting:
        return NOTHING
    open_lives = {each.worker.life for each in waiting}
    known: dict[int, bool] = {}
    for each in waiting:
        if each.generation not in known:
            known[each.generation] = explained(job, each.members, without=open_lives)
        if known[each.generation]:
            continue
        if _may_come(job, each):
            job.faults.unexplained.append(each)
            continue
        known[each.generation] = True  # the others of its world have ended because of it
        not_a_victim(job, each.worker, Cause.CRASHED, each.how, code=each.code)
    return Plan(min((each.until for each in job.faults.unexplained), default=None))


def _may_come(job: JobState, end: Unexplained) -> bool:
    """Whether the end of another member may still be reported: soon, or once a host that sends nothing is cut off."""
    alive = [life for life in end.members if job.roster.alive(life) is not None]
    if not alive or job.now < end.until:
        return bool(alive)
    agents = filter(None, (job.roster.agents.get(host) for host in {life.seat.host for life in alive}))
    return any(agent.last_message_at < end.until for agent in agents)


# --- what the job waits for


FAILED: Final = "it ends with the process there; Ctrl-C ends the job"
FAILED_LONG: Final = "it ends with the process there, which `py-spy dump --pid` shows; Ctrl-C ends the job"
EXITS_S: Final = 10.0
"""Seconds that a process may take to exit before a line says how to look at it."""


def waits(job: JobState) -> Wait | None:
    """Processes whose script has raised an error and that have not ended yet: a large one takes seconds to end."""
    failing = [worker for worker in job.roster.workers.values() if worker.failure is not None and worker.killed is None]
    if not failing:
        return None
    ranks = [(worker, job.rank(worker.life)) for worker in failing]
    first = min(failing, key=lambda worker: worker.failed_at)
    names = [f"rank {rank} ({worker.seat})" if rank is not None else str(worker.seat) for worker, rank in ranks]
    who = "it" if len(failing) == 1 else str(first.seat)
    raised = "" if first.failure is None else first.failure[1]
    ends = FAILED if job.now - first.failed_at < EXITS_S else FAILED_LONG
    return Wait(f"for the end of {first_few(names)}: {who} raised {raised}", since=first.failed_at, ends=ends)
