"""Which processes there are: for people who look at one, or end one."""

from __future__ import annotations

from hvd_elastic_ext.launcher.state.job import JobState

Numbers = tuple[int | None, int | None]
"""The rank of a process in the world, and its pid on its host; None if it has none yet."""


def by_host(job: JobState) -> dict[str, list[Numbers]]:
    """The living processes of each host, hosts and processes in the order of ranks; those in no world come last."""
    found: dict[str, list[Numbers]] = {}
    for seat, worker in sorted(job.roster.workers.items()):
        found.setdefault(seat.host, []).append((job.rank(worker.life) if worker.generation else None, worker.pid))
    for numbers in found.values():
        numbers.sort(key=_by_rank)
    return dict(sorted(found.items(), key=lambda host: _by_rank(host[1][0])))


def _by_rank(numbers: Numbers) -> tuple[bool, int]:
    return (numbers[0] is None, numbers[0] or 0)
