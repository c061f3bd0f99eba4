"""The part of a job's state that outlives its launcher, and the state that the next launcher makes from it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.checkpoints.schedule import Cadence, Durability
from hvd_elastic_ext.launcher.custody.custody import Stored
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.options import ScaleOptions
from hvd_elastic_ext.launcher.folder import state_json
from hvd_elastic_ext.launcher.folder.state_json import Saved, job_of, saved_of
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.scaling.decide import Change, Memory
from hvd_elastic_ext.launcher.scaling.observations import SpeedLog
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import JobOptions

STORE = JobOptions(durability=Durability("/store", Cadence(), mark="this"))


def saved(job: JobState, *, wall: float = 5000.0) -> Saved:
    return saved_of(job, incarnation=4, ports={"10.0.0.1": 7}, wall=wall, run="today")


def again(found: Saved, options: JobOptions = STORE, *, now: float = 70.0, wall: float = 5002.0) -> JobState:
    return job_of(found, options, now=now, wall=wall, helper_number=9)


def test_the_next_launcher_begins_with_what_the_last_one_saved_and_saves_the_same_again() -> None:
    cluster = play("train a b")
    cluster.kill("b")
    cluster.until(lambda: cluster.events("struck"))
    job = cluster.driver.job
    job.roster.commits.reported(Seat("a", 0), (1, 1, 9), 90, agent="a-1")
    job.checkpoints.stored = Stored((1, 1, 8), 80, "/store/x")
    first = saved(job)
    after = again(first, wall=5000.0)
    assert (after.generation, after.checkpoints.stored) == (job.generation, job.checkpoints.stored)
    assert after.has_trained
    second = saved(after)
    assert second.commits == first.commits
    assert second.stored == first.stored
    assert [*second.ledger.records] == [*first.ledger.records]
    assert second.hosts == ()  # they are expected separately, and are agents of this launcher only once they connect
    assert {host.name for host in first.hosts} == {"a", "b"}


def test_cooldowns_go_on_while_no_launcher_runs() -> None:
    cluster = play("train a b")
    cluster.kill("b")
    cluster.until(lambda: cluster.events("struck"))
    job, host = cluster.driver.job, Host("b", 1)
    until = job.faults.ledger.blocked(job.now, host, 0).until
    assert until is not None
    after = again(saved(job)).faults.ledger.blocked(70.0, host, 0)
    assert after.until == pytest.approx(70.0 + until - job.now - 2.0)


@pytest.mark.parametrize(("place", "found"), [("/store", True), ("/other", False), ("/stor", False), (None, False)])
def test_a_checkpoint_counts_only_in_the_place_where_checkpoints_are_made(place: str | None, *, found: bool) -> None:
    known = Saved(only_here="/store/x", stored=Stored((1, 1, 8), 80, "/store/x"))
    assert known.checkpoint_in(place) == ("/store/x" if found else None)
    options = JobOptions(durability=None if place is None else Durability(place, Cadence(), mark="this"))
    assert again(known, options).checkpoints.stored == (known.stored if found else None)


@pytest.mark.parametrize(
    ("over", "failed", "options", "noted"),
    [
        (False, False, STORE, ["a", "b"]),
        (True, False, STORE, []),
        (True, True, STORE, ["b"]),  # that of a is on storage
        (True, True, JobOptions(), []),
    ],
    ids=["running", "done", "failed", "failed without storage"],
)
def test_of_commits_in_memory_it_saves_what_may_be_taken_up_or_is_lost(
    options: JobOptions, noted: list[str], *, over: bool, failed: bool
) -> None:
    job = JobState.new(options, 0.0, helper_number=1)
    job.roster.commits.reported(Seat("a", 0), (1, 1, 8), 80, agent="a-1")
    job.roster.commits.reported(Seat("b", 0), (1, 1, 9), 90, agent="b-1")
    job.checkpoints.stored = Stored((1, 1, 8), 80, "/store/x")
    job.outcome.over, job.outcome.failure = over, JobFailed("why") if failed else None
    assert [commit.host for commit in saved(job).commits] == noted


def scaled_job() -> JobState:
    """A job that has measured a size, has requested another one, and has hosts that will be released."""
    cluster = play("train a b", most=8, scaling=ScaleOptions("deadline:hours=2,work=1e6", acts=True))
    state, now = cluster.driver.job.scaling, cluster.driver.job.now
    state.since, state.wanted, state.leaving, state.unasked = now - 600.0, 1, frozenset({"b"}), True
    state.memory = Memory(changes=(Change(now - 60.0, 2, 1),))
    state.log = SpeedLog({2: (0.2,) * 30}, {2: (0.1,) * 30})
    state.steps, state.host_steps, state.seen = 5000.0, 9000.0, (1, 5000, now)
    state.paused(0.5)
    return cluster.driver.job


def test_what_a_job_has_asked_for_and_learned_goes_on_under_the_next_launcher() -> None:
    job = scaled_job()
    kept = state_json.from_text(state_json.to_text(saved(job)))
    found = again(kept, job.options, now=70.0, wall=5002.0).scaling
    assert found.since == pytest.approx(70.0 - 2.0 - 600.0), "its deadline does not begin again"
    assert [change.at for change in found.memory.changes] == [pytest.approx(70.0 - 2.0 - 60.0)]
    assert (found.wanted, found.leaving, found.unasked) == (1, frozenset({"b"}), True)
    assert (found.steps, found.host_steps, found.counted, found.resize_s) == (5000.0, 9000.0, 5000, 0.5)
    assert found.log.speeds() == job.scaling.log.speeds()


def test_what_was_asked_for_is_nobodys_wish_where_nobody_makes_hosts_come_and_go() -> None:
    job = scaled_job()
    only_says = replace(job.options, scaling=ScaleOptions("efficiency"))
    found = again(saved(job), only_says).scaling
    assert (found.wanted, found.leaving, found.unasked, found.steps) == (None, frozenset(), False, 5000.0)
    assert again(saved(job), replace(job.options, scaling=None)).scaling.wanted is None


def test_a_saved_state_does_not_change_with_the_job() -> None:
    cluster = play("train a")
    job = cluster.driver.job
    job.roster.commits.reported(Seat("a", 0), (1, 1, 8), 80, agent="a-1")
    ports = {"10.0.0.1": 7}
    found = saved_of(job, incarnation=4, ports=ports, wall=0.0, run=None)
    before = {field.name: repr(getattr(found, field.name)) for field in fields(found)}
    ports.clear()
    job.roster.commits.reported(Seat("a", 0), (1, 1, 9), 90, agent="a-1")
    job.roster.agents.clear()
    job.generation += 1
    assert {field.name: repr(getattr(found, field.name)) for field in fields(found)} == before
