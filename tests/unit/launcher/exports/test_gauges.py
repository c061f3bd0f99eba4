"""The figures of a job at one moment."""

from __future__ import annotations

import math
import re

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.exports.prometheus import MAX_HOSTS, RESERVED_NAMES, Counters, of_job
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster

Told = dict[str, dict[tuple[str, ...], float]]


def told(cluster: Cluster, **listed: int) -> Told:
    job = cluster.driver.job
    return {figure.name: dict(figure.samples) for figure in of_job(job, job.now, HostSet.of(listed))}


def test_a_world_that_trains_is_told_with_its_step_and_its_hosts() -> None:
    cluster = play("train a b")
    cluster.run(5.0)
    found = told(cluster, a=1, b=1)
    plain = {name: samples[()] for name, samples in found.items() if () in samples}
    assert plain["world_size"] == plain["hosts_listed"] == plain["hosts_connected"] == plain["slots_listed"] == 2
    assert plain["generation"] == plain["generation_entered"] == 1
    assert plain["step"] > 0
    assert plain["waiting"] == plain["hosts_blocked"] == plain["hosts_with_notice"] == 0
    assert found["processes"] == {("booting",): 0, ("parked",): 0, ("live",): 2}
    assert found["heartbeat_age_seconds"].keys() == {("a",), ("b",)}
    assert all(0 <= age < 3 for age in found["heartbeat_age_seconds"].values())


def test_a_lost_world_has_no_size_and_a_blocked_host_is_counted() -> None:
    cluster = play("train a b")
    cluster.run(5.0)
    cluster.kill("b")
    cluster.run(0.2)
    found = told(cluster, a=1, b=1)
    assert (found["world_size"], found["hosts_blocked"]) == ({(): 1}, {(): 1})
    cluster.kill("a")
    cluster.run(0.2)
    found = told(cluster, a=1, b=1)
    assert (found["world_size"], found["waiting"]) == ({(): 0}, {(): 1})


def test_what_the_script_observes_has_a_name_of_its_own_and_takes_none_of_ours() -> None:
    cluster = play("train a")
    cluster.run(1.0)
    cluster.driver.job.scaling.signals = {
        "queue": 7.0,
        "step": -1.0,
        "asleep": -1.0,
        "Ä b{}": 1.0,
        "worlds_total": -1.0,
    }
    found = told(cluster, a=1)
    assert found["queue"] == {(): 7}
    assert found["step"] != {(): -1}
    assert {"asleep", "worlds_total"}.isdisjoint(found)
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in found)


def test_every_name_of_ours_is_kept_from_signals_and_every_number_can_be_told() -> None:
    cluster = play("train a b")
    cluster.run(5.0)
    cluster.driver.job.scaling.wanted = 3
    cluster.driver.job.scaling.signals = {}
    counters = Counters(lambda: 1000.0, lambda: 0.0)
    counters.note("started", {"job": "digits", "run": "r1", "version": "0.1.0"})
    counters.note("sealed", {"step": 3, "seconds": 1.5, "bytes": 10})
    job = cluster.driver.job
    figures = [*of_job(job, job.now, HostSet.of({"a": 1})), *(each for each in counters.metrics() if not each.counter)]
    names = [figure.name for figure in figures if figure.name != "iteration"]
    assert set(names) <= RESERVED_NAMES
    assert len(names) == len(set(names))
    assert all(math.isfinite(value) for figure in figures for value in figure.samples.values())
    assert all(len(key) == len(figure.labels) for figure in figures for key in figure.samples)


def test_ten_thousand_hosts_have_no_samples_of_their_own_and_the_most_silent_one_is_told() -> None:
    cluster = play("train a b")
    cluster.run(5.0)
    agents = cluster.driver.job.roster.agents
    [one, other] = agents.values()
    for number in range(MAX_HOSTS - 2):
        agents[f"h{number}"] = one
    other.last_message_at = cluster.driver.job.now - 7.5
    found = told(cluster, a=1, b=1)
    assert len(found["heartbeat_age_seconds"]) == MAX_HOSTS
    assert found["oldest_heartbeat_age_seconds"] == {(): 7.5}
    for number in range(10_000):
        agents[f"h{number}"] = one
    found = told(cluster, a=1, b=1)
    assert found["oldest_heartbeat_age_seconds"] == {(): 7.5}
    assert sum(map(len, found.values())) < 50
