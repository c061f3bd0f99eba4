"""The job at this moment as values, for programs: ``hvd-elastic status --json``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.launcher.membership import reports, spares
from hvd_elastic_ext.launcher.reporting.all_waits import waits_for
from hvd_elastic_ext.launcher.scaling.scaling import price_of

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.words import Wait


STARTS, TRAINS, WAITS, SLEEPS, ENDS = "starts", "trains", "waits", "sleeps", "ends"
STATES: Final = (STARTS, TRAINS, WAITS, SLEEPS, ENDS)
"""States of a job whose launcher runs."""


def state_of(job: JobState) -> str:
    """One of :data:`STATES`. Whether it sleeps, the job's state does not know."""
    if job.ending or job.before_exit.why is not None:
        return ENDS
    if not job.world.begun:
        return STARTS
    return TRAINS if wait_of(job) is None else WAITS


def wait_of(job: JobState) -> Wait | None:
    """What the job waits for; None if it trains."""
    return waits_for(job, brief=False)


def wait_json(wait: Wait | None, now: float) -> dict[str, Any] | None:
    """A wait as JSON: ``left_s`` is null if it has no limit; ``then``: what follows the limit, or ends the wait."""
    if wait is None:
        return None
    left_s = None if wait.until is None else round(max(0.0, wait.until - now), 3)
    return {"what": wait.what, "left_s": left_s, "then": wait.ends if left_s is None else wait.then.removeprefix(", ")}


def numbers(job: JobState) -> dict[str, Any]:
    """World, progress and newest checkpoint; null where nothing is known."""
    members = job.roster.present(job.world.members)
    times = [worker.step_s for worker in members if worker.step_s]
    path, step = job.checkpoints.newest
    return {
        "generation": job.generation,
        "size": len(members) if job.standing else 0,
        "step": max((worker.step for worker in members), default=0) or None,
        "shares": [share for _, share in sorted(reports.shares(job).items())] or None,
        "spares": spares.counted(job).ready,
        "steps_per_s": round(1 / max(times), 6) if times else None,
        "checkpoint": None if path is None else {"path": path, "step": step},
    }


# --- the living processes


Numbers = tuple[int | None, int | None, int]
"""The rank of a process in the world, and its pid on its host, None if it has none yet; and its training call."""


def by_host(job: JobState) -> dict[str, list[Numbers]]:
    """The living processes of each host, hosts and processes in the order of ranks; those without a world come last."""
    found: dict[str, list[Numbers]] = {}
    for seat, worker in sorted(job.roster.workers.items()):
        found.setdefault(seat.host, []).append(
            (job.rank(worker.life) if worker.generation else None, worker.pid, worker.call)
        )
    for numbers in found.values():
        numbers.sort(key=_by_rank)
    return dict(sorted(found.items(), key=lambda host: _by_rank(host[1][0])))


def _by_rank(numbers: Numbers) -> tuple[bool, int]:
    return (numbers[0] is None, numbers[0] or 0)


def details(job: JobState) -> dict[str, Any]:
    """What the dashboard shows beside the status line: of each connected host, and of ``--autoscale``."""
    return {"hosts": _hosts(job), "scaling": None if job.options.scaling is None else _scaling(job)}


def _hosts(job: JobState) -> dict[str, dict[str, Any]]:
    ranks = {host: [rank for rank, *_ in numbers if rank is not None] for host, numbers in by_host(job).items()}
    training = {life.seat.host for life in job.world.members} if job.standing else set()
    steps: dict[str, float] = {}
    share_of = reports.shares(job)
    ready = Counter(seat.host for seat in spares.ready(job))
    for worker in job.roster.present(job.world.members):
        if worker.step_s is not None:
            steps[worker.seat.host] = max(steps.get(worker.seat.host, 0.0), worker.step_s)
    return {
        name: {
            "trains": name in training,
            "cpu": agent.usage.get("cpu"),
            "memory": agent.usage.get("memory"),
            "gpu": agent.usage.get("gpu"),
            "gpu_memory": agent.usage.get("gpu_memory"),
            "price": price_of(job, name),
            "ranks": ranks.get(name, []),
            "spares": ready[name],
            "heard_s": round(max(0.0, job.now - agent.last_message_at), 1),
            "step_s": steps.get(name),
            "shares": [share_of[rank] for rank in ranks.get(name, []) if rank in share_of],
        }
        for name, agent in job.roster.agents.items()
        if agent.joined
    }


def _scaling(job: JobState) -> dict[str, Any]:
    scaling, options = job.scaling, job.options.scaling
    return {
        "policy": None if options is None else options.policy,
        "wanted": scaling.wanted,
        "recommended": scaling.recommended,
        "by_hand": scaling.by_hand,
        "why": scaling.reason,
        "step_s": {str(size): [speed.step_s, speed.steps] for size, speed in sorted(scaling.log.speeds().items())},
        "resize_s": scaling.resize_s,
    }
