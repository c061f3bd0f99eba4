"""What ``--autoscale`` decides by, besides the steps: load, prices, and what scripts observe."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import USAGE
from hvd_elastic_ext.launcher.state.facts.prices import price_of


def signals_of(job: JobState) -> dict[str, float]:
    """All signals: means of the hosts, rank 0's observations, and what the launcher reads itself."""
    names = {life.seat.host for life in job.world.members}
    own = {name: value for name, value in job.scaling.signals.items() if not isinstance(value, Mapping)}
    by_host = {name: value for name, value in job.scaling.signals.items() if isinstance(value, Mapping)}
    by_host["price"] = {name: price for name in names if (price := price_of(job, name)) is not None}
    means = {name: fmean(of) for name, value in by_host.items() if (of := [value[h] for h in names & value.keys()])}
    found = {**means, **own}
    members = job.roster.present(job.world.members)
    agents = [job.roster.agents.get(name) for name in {worker.seat.host for worker in members}]
    for name in USAGE:
        values = [agent.usage[name] for agent in agents if agent is not None and name in agent.usage]
        if values:
            found[name] = sum(values) / len(values)
    if times := [worker.iteration_s for worker in members if worker.iteration_s is not None]:
        found["iteration"] = max(times)
    for worker in members:
        if job.rank(worker.life) == 0:
            found |= worker.observed
    return found
