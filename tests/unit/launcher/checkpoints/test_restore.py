"""A job with checkpoints does not start from the beginning, if hosts come, are lost, or cannot read them."""

from __future__ import annotations

from functools import partial

import pytest

from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster

RESTORE = {
    "a new agent of a host that had loaded loads again": """
        begin; found a; breaks b load; hosts a b; sees spawned 2; lose-agent a; trains <90; loaded a 2""",
    "no world forms without the host that has the checkpoint": """
        begin; found a; breaks b load; boot a 30; boot b 1; hosts a b; trains; first-world a""",
    "no world forms without a host that may still find a checkpoint": """
        begin; found a; held a 40; hosts b a; trains <90; first-world a""",
    "when the host that had the checkpoint is gone, the others load it first": """
        begin; found a; breaks b load; boot a 60; boot b 1; hosts a b; sees spawned 2; hosts b; run 20; world; found b
        trains; loaded b 3""",
    "a host with a damaged checkpoint does not end the job while another host loads": """
        begin; found a; damaged b; held a 3; hosts b a; trains; goes-on""",
    "a host that still loads when training starts gets new memory for its processes": """
        begin; found a b; held b 1000; hosts a b; size 2 <90; dropped b; forgotten b""",
    "a host cut off during a load starts no process before it has released its memory": """
        begin; found a b; held b 1000; hosts a b; asked load 2; disconnect b; trains <30; run 2; reconnect b; size 2
        forgotten b""",
    "newcomers of a running job load nothing": "train a; run 5; hosts a b; size 2; helpers load a",
    "storage that cannot be read is tried again": """
        begin; refuses a load the share is not mounted; hosts a; run 30; no spawned; asked load 4 <1
        only not_resumed.reason the share is not mounted; found a; trains""",
    "storage that cannot be read for the elastic timeout ends the job": """
        begin elastic_timeout_s=30.0; refuses a load the share is not mounted; hosts a
        fails a cannot load a checkpoint: the share is not mounted (for --elastic-timeout 30 s)""",
    "a job whose checkpoints are all damaged ends at once": """
        begin; damaged a; hosts a; over <20; fails all are damaged; no spawned""",
    "a job that could write no checkpoint ends before it trains": """
        begin; unwritable a; hosts a
        fails a cannot write checkpoints (--checkpoint-dir): Read-only file system
        over; no spawned not_resumed""",
    "a job of which one host could write none ends before it trains": """
        begin; unwritable b; hosts a b; over <20; no resized""",
    "a job that goes on from a checkpoint does so though one host could write none": """
        begin; found a; unwritable b; held b 3; hosts a b; size 2; is not_resumed.host b; goes-on""",
    "a host that cannot read the checkpoint gets it from one that can": """
        begin; found a; breaks b load; takes load 0.1; hosts a b; size 2; is not_resumed.host b""",
    "a connection lost during a load causes another load": """
        begin; found a; takes load 3; hosts a; asked load; disconnect a; run 5; reconnect a; trains
        helpers load a a""",
}
EXPECTING = {
    "hosts without the checkpoint wait for one that has it": """
        begin; found b; hosts a; run 30; world; hosts a b; trains; first-world b""",
    "a job of which no host has the checkpoint ends with the reason": """
        begin elastic_timeout_s=60.0; hosts a; fails /store/made was made, and no host that came has it; no resized""",
}


@pytest.mark.parametrize("text", RESTORE.values(), ids=RESTORE)
def test_a_job_that_may_have_a_checkpoint(text: str) -> None:
    play(text, every="1000")


@pytest.mark.parametrize("text", EXPECTING.values(), ids=EXPECTING)
def test_a_job_of_which_a_checkpoint_is_known_to_have_been_made(text: str) -> None:
    play(text, partial(Cluster, expects="/store/made"), every="notice")


def test_a_reason_why_storage_cannot_be_read_is_reported_once_and_the_next_one_too() -> None:
    cluster = play("begin; refuses a load not mounted; hosts a; run 30; asked load 4; refuses a load no answer; run 20",
                   every="1000")  # fmt: skip
    assert [line["reason"] for line in cluster.events("not_resumed")] == ["not mounted", "no answer"]


def test_a_slot_that_is_used_in_place_of_the_one_that_had_loaded_is_loaded_first() -> None:
    cluster = play("begin most=1; found a; hosts a:2; sees spawned; kill a:0 1; trains <90",
                   every="1000")  # fmt: skip
    [process] = cluster.members
    assert str(process.slot) in cluster.helpers.of("load")[-1][1]["ranks"]


def test_a_checkpoint_is_as_new_as_its_own_commit_whatever_newer_one_a_slot_still_holds() -> None:
    cluster = play("begin start=3 least=3 every=notice")
    cluster.helpers.answers = {("a", "load"): {"path": "/store/x", "step": 40, "generation": 7, "slots": [0, 1],
                                       "commit": [1, 7, 40], "held": [1, 7, 42, 42]}}  # fmt: skip
    cluster.hosts(a=2)
    cluster.run(5.0)
    job = cluster.driver.job
    assert {seat.slot: held.commit for seat, held in job.roster.commits.held.items()} == {0: (1, 7, 42), 1: (1, 7, 40)}
    assert job.checkpoints.stored.commit == (1, 7, 40)


def test_launchers_do_not_take_answers_to_each_other_for_their_own() -> None:
    assert len({play("begin every=notice").driver.job.helper_number for _ in range(3)}) == 3


def test_what_is_left_of_a_world_that_is_gone_keeps_no_host_from_loading() -> None:
    """A host that was cut off returns after the others have slept. Its memory may be much older."""
    cluster = play("begin every=notice woken=True", partial(Cluster, expects="/store/x"))
    cluster.helpers.answers = {("a", "load"): {"path": "/store/x", "step": 40, "generation": 7, "slots": [0]}}
    cluster.inherit("a")
    cluster.hosts(a=1)
    cluster.run(30.0)
    assert len(cluster.helpers.of("load")) == 1
    assert [line["step"] for line in cluster.events("resumed")] == [40]
    assert len(cluster.members) == 1
