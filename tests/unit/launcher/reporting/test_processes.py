"""The data of a job's hosts for a page."""

from __future__ import annotations

from dataclasses import replace

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.reporting.all_waits import status
from hvd_elastic_ext.launcher.reporting.status import details, numbers
from tests.unit.launcher.scenarios import play


def test_a_host_is_told_with_its_gpus_and_its_price_where_these_are_known() -> None:
    cluster = play("train a b")
    cluster.run(2.0)
    job = cluster.driver.job
    job.fleet.hosts = HostSet(tuple(replace(host, price="2.5" if host.name == "a" else "") for host in job.fleet.hosts))
    used = {"cpu": 0.25, "gpu": 0.5, "gpu_memory": 0.75, "memory": 0.125}
    cluster.driver.tell(News("a", {"event": "usage", **used}))
    hosts = details(job)["hosts"]
    assert {key: hosts["a"][key] for key in used} == used
    assert [(hosts[name]["price"], hosts[name]["gpu_memory"]) for name in ("a", "b")] == [(2.5, 0.75), (None, None)]


def test_a_host_is_told_with_the_share_of_each_of_its_ranks_where_shares_follow_their_speed() -> None:
    cluster = play("train a b c; share a 16 24; share b 8 24; run 2")
    hosts = details(cluster.driver.job)["hosts"]
    assert [hosts[name]["shares"] for name in ("a", "b", "c")] == [[0.6667], [0.3333], []]
    assert numbers(cluster.driver.job)["shares"] == [0.6667, 0.3333]
    assert ", share of each rank: 66.7% 33.3%" in status(cluster.driver.job)
    alike = play("train a b").driver.job
    assert numbers(alike)["shares"] is None
    assert "share" not in status(alike)
    many = [f"h{number}" for number in range(9)]
    words = play(f"train {' '.join(many)}; {'; '.join(f'share {name} 1 9' for name in many)}; run 2")
    assert f"share of each rank: {'11.1% ' * 8}…" in status(words.driver.job)
