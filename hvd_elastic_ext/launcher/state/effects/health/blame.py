"""Which host or slot a fault counts against, and when faults end the job."""

from __future__ import annotations

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.rules.health.causes import BUDGET_WINDOW_S, Cause
from hvd_elastic_ext.launcher.rules.membership.rendezvous import ProcessId
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.roster import Worker


def failed(
    job: JobState, worker: Worker, cause: Cause, how: str, *, members: tuple[ProcessId, ...]
) -> JobFailed | None:
    """Note that a process has failed; why that ends the job, if it does.

    While others train on, one host alone neither ends the job nor uses up ``--failure-budget``: it only cools down.
    Failures of newcomers before they are in a world cost nothing, and do not count.
    """
    state = job.faults
    state.first = state.first or f"{worker.seat} {external_text(with_error(worker, how))}"
    well = _others_healthy(job, worker, members)
    newcomer = well and bool(members) and worker.life not in members
    if worker.failure is not None and not newcomer and _is_script_error(job, worker, members, well=well):
        _, error, traceback = worker.failure
        how_often = " again and again" if well and members else ""
        return JobFailed(f"the training script fails{how_often}: {error}\n{traceback}".rstrip())
    tried_s = worker.tried_s(job.now)
    job.strike(cause, worker.host, worker.seat.slot, detail=with_error(worker, how), tried_s=tried_s)
    if newcomer or not _count(job, worker.seat.host, well=well):
        return None
    what = f": {worker.failure[1]}" if worker.failure else ""
    count = f"{len(state.counted)} processes failed within an hour, more than --failure-budget allows"
    return JobFailed(f"{count}; the last one was {worker.seat}: {how}{what}")


def with_error(worker: Worker, how: str) -> str:
    """How a process ended, and the error that its script raised, if that is known to be why."""
    return how if worker.failure is None or worker.killed is not None else f"{how}: {worker.failure[1]}"


def process_left(job: JobState, worker: Worker, how: str, *, members: tuple[ProcessId, ...]) -> JobFailed | None:
    """Note that a process left without an order. Return why that ends the job, or None.

    One process may leave at any time. The job ends when all have left too often.
    """
    state = job.faults
    if worker.life not in members or job.roster.present(members):
        return None
    now = job.now
    state.all_left_at = [at for at in state.all_left_at if now - at < BUDGET_WINDOW_S] + [now]
    if len(state.all_left_at) <= job.options.failure_budget:
        return None
    times = f"all processes have left {len(state.all_left_at)} times within an hour, more than --failure-budget allows"
    return JobFailed(
        f"{times}; the last one was {worker.seat}: {how}. Training is done when the training function returns"
    )


def _count(job: JobState, host: str, *, well: bool) -> bool:
    """Count a fault; whether there are too many now."""
    state = job.faults
    now, budget = job.now, job.options.failure_budget
    state.counted = [(at, name) for at, name in state.counted if now - at < BUDGET_WINDOW_S]
    its_share = budget // 2 + 1
    if well and sum(name == host for _, name in state.counted) >= its_share:
        return False
    state.counted.append((now, host))
    return len(state.counted) > budget


def _others_healthy(job: JobState, worker: Worker, members: tuple[ProcessId, ...]) -> bool:
    """Whether another member lives that has not reported the same error; before the first world, another process."""
    digest = worker.failure and worker.failure[0]
    present = job.roster.present(members) if members else job.roster.workers.values()
    others = [each for each in present if each is not worker]
    return any(each.killed is None and not (each.failure and each.failure[0] == digest) for each in others)


def _is_script_error(job: JobState, worker: Worker, members: tuple[ProcessId, ...], *, well: bool) -> bool:
    """Whether the same error has ended every member of the world, or has come back without a step in between.

    While others are healthy it has to come back on another host, unless no process has ever trained.
    """
    assert worker.failure is not None
    digest, host = worker.failure[0], worker.seat.host
    seen, job.faults.seen[digest] = job.faults.seen.get(digest), (host, worker.step)
    early = worker.life in members and not job.loopless.has_trained
    if not well and (len(members) > 1 or early):
        return True
    return seen is not None and worker.step <= seen[1] and (early or not (well and seen[0] == host))
