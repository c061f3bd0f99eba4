"""The processes of a job by host, for people."""

from __future__ import annotations

from hvd_elastic_ext.launcher.state.facts.processes import by_host
from tests.unit.launcher.simulated_cluster import running


def test_each_host_has_its_ranks_in_order_and_a_newcomer_has_none_yet() -> None:
    cluster = running("a", "b")
    cluster.run(1.0)
    job = cluster.driver.job
    pids = {worker.seat.host: worker.pid for worker in job.roster.workers.values()}
    assert by_host(job) == {"a": [(0, pids["a"])], "b": [(1, pids["b"])]}
    cluster.boot_s["a"] = 1000.0
    cluster.hosts(a=2, b=1)
    cluster.run(5.0)
    (first, newcomer), _ = by_host(job).values()
    assert first == (0, pids["a"])
    assert newcomer[0] is None
