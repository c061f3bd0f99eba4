"""The living processes, for users who inspect or end one."""

from __future__ import annotations

from typing import Any

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.state.facts.prices import price_of

Numbers = tuple[int | None, int | None, int]
"""The rank of a process in the world, and its pid on its host, None if it has none yet; and its training call."""


def by_host(job: JobState) -> dict[str, list[Numbers]]:
    """The living processes of each host, hosts and processes in the order of ranks; those in no world come last."""
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
            "heard_s": round(max(0.0, job.now - agent.last_message_at), 1),
            "step_s": steps.get(name),
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
