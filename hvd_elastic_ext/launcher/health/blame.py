"""Which host or slot a fault counts against, and when faults end the job."""

from __future__ import annotations

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.causes import BUDGET_WINDOW_S, Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId
from hvd_elastic_ext.launcher.rules.health import repeats
from hvd_elastic_ext.launcher.rules.health.repeats import Decision, Failure, Verdict

_MOST_FAILURES = 64
"""Most failures of one kind that are remembered, and most kinds."""


def failed(
    job: JobState, worker: Worker, cause: Cause, how: str, *, code: int, members: tuple[ProcessId, ...]
) -> JobFailed | None:
    """Note that a process has failed by itself; why that ends the job, if it does.

    While others train on, one host alone neither ends the job nor uses up ``--failure-budget``: it only cools down.
    Failures of newcomers before they are in a world cost nothing, and do not count.
    """
    state = job.faults
    state.first = state.first or f"{named(job, worker)} {external_text(with_error(worker, how))}"
    well = _others_healthy(job, worker, members)
    newcomer = well and bool(members) and worker.life not in members
    if worker.failure is not None and not newcomer and _is_script_error(job, worker, members, well=well):
        _, error, traceback = worker.failure
        how_often = " again and again" if well and members else ""
        who = named(job, worker)
        return JobFailed(f"the training script fails{how_often}: {error} ({who})\n{traceback}".rstrip())
    alone = newcomer and (job.standing or _is_spare(job, worker))
    found = _comes_again(job, worker, cause, code, alone=alone)
    words = external_text(with_error(worker, how))
    if found.verdict is Verdict.END:
        why = f"{named(job, worker)} {words}, in {found.starts} starts without a step between; {found.reason}"
        return JobFailed(f"{why}; {_output(job, worker)}")
    blocks = found.verdict is Verdict.BLOCK
    if blocks:
        words = external_text(f"{words}, in {found.starts} starts without a step")
        state.blocked.add(worker.seat)
    again = not (alone or blocks) and repeats.is_counted(cause, code) and _may_retry(job, worker)
    if again and not job.world.begun:  # whether the script fails everywhere is not known yet
        state.to_retry.add(worker.seat)
    waive = again and job.world.begun
    tried_s = worker.tried_s(job.now)
    job.strike(cause, worker.host, worker.seat.slot, detail=words, tried_s=tried_s, longest=blocks, waive=waive)
    if newcomer or not _count(job, worker.seat.host, well=well):
        return None
    count = f"{len(state.counted)} processes failed within an hour, more than --failure-budget allows"
    last = f"the last one was {named(job, worker)}: {with_error(worker, how)}; {_output(job, worker)}"
    return JobFailed(f"{count}; the first one was {state.first}; {last}")


def named(job: JobState, worker: Worker) -> str:
    """The rank of a process and where it runs."""
    return f"rank {_rank(job, worker)} on {worker.seat}"


def _rank(job: JobState, worker: Worker) -> int:
    """Its newest rank; the planned one before its first world."""
    place = job.rendezvous.place(worker.life)
    return place.rank if place is not None else worker.planned if worker.rank is None else worker.rank


def _output(job: JobState, worker: Worker) -> str:
    """Where the output of a process is."""
    who = _rank(job, worker)
    if job.options.output is not None:
        return f"its output is in {job.options.output}/rank.{who}"
    return f"its output, if any, is in the lines that begin with [{who}]"


def _comes_again(job: JobState, worker: Worker, cause: Cause, code: int, *, alone: bool) -> Decision:
    """What follows if a process has failed like others before, without a step between."""
    state, now = job.faults, job.now
    if not repeats.is_counted(cause, code):
        return Decision(Verdict.NOTHING, 0)
    unreported = not job.resize.steps_are_reported and now - worker.since >= repeats.UNREPORTED_S
    stepped = worker.step_came > 0.0 or (worker.generation > 0 and unreported)
    if stepped:
        state.stepped_at = max(state.stepped_at, now if not worker.step_came else worker.step_came)
    key = (str(cause), code, "" if worker.failure is None else worker.failure[0])
    failures = state.repeats.setdefault(key, [])
    failures.append(Failure(worker.seat, worker.created, now, stepped=stepped, alone=alone))
    del failures[:-_MOST_FAILURES]
    while len(state.repeats) > _MOST_FAILURES:
        del state.repeats[next(iter(state.repeats))]
    if repeats.starts(failures) < repeats.STARTS:  # usually: the rest asks thousands of processes
        return Decision(Verdict.NOTHING, 0)
    left, needed = _left_without(job, worker)
    return repeats.decide(failures, stepped_at=_stepped_at(job), left=left, needed=needed)


