"""A job that trains with less than its host list gives logs that as long as it lasts."""

from __future__ import annotations

import re

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.events import HostsChanged
from hvd_elastic_ext.launcher.driver.words import SOON_S
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Subject
from hvd_elastic_ext.launcher.membership.host_list import unlisted_in_use
from hvd_elastic_ext.launcher.membership.processes import starting
from hvd_elastic_ext.launcher.reporting import all_waits
from hvd_elastic_ext.launcher.reporting.all_waits import status, waits_for
from tests.unit.launcher.scenarios import play


def test_what_is_started_and_in_no_world_yet_is_known_by_host() -> None:
    cluster = play("start a b c; boot b 30; comes c 30; run 10")
    now = cluster.clock.mono()
    found = {host: (each.what, each.lacks) for host, each in starting(cluster.driver.job, now).items()}
    assert found == {
        "a": ("the process in slot 0", "waits for its world"),
        "b": ("the process in slot 0", "is not at hvd.init() or elastic.run yet"),
        "c": ("its agent", "has not connected yet"),
    }
    assert 9.0 < starting(cluster.driver.job, now)["c"].since_s < 10.1
    cluster.until(lambda: len(cluster.world) == 3, within=90.0)
    cluster.run(1.0)
    assert starting(cluster.driver.job, cluster.clock.mono()) == {}


def test_lines_and_hosts_list_say_the_same_of_a_start() -> None:
    """Both show what is waited for, and until when."""
    job = play("start a b; boot a 30; comes b 30; run 10").driver.job
    wait = waits_for(job)
    assert wait is not None
    assert "the agent has not connected yet: b (at most " in wait.what
    listed = starting(job, job.now)
    assert str(listed["a"]) == (
        "the process in slot 0 is not at hvd.init() or elastic.run yet "
        "(started 10 s ago, at most 590 s more: --standby-timeout)"
    )
    left_s = re.search(r"the agent has not connected yet: b \(at most (\d+) s more", wait.what)
    assert left_s is not None
    assert listed["b"].left_s == pytest.approx(float(left_s[1]), abs=0.51)


def test_a_blocked_slot_of_a_host_that_works_is_named_too() -> None:
    cluster = play("train a:2 b; run 2; kill a:1 3; sees struck; run 0.1")
    assert "blocked: a[1] (0 s ago, for 10 s more: slot 1 of a: crashed: exit code 3)" in status(cluster.driver.job)


def beside(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("beside the training: ")]


def test_what_starts_slowly_beside_the_training_is_told_with_its_limit_at_the_pace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b")
    cluster.join_s["c"], cluster.boot_s["a"] = 30.0, 100.0
    cluster.hosts(a=2, b=1, c=1)
    cluster.run(SOON_S - 0.5)
    assert beside(caplog) == []
    cluster.run(20.0)
    assert len(beside(caplog)) == 2
    first = beside(caplog)[0]
    cluster.run(60.0)
    assert len(beside(caplog)) == 4, "as long as it lasts"
    assert re.fullmatch(
        r"beside the training: c: its agent has not connected yet \(started [45] s ago, at most 5\d s more\), "
        r"a: the process in slot 1 is not at hvd.init\(\) or elastic.run yet "
        r"\(started [45] s ago, at most 59\d s more: --standby-timeout\)",
        first,
    )


