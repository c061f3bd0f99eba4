"""A job does not begin anew over its checkpoints, whoever comes first, is lost, or cannot read them."""

from __future__ import annotations

from typing import Any

from hvd_elastic_ext.launcher.rules.checkpoints.schedule import ON_NOTICE, Cadence
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.storing import Storing

FOUND = {"path": "/store/y", "step": 40, "generation": 3}


def waiting(loads: dict[str, Any], **limits: Any) -> Storing:
    """A cluster whose hosts answer like this when they are to load."""
    cluster = Storing(Cadence(steps=1000), limits=Limits(settle_s=0.1, **limits))
    cluster.answers = {(host, "load"): answer for host, answer in loads.items()}
    return cluster


def hosts_of(cluster: Storing) -> set[str]:
    """Where the first world was formed."""
    return set(cluster.events("resized")[0]["added"])


def test_another_agent_of_a_host_that_had_loaded_loads_again() -> None:
    cluster = waiting({"a": FOUND, "b": 1})
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.events("spawned")) == 2)
    before = cluster.agents["a"]
    cluster.lose_agent("a")
    cluster.until(lambda: cluster.training, within=90.0)
    assert cluster.agents["a"] is not before
    assert [host for host, _ in cluster.of("load")].count("a") == 2


def test_a_slot_that_is_used_in_place_of_the_one_that_had_loaded_is_loaded_first() -> None:
    cluster = waiting({"a": FOUND}, most=1)
    cluster.hosts(a=2)
    cluster.until(lambda: cluster.events("spawned"))
    cluster.kill("a", 0, code=1)
    cluster.until(lambda: cluster.training, within=90.0)
    [process] = cluster.training
    assert str(process.slot) in cluster.of("load")[-1][1]["ranks"]


def test_no_world_begins_without_the_host_that_has_the_checkpoint() -> None:
    cluster = waiting({"a": FOUND, "b": 1})
    cluster.boot_s = {"a": 30.0, "b": 1.0}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.training, within=60.0)
    assert "a" in hosts_of(cluster)


def test_no_world_begins_without_a_host_that_may_yet_find_one() -> None:
    cluster = waiting({"a": FOUND, "b": {}})
    cluster.held_s = {"a": 40.0}
    cluster.hosts(b=1, a=1)
    cluster.until(lambda: cluster.training, within=90.0)
    assert "a" in hosts_of(cluster)


def test_when_the_host_that_had_it_is_gone_the_others_load_it_before_they_begin() -> None:
    cluster = waiting({"a": FOUND, "b": 1})
    cluster.boot_s = {"a": 60.0, "b": 1.0}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.events("spawned")) == 2)
    cluster.hosts(b=1)
    cluster.run(20.0)
    assert not cluster.training
    cluster.answers["b", "load"] = FOUND
    cluster.until(lambda: cluster.training, within=60.0)
    assert cluster.of("load")[-1][0] == "b"


def test_one_that_cannot_read_its_own_does_not_end_a_job_for_which_another_one_still_loads() -> None:
    cluster = waiting({"a": FOUND, "b": {"failed": "none is whole", "for_good": True}})
    cluster.held_s = {"a": 3.0}
    cluster.hosts(b=1, a=1)
    cluster.until(lambda: cluster.training, within=60.0)
    assert cluster.driver.outcome is None


def test_who_still_loads_when_training_has_begun_gets_other_memory_for_its_processes() -> None:
    cluster = waiting({"a": FOUND, "b": FOUND})
    cluster.held_s = {"b": 1000.0}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.training) == 2, within=90.0)
    assert cluster.dropped == ["b"]
    assert cluster.forgotten == [("b", 0)]


def test_a_host_that_was_cut_off_while_it_loaded_starts_nothing_until_it_has_let_go_of_its_memory() -> None:
    cluster = waiting({"a": FOUND, "b": FOUND})
    cluster.held_s = {"b": 1000.0}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.of("load")) == 2)
    cluster.disconnect("b")
    cluster.until(lambda: cluster.training, within=30.0)
    cluster.run(2.0)
    cluster.reconnect("b")
    cluster.until(lambda: len(cluster.training) == 2)
    assert cluster.forgotten == [("b", 0)]


def test_launchers_do_not_take_answers_to_each_other_for_their_own() -> None:
    assert len({waiting({}).driver.job.new_errand() for _ in range(3)}) == 3


def expecting(loads: dict[str, Any], **rules: Any) -> Storing:
    """A cluster of a job of which a checkpoint is known to have been made."""
    cluster = Storing(ON_NOTICE, expects="/store/made", limits=Limits(settle_s=0.1), **rules)
    cluster.answers = {(host, "load"): answer for host, answer in loads.items()}
    return cluster


def test_hosts_that_have_no_checkpoint_wait_for_one_that_has_the_one_that_was_made() -> None:
    cluster = expecting({"a": {}, "b": FOUND})
    cluster.hosts(a=1)
    cluster.run(30.0)
    assert not cluster.training
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.training)
    assert "b" in hosts_of(cluster)


def test_where_no_host_has_the_checkpoint_that_was_made_the_job_ends_and_says_so() -> None:
    cluster = expecting({"a": {}}, elastic_timeout_s=60.0)
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.driver.over, within=120.0)
    assert "/store/made was made, and no host that came has it" in str(cluster.driver.outcome)
    assert not cluster.events("resized")


def test_what_is_left_of_a_world_that_is_gone_keeps_no_host_from_loading() -> None:
    """A host that was cut off comes back after the others have slept: its memory may be far behind."""
    cluster = Storing(ON_NOTICE, limits=Limits(start=1, least=1, settle_s=0.1), woken=True, expects="/store/x")
    cluster.answers = {("a", "load"): {"path": "/store/x", "step": 40, "generation": 7, "slots": [0]}}
    cluster.inherit("a")
    cluster.hosts(a=1)
    cluster.run(30.0)
    assert len(cluster.of("load")) == 1
    assert [line["step"] for line in cluster.events("resumed")] == [40]
    assert len(cluster.training) == 1
