"""A job that requests hosts, and releases hosts that no world needs, with ``--autoscale``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.events import HostsAskedFor, News, Observed, ScaleByHand, Scaled
from hvd_elastic_ext.launcher.driver.options import ScaleOptions
from hvd_elastic_ext.launcher.reporting.all_waits import status
from hvd_elastic_ext.launcher.scaling.scaling import HostFacts, leaving, signals_of
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster

NAMES = ("a-0", "a-1", "a-2", "a-3", "a-4", "a-5", "a-6", "a-7")

STEPS = 1000
"""The number of steps in a heartbeat for a step time of 1."""


def job(policy: str, size: int, *, acts: bool = True, ordered: bool = False, most: int = 8) -> Cluster:
    scaling = ScaleOptions(policy, acts=acts, ordered=ordered)
    cluster: Cluster = play(f"train {' '.join(NAMES[:size])}", most=most, scaling=scaling)
    return cluster


def follow(cluster: Cluster, seconds: float, step_s: Callable[[int], float]) -> None:
    """Let time pass in a job with these step times by size, on a cluster that gives the requested hosts."""
    for _ in range(int(seconds)):
        cluster.training.steps_a_beat = round(STEPS / step_s(max(1, len(cluster.world))))
        cluster.run(1.0)
        if cluster.scaled:
            hosts, leaving = cluster.scaled[-1]
            names = [name for name in NAMES if name not in leaving][:hosts]
            if names != list(cluster.driver.job.fleet.hosts.names):
                cluster.hosts(**dict.fromkeys(names, 1))


def sizes(cluster: Cluster) -> list[int]:
    return [event["hosts"] for event in cluster.events("scaled")]


def test_a_job_whose_hosts_add_their_whole_speed_grows_to_its_bound() -> None:
    cluster = job("efficiency", 2)
    follow(cluster, 200, lambda size: 0.2)
    assert sizes(cluster) == [1, 8]
    assert cluster.world == list(NAMES)
    assert not cluster.events("rolled_back")


def test_steps_are_as_long_as_they_are_and_not_as_whole_heartbeats() -> None:
    cluster = job("efficiency:batch=global,share=0.4", 2, most=6)
    cluster.training.pace = lambda size: 0.31 + 1.2 / size
    follow(cluster, 300, lambda size: 0.2)
    speeds = cluster.driver.job.scaling.log.speeds()
    assert {size: round(speed.step_s, 3) for size, speed in speeds.items()} == {1: 1.51, 2: 0.91, 3: 0.71}
    assert len(cluster.world) == 3


def test_a_trial_is_called_one_in_the_journal_and_in_the_status() -> None:
    cluster = job("efficiency", 2)
    follow(cluster, 40, lambda size: 0.2)
    first = cluster.events("scaled")[0]
    assert (first["hosts"], first["trial"]) == (1, True)
    assert first["reason"] == "a trial of 20 steps: only 2 hosts measured so far"
    said = status(cluster.driver.job).partition("autoscale: ")[2]
    assert said.startswith("a trial (2 hosts before): ")
    assert said.endswith(" of 20 steps measured at 1 host")
    assert [change.trial for change in cluster.driver.job.scaling.memory.changes] == [True]


def test_steps_while_a_host_comes_are_not_those_of_a_size() -> None:
    cluster = job("efficiency", 2)
    cluster.training.pace = lambda size: 0.2
    cluster.driver.tell(ScaleByHand(3))
    cluster.run(60)
    assert cluster.driver.job.scaling.log.speeds() == {}
    assert cluster.driver.job.scaling.steps > 200


def test_steps_that_were_done_while_no_launcher_looked_count_as_work() -> None:
    cluster = job("efficiency", 2, acts=False)
    cluster.training.pace = lambda size: 0.2
    cluster.run(30)
    state = cluster.driver.job.scaling
    assert state.seen is not None
    state.counted, state.seen = state.seen[1] - 100, None  # as in a launcher that takes over
    steps, host_steps = state.steps, state.host_steps
    cluster.run(3)
    assert 100 <= state.steps - steps < 130
    assert state.host_steps - host_steps == 2 * (state.steps - steps)


def test_hosts_that_add_too_little_are_out_of_the_world_before_they_are_given_back() -> None:
    cluster = job("efficiency", 4)
    follow(cluster, 90, lambda size: 0.2 + 0.2 * (size - 1))
    assert sizes(cluster) == [2, 1]
    gone = cluster.events("scaled")[-1]["leaving"]
    assert len(gone) == 1
    given_back = next(index for index, (hosts, _) in enumerate(cluster.scaled) if hosts == 1)
    assert set(cluster.scaled[given_back][1]) == set(gone)
    follow(cluster, 60, lambda size: 0.2 + 0.2 * (size - 1))
    assert len(cluster.world) == 1
    assert not cluster.events("struck")


def test_hosts_with_the_highest_numbers_go_where_a_statefulset_takes_those() -> None:
    cluster = job("efficiency", 4, ordered=True)
    cluster.driver.tell(ScaleByHand(2))
    follow(cluster, 30, lambda size: 0.2)
    assert cluster.world == ["a-0", "a-1"]
    assert cluster.scaled[-1] == (2, ("a-2", "a-3"))


def test_a_size_that_nobody_can_make_is_recommended_once() -> None:
    cluster = job("efficiency", 2, acts=False)
    follow(cluster, 60, lambda size: 0.2)
    assert [event["hosts"] for event in cluster.events("scale_recommended")] == [1]
    assert cluster.scaled == []
    assert cluster.world == ["a-0", "a-1"]


def test_a_request_that_fails_is_made_again_after_a_pause() -> None:
    cluster = job("efficiency", 2)
    cluster.driver.tell(ScaleByHand(3))
    cluster.until(lambda: cluster.scaled)
    cluster.driver.tell(Scaled(3, "the API server says 403"))
    cluster.run(20)
    assert cluster.scaled == [(3, ())]
    cluster.run(20)
    assert cluster.scaled == [(3, ())] * 2
    assert [event["reason"] for event in cluster.events("not_scaled")] == ["the API server says 403"]


def test_a_size_by_hand_holds_until_the_policy_decides_again() -> None:
    cluster = job("efficiency", 2)
    cluster.driver.tell(ScaleByHand(3))
    follow(cluster, 100, lambda size: 0.2)
    assert sizes(cluster) == [3]
    cluster.driver.tell(ScaleByHand(None))
    follow(cluster, 100, lambda size: 0.2)
    assert sizes(cluster)[1:] == [2, 8]


def test_sizes_by_hand_are_followed_as_often_as_they_are_asked_for_and_while_the_job_waits_for_hosts() -> None:
    cluster = job("efficiency", 2)
    for size in (4, 2, 4, 2):
        cluster.driver.tell(ScaleByHand(size))
        follow(cluster, 20, lambda size: 0.2)
        assert len(cluster.world) == size
    for name in NAMES[:2]:
        cluster.kill(name)
    cluster.hosts(**{NAMES[7]: 1})
    cluster.dead.add(NAMES[7])
    cluster.driver.tell(ScaleByHand(3))
    cluster.run(5)
    assert cluster.scaled[-1][0] == 3


def test_a_host_that_was_to_go_and_is_still_there_trains_again_if_the_job_grows() -> None:
    cluster = job("efficiency", 4)
    cluster.driver.tell(ScaleByHand(2))
    cluster.until(lambda: cluster.scaled)
    cluster.driver.tell(Scaled(2, "no answer"))
    cluster.driver.tell(ScaleByHand(4))
    cluster.run(60)
    assert len(cluster.world) == 4
    assert cluster.scaled[-1] == (4, ())


def test_hosts_that_were_to_go_and_stay_while_others_go_train_again() -> None:
    cluster = job("efficiency", 4)
    cluster.driver.tell(ScaleByHand(2))
    cluster.until(lambda: cluster.scaled)
    ((_, leaving),) = cluster.scaled
    cluster.hosts(**dict.fromkeys(leaving, 1))  # a program that ignores the names
    cluster.run(60)
    assert cluster.world == list(leaving)
    assert cluster.driver.job.scaling.leaving == frozenset()


def test_what_was_observed_is_in_the_journal_with_each_change() -> None:
    cluster = job("threshold:queue=10", 2)
    cluster.driver.tell(Observed({"queue": 60.00001}))
    cluster.until(lambda: cluster.scaled)
    assert cluster.events("scaled")[0]["observed"]["queue"] == 60.0


def test_a_size_that_somebody_else_asks_for_is_followed() -> None:
    cluster = job("threshold:queue=10", 2)
    cluster.driver.tell(HostsAskedFor(2))
    cluster.driver.tell(HostsAskedFor(3))
    cluster.hosts(**dict.fromkeys(NAMES[:3], 1))
    cluster.run(30)
    assert len(cluster.world) == 3
    assert cluster.scaled == []
    assert [event["reason"] for event in cluster.events("scaled")] == ["changed by others"]


def test_a_number_that_was_read_before_a_request_was_heard_is_not_somebody_elses() -> None:
    cluster = job("threshold:queue=10", 2)
    cluster.driver.tell(HostsAskedFor(2))
    cluster.driver.tell(ScaleByHand(4))
    cluster.until(lambda: cluster.scaled)
    cluster.driver.tell(HostsAskedFor(2))
    cluster.run(10)
    assert cluster.scaled == [(4, ())]
    assert sizes(cluster) == [4]


def test_a_signal_that_cannot_be_read_any_more_has_no_value() -> None:
    cluster = job("threshold:queue=10", 2)
    cluster.driver.tell(Observed({"queue": 60.0}))
    cluster.driver.tell(Observed({}))
    cluster.run(30)
    assert cluster.scaled == []


def test_the_status_says_why_the_size_is_what_it_is() -> None:
    cluster = job("threshold:queue=10..20", 2)
    cluster.driver.tell(Observed({"queue": 30.0}))
    cluster.run(10)
    assert status(cluster.driver.job).endswith("autoscale: queue is 15 a host, between 10 and 20")


def test_a_queue_that_grows_brings_hosts() -> None:
    cluster = job("threshold:queue=10", 2)
    cluster.driver.tell(Observed({"queue": 60.0}))
    follow(cluster, 30, lambda size: 0.2)
    assert sizes(cluster) == [6]
    assert cluster.events("scaled")[0]["reason"] == "queue is 30 a host, its target is 10"


def test_a_price_that_rises_gives_hosts_back_that_the_budget_does_not_pay() -> None:
    cluster = job("cost:per-hour=4,price=1", 4)
    cluster.driver.tell(Observed({"price": 2.0}))
    cluster.run(10)
    assert sizes(cluster) == [2]
    assert cluster.events("scaled")[0]["reason"] == "4 hosts cost 8 an hour, more than 4"


def test_what_the_cluster_does_not_give_is_taken_back() -> None:
    cluster = job("threshold:queue=10", 2)
    cluster.driver.tell(Observed({"queue": 60.0}))
    cluster.until(lambda: cluster.scaled)
    cluster.hosts(**dict.fromkeys(NAMES[:3], 1))
    cluster.run(400)
    assert cluster.scaled == [(6, ()), (3, ())]
    assert len(cluster.world) == 3


def test_the_dearest_hosts_go_by_prices_of_each_in_a_file_or_an_annotation() -> None:
    cluster = job("cost:per-hour=10", 4)
    cluster.driver.tell(Observed({"price": {"a-1": 5.0, "a-2": 1.0, "gone": 99.0}}))
    annotated = [
        replace(host, price="3.5" if host.name == "a-3" else "cheap") for host in cluster.driver.job.fleet.hosts
    ]
    cluster.driver.job.fleet.hosts = HostSet(tuple(annotated))
    assert signals_of(cluster.driver.job)["price"] == pytest.approx((5.0 + 1.0 + 3.5) / 3)
    cluster.driver.tell(ScaleByHand(2))
    cluster.run(5)
    assert cluster.events("scaled")[-1]["leaving"] == ["a-1", "a-3"]


def test_gpus_are_a_signal_and_why_they_are_none_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = job("threshold:gpu=0.5", 2)
    cluster.driver.tell(News("a-0", {"event": "usage", "gpu_unknown": "no \x1b library"}))
    cluster.driver.tell(News("a-1", {"event": "usage", "gpu_unknown": "no library"}))
    follow(cluster, 10, lambda size: 0.2)
    assert [record.message for record in caplog.records if "GPUs" in record.message] == [
        "--autoscale gpu: host a-0 cannot tell how busy its GPUs are: no library"
    ]
    for host in ("a-0", "a-1"):
        cluster.driver.tell(News(host, {"event": "usage", "gpu": 0.95, "cpu": 0.1}))
    assert signals_of(cluster.driver.job)["gpu"] == pytest.approx(0.95)
    follow(cluster, 10, lambda size: 0.2)
    assert sizes(cluster)[0] == 4


# --- which hosts go


@pytest.mark.parametrize(
    ("hosts", "count", "gone"),
    [
        ([HostFacts("a"), HostFacts("b"), HostFacts("c")], 1, ("c",)),
        ([HostFacts("a", price=2.0), HostFacts("b", price=1.0), HostFacts("c", price=1.0)], 2, ("a", "c")),
        ([HostFacts("a", strikes=1), HostFacts("b")], 1, ("a",)),
        ([HostFacts("a", step_s=2.0), HostFacts("b", step_s=1.0), HostFacts("c", step_s=1.0)], 1, ("a",)),
        ([HostFacts("a", step_s=1.1), HostFacts("b", step_s=1.0), HostFacts("c", step_s=1.0)], 1, ("c",)),
        ([HostFacts("a"), HostFacts("b")], 0, ()),
        ([HostFacts("a"), HostFacts("b")], -3, ()),
    ],
    ids=["youngest", "dearest", "most often struck", "slowest", "a little slow is not slow", "none", "fewer than none"],
)
def test_where_any_host_can_go_the_least_useful_one_goes(
    hosts: list[HostFacts], count: int, gone: tuple[str, ...]
) -> None:
    assert leaving(hosts, count, ordered=False) == gone


def test_where_numbers_decide_the_highest_go_by_value_not_by_letters() -> None:
    names = ["job-worker-10.job", "job-worker-2.job", "job-worker-9.job", "launcher"]
    assert leaving([HostFacts(name) for name in names], 2, ordered=True) == ("job-worker-10.job", "job-worker-9.job")
    assert leaving([HostFacts(name) for name in names], 4, ordered=True)[-1] == "launcher"