def _stepped_at(job: JobState) -> float:
    """When any process of the job did its last step (mono)."""
    alive = [worker.step_came for worker in job.roster.workers.values()]
    return max([job.faults.stepped_at, *(at for at in alive if at > 0.0)])


def _is_spare(job: JobState, worker: Worker) -> bool:
    """Whether a world can form without the slot of a process."""
    left, needed = _left_without(job, worker)
    return left >= needed


def _left_without(job: JobState, worker: Worker) -> tuple[int, int]:
    """Slots that may work without that of a process, and how many a world needs. Cooldowns end, so slots in one count,
    except for those that fail in the same way at each start.
    """
    now, ledger, limits = job.now, job.faults.ledger, job.options.limits
    needed = limits.least if job.world.begun else limits.start
    left = 0
    for host, about in ledger.by_host(job.fleet.hosts):
        out = {seat.slot for seat in job.faults.blocked | {worker.seat} if seat.host == host.name}
        out = {slot for slot in out if slot == worker.seat.slot or (about and about.blocked(now, host, slot).blocked)}
        held = about is not None and any(each.held_back(now) for each in about.records.values())
        if about is not None and held:
            by_hand = HealthLedger({key: each for key, each in about.records.items() if each.held_back(now)})
            out |= set(range(host.slots)) - set(by_hand.usable_slots(now, host))
        left += sum(slot not in out for slot in range(host.slots))
    size = limits.size(left, begun=job.world.begun)
    return (left if size else min(left, needed - 1)), needed


def _may_retry(job: JobState, worker: Worker) -> bool:
    """Whether a process that failed before any step may start again without a cooldown: only a few times."""
    state = job.faults
    if worker.step_came > 0.0 or job.standing:
        return False
    if state.retries and _stepped_at(job) > state.retried_at:
        state.retries = 0
    return state.retries < repeats.STARTS - 1


def with_error(worker: Worker, how: str) -> str:
    """How a process ended, and the error that its script raised, if that is known to be why."""
    return how if worker.failure is None or worker.killed is not None else f"{how}: {worker.failure[1]}"


def process_left(job: JobState, worker: Worker, how: str, *, members: tuple[ProcessId, ...]) -> JobFailed | None:
    """Note that a process left without an order. Return why that ends the job, or None.

    One process may leave at any time. The job ends when all have left too often.
    """
    if worker.life not in members or job.roster.present(members):
        return None
    return all_left(job, f"{worker.seat}: {how}")


def all_left(job: JobState, last: str) -> JobFailed | None:
    """Note that all processes of a world have left without an order. ``last``: the last of them, and how it ended."""
    state, now = job.faults, job.now
    state.all_left_at = [at for at in state.all_left_at if now - at < BUDGET_WINDOW_S] + [now]
    if len(state.all_left_at) <= job.options.failure_budget:
        return None
    times = f"all processes have left {len(state.all_left_at)} times within an hour, more than --failure-budget allows"
    return JobFailed(f"{times}; the last one was {last}. Training is done when the training function returns")


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

    While others are healthy it has to come back on another host. Before any training it may be a device of its slot:
    see ``rules/health/repeats``.
    """
    assert worker.failure is not None
    digest, host = worker.failure[0], worker.seat.host
    seen, job.faults.seen[digest] = job.faults.seen.get(digest), (host, worker.step)
    early = worker.life in members and not job.loopless.has_trained
    if not well and (len(members) > 1 or early) and _all_ended_with(job, digest, members):
        return True
    return seen is not None and worker.step <= seen[1] and (seen[0] != host or not (well or early))


def _all_ended_with(job: JobState, digest: str, members: tuple[ProcessId, ...]) -> bool:
    """Whether no member that has ended had another cause than this error, or than a lost peer."""
    ended = job.loopless.ends_of(job.generation) if members else []
    return all(each.error == digest for each in ended)