@pytest.mark.parametrize(("lines_s", "least", "most"), [(4.0, 150, 160), (60.0, 13, 14), (300.0, 6, 8)])
def test_a_host_that_min_np_keeps_beyond_its_removal_is_told_with_what_it_waits_for(
    lines_s: float, least: int, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = play(f"train a b least=2 wait_lines_s={lines_s}")
    cluster.hosts(a=1)
    cluster.run(20.0)
    job = cluster.driver.job
    told = [each.getMessage() for each in caplog.records if "no longer listed" in each.getMessage()]
    assert len(told) == (4 if lines_s == 4.0 else 2)
    assert set(told) == {
        "no longer listed, but still in use: b; without it the world is below --min-np 2; no limit: it leaves when "
        "another host can take its place"
    }
    assert status(job).endswith("not listed, but needed until another host can take its place: b")
    cluster.run(600.0)
    told = [each.getMessage() for each in caplog.records if "no longer listed" in each.getMessage()]
    assert least <= len(told) <= most
    assert ("; next line in " in told[-1]) == (lines_s == 300.0)
    (why,) = unlisted_in_use(job, job.fleet.hosts).values()
    assert why == "it is not listed any more; it trains on until others can do without it (--min-np)"
    cluster.hosts(a=1, c=1)
    cluster.run(20.0)
    assert {life.seat.host for life in job.world.members} == {"a", "c"}
    assert "needed" not in status(job)


def lacking(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [each.getMessage() for each in caplog.records]
    return [line.removeprefix("while the job trains: ") for line in told if line.startswith("while the job trains: ")]


@pytest.mark.parametrize(("lines_s", "number"), [(4.0, range(24, 27)), (60.0, range(4, 6))])
def test_a_host_that_is_left_out_while_the_others_train_is_told_until_it_is_back(
    lines_s: float, number: range, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = play(f"train a b cooldown_s=(104.0,104.0) wait_lines_s={lines_s}")
    cluster.run(5.0)
    assert lacking(caplog) == []
    cluster.kill("b", code=3)
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(4.5)
    assert re.fullmatch(r"blocked: b \(for (99|100) s more: slot 0 of b: crashed.*\)", lacking(caplog)[0])
    cluster.until(lambda: cluster.world == ["a", "b"], within=120.0)
    assert len(lacking(caplog)) in number
    caplog.clear()
    cluster.run(20.0)
    assert lacking(caplog) == []


def test_a_host_that_is_left_out_by_hand_is_not_told_of_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b")
    ledger = HealthLedger().block(Subject("host", "b"), None, "bad fan")
    cluster.driver.job.faults.ledger = ledger
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(20.0)
    assert lacking(caplog) == []


def test_a_list_that_is_refused_while_the_job_trains_is_told_until_it_is_corrected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b")
    known = cluster.driver.job.fleet.hosts
    cluster.driver.tell(HostsChanged(known, refused="hosts:2: 'localhost:two': no number of slots"))
    cluster.run(21.0)
    said = "the newest host list is refused: hosts:2: 'localhost:two': no number of slots"
    assert lacking(caplog) == 2 * [f"{said}; the hosts before it are kept until it is corrected"]
    assert said in status(cluster.driver.job)
    cluster.driver.tell(HostsChanged(known))
    caplog.clear()
    cluster.run(20.0)
    assert lacking(caplog) == []
    assert said not in status(cluster.driver.job)


def test_what_is_lacking_is_not_told_of_a_job_that_ends(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b")
    cluster.driver.tell(HostsChanged(cluster.driver.job.fleet.hosts, refused="hosts:1: no number of slots"))
    cluster.run(10.0)
    job = cluster.driver.job
    assert lacking(caplog)
    caplog.clear()
    job.outcome.finishing = True
    job.roster.agents.clear()
    job.now += 10.0
    all_waits.plan(job)
    assert waits_for(job) is None
    assert lacking(caplog) == []


def test_the_status_names_what_is_waited_for_beside_the_training_and_until_when() -> None:
    cluster = play("train a b")
    cluster.join_s["c"], cluster.boot_s["a"] = 30.0, 100.0
    cluster.hosts(a=2, b=1, c=1)
    cluster.run(10.0)
    assert re.search(
        r"step 10, starting: c \(its agent, at most 5\d s more\), a \(slot 1, at most 590 s more\)$",
        status(cluster.driver.job),
    )


def test_the_status_says_that_each_rank_trains_alone() -> None:
    cluster = play("train a b")
    cluster.run(5.0)
    assert "ALONE" not in status(cluster.driver.job)
    process = cluster.agents["a"].processes[0]
    fields = {"size": 2, "rank": 0, "reason": "nothing was averaged over the 2 ranks for 30 s"}
    cluster.say(process, "record", event="trains_alone", fields=fields)
    cluster.run(1.0)
    assert [event["reason"] for event in cluster.events("trains_alone")] == [fields["reason"]]
    assert "EACH RANK TRAINS ALONE (`hvd-elastic events` says why)" in status(cluster.driver.job)


def test_newcomers_that_are_ready_soon_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b")
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(20.0)
    assert len(cluster.driver.job.world.members) == 3
    assert beside(caplog) == []


def test_the_status_of_a_job_is_one_short_line() -> None:
    cluster = play("train a b")
    cluster.run(20.0)
    assert status(cluster.driver.job).startswith("world 1, size 2, step ")
    cluster.kill("b", code=3)
    cluster.run(0.5)
    assert "blocked: b (" in status(cluster.driver.job)


def test_hosts_in_use_that_the_newest_list_does_not_name_are_listed_with_why() -> None:
    cluster = play("train a b; run 1; hosts; run 1")
    job = cluster.driver.job
    why = "the newest list names no host: those known before are kept while they work"
    assert {host.name: said for host, said in unlisted_in_use(job, HostSet()).items()} == {"a": why, "b": why}
    assert unlisted_in_use(job, job.fleet.hosts) == {}
    cluster = play("train a b least=1; run 2; wedge b; dies b 5; hosts a; run 1")
    job = cluster.driver.job
    leaves = "it is not listed any more, and leaves at its next step"
    assert {host.name: said for host, said in unlisted_in_use(job, job.fleet.hosts).items()} == {"b": leaves}
