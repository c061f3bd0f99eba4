"""The cost of one bad device, one bad host or one recreated pod for a job, in a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.messages.slot_protocol import DEVICE
from hvd_elastic_ext.launcher.driver.events import AgentJoined, Expected
from hvd_elastic_ext.launcher.health.ledger import SLOTS_WINDOW_S
from hvd_elastic_ext.launcher.membership.devices import DEVICES, VISIBLE
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.spares import SpareLimits
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions
from tests.unit.launcher.simulated_processes import Process, Training


class Breaking(Training):
    """Processes in ``broken`` seats end with an error before they are ready."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.broken: set[tuple[str, int]] = set()

    def parks(self, process: Process) -> None:
        if (process.host, process.slot) in self.broken:
            error = "CUDA error: uncorrectable ECC error"
            process.agent.report(process, "failed", digest=error, error=error, traceback="")
            self.ends(process, 1)
        else:
            super().parks(process)


class WithDevices(Cluster):
    """``started``: the start order of each process."""

    training_kind = Breaking
    training: Breaking

    def __init__(self, options: JobOptions | None = None, *, devices: str | None = None) -> None:
        self.started: dict[tuple[str, int], list[dict[str, str]]] = {}
        self.environment = {} if devices is None else {DEVICES: devices}
        super().__init__(options)

    def ordered(self, host: str, order: Mapping[str, Any]) -> None:
        if order["do"] == "start":
            self.started.setdefault((host, order["slot"]), []).append(dict(order["env"]))

    @property
    def slots(self) -> list[int]:
        return sorted(process.slot for process in self.members)

    def local_rank(self, host: str, slot: int) -> int:
        """Return the planned local rank of the newest process of a slot."""
        return int(self.started[host, slot][-1]["HVD_ELASTIC_PLAN"].split(",")[2])

    def own_device(self, host: str, slot: int) -> str:
        """Return the device that its newest process finds at its local rank."""
        return self.started[host, slot][-1][VISIBLE].split(",")[self.local_rank(host, slot)]


EIGHT = ",".join(f"GPU-{slot}" for slot in range(8))
GOOD = [0, 1, 2, 4, 5, 6, 7]


def eight_slots() -> WithDevices:
    """One of eight devices is bad: the process of slot 3 has failed, and fails again at each start."""
    cluster = WithDevices(JobOptions(WorldLimits(start=8, least=1, settle_s=0.1)), devices=EIGHT)
    cluster.hosts(a=8)
    cluster.until(lambda: len(cluster.world) == 8)
    cluster.run(2.0)
    assert all(starts[0][VISIBLE] == EIGHT for starts in cluster.started.values())
    cluster.training.broken.add(("a", 3))
    cluster.kill("a", 3, code=1)
    return cluster


def test_one_bad_device_of_eight_costs_one_slot_for_as_long_as_it_is_bad() -> None:
    cluster = eight_slots()
    cluster.until(lambda: cluster.slots == GOOD, within=1.0)
    cluster.run(700.0)
    assert cluster.driver.outcome is None
    assert cluster.slots == GOOD
    assert {strike["subject"] for strike in cluster.events("struck")} == {"slot 3 of a"}
    assert {event["slot"] for event in cluster.events("exited")} == {3}
    assert [event["cause"] for event in cluster.events("resized")] == ["start", "worker failed"]
    waits = [strike["cooldown_s"] for strike in cluster.events("struck")]
    assert waits[:6] == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0]


def test_survivors_keep_their_devices_and_whoever_comes_or_is_good_again_finds_its_own() -> None:
    cluster = eight_slots()
    cluster.run(200.0)
    strikes = cluster.events("struck")
    assert cluster.clock.mono() - strikes[-1]["mono"] > SLOTS_WINDOW_S
    cluster.kill("a", 7)
    cluster.run(1.0)
    cluster.until(lambda: cluster.slots == GOOD, within=20.0)
    assert cluster.local_rank("a", 7) == 3
    assert cluster.started["a", 7][-1][VISIBLE] == "GPU-0,GPU-1,GPU-2,GPU-7,GPU-4,GPU-5,GPU-6"
    assert all(len(cluster.started["a", slot]) == 1 for slot in (0, 1, 2, 4, 5, 6))
    cluster.training.broken.clear()
    cluster.run(160.0)
    assert len(cluster.world) == 8
    assert sorted(cluster.local_rank("a", slot) for slot in range(8)) == list(range(8))
    assert all(cluster.own_device("a", slot) == f"GPU-{slot}" for slot in range(8))


def test_without_devices_nothing_is_said_of_them() -> None:
    cluster = WithDevices(JobOptions(WorldLimits(start=3, settle_s=0.1)))
    cluster.hosts(a=3)
    cluster.until(lambda: len(cluster.world) == 3)
    assert all(env.keys() == {"HVD_ELASTIC_PLAN"} for (env,) in cluster.started.values())


def test_the_next_launcher_goes_on_with_the_local_ranks_that_there_are() -> None:
    cluster = WithDevices(JobOptions(WorldLimits(start=2, settle_s=0.1)), devices="x,y,z")
    host = Host("a", 3)
    seats = {
        str(slot): {"life": 4, "state": "running", "generation": 7, **note}
        for slot, note in ((0, {"note": "0"}), (2, {"note": "1"}))
    }
    cluster.driver.tell(Expected((host,), cluster.clock.mono() + 10.0))
    agent = cluster.new_agent("a")
    agent.processes = {slot: Process(agent, slot, 4, 0, "training", 7) for slot in (0, 2)}
    cluster.driver.tell(AgentJoined("a", {"facts": {}, "seats": seats}))
    cluster.hosts(a=3)
    cluster.until(lambda: ("a", 1) in cluster.started)
    assert cluster.local_rank("a", 1) == 2
    assert cluster.own_device("a", 1) == "y"


def test_the_next_launcher_knows_for_which_slot_a_spare_stands() -> None:
    """Its host has another number of slots meanwhile, so its seat stands for another one."""
    options = JobOptions(WorldLimits(start=2, settle_s=0.1), names_devices=True, spares=SpareLimits(number=1))
    cluster = WithDevices(options, devices="w,x,y,z")
    cluster.driver.tell(Expected((Host("a", 2),), cluster.clock.mono() + 10.0))
    agent = cluster.new_agent("a")
    states = {0: {"generation": 7}, 1: {"generation": 7}, 2: {"parked": True, "note": "0/0"}}
    seats = {str(slot): {"life": 4, "state": "running", "note": str(slot), **more} for slot, more in states.items()}
    agent.processes = {slot: Process(agent, slot, 4, 0, "training", 7) for slot in states}
    agent.processes[2].state = "parked"
    cluster.driver.tell(AgentJoined("a", {"facts": {}, "seats": seats}))
    assert cluster.driver.job.roster.workers[Seat("a", 2)].stands_for == 0
    cluster.hosts(a=3)
    cluster.until(lambda: ("a", 2) in cluster.started)
    assert cluster.own_device("a", 2) == "y"


@pytest.mark.parametrize(("slots", "seats"), [(2, {1, 2}), (4, {1, 2, 3})])
def test_the_next_launcher_starts_none_on_the_device_of_a_rank_that_was_a_spare_also_if_it_has_none(
    slots: int, seats: set[int]
) -> None:
    """Defect: it replaced the rank, or, where the host has more slots now, started another one beside it."""
    options = JobOptions(WorldLimits(start=2, settle_s=0.1), names_devices=True)
    cluster = WithDevices(options, devices="w,x,y,z")
    cluster.driver.tell(Expected((Host("a", 2),), cluster.clock.mono() + 10.0))
    agent = cluster.new_agent("a")
    running = {"life": 4, "state": "running", "generation": 7}
    agent.processes = {slot: Process(agent, slot, 4, 0, "training", 7) for slot in (1, 2)}
    found = {"1": {**running, "note": "1"}, "2": {**running, "note": "0/0"}}
    cluster.driver.tell(AgentJoined("a", {"facts": {}, "seats": found}))
    cluster.hosts(a=slots)
    cluster.run(60.0)
    assert ("a", 0) not in cluster.started
    assert {seat.slot for seat in cluster.driver.job.roster.workers} == seats


def test_for_which_slot_a_spare_of_an_earlier_version_stands_is_unknown_as_its_note_does_not_say() -> None:
    """Its host has another number of slots meanwhile. It noted the local rank alone: "0", also in seat 2."""
    cluster = WithDevices(JobOptions(WorldLimits(start=2, settle_s=0.1), names_devices=True), devices="w,x,y")
    cluster.driver.tell(Expected((Host("a", 2),), cluster.clock.mono() + 10.0))
    seats = {"2": {"life": 4, "state": "running", "parked": True, "note": "0"}}
    agent = cluster.new_agent("a")
    agent.processes = {2: Process(agent, 2, 4, 0, "parked", 0)}
    cluster.driver.tell(AgentJoined("a", {"facts": {}, "seats": seats}))
    worker = cluster.driver.job.roster.workers[Seat("a", 2)]
    assert (worker.stands_for, worker.local_rank) == (None, 0)


TRIED = {
    "its processes fail": (lambda cluster: cluster.training.broken.add(("b", 0)), 10.0, 300.0),
    "they take long to fail, which is not good conduct": (lambda cluster: cluster.boot_s.update(b=1e6), 10.0, 300.0),
    "it cannot be reached": (lambda cluster: cluster.dead.add("b"), 0.05, 1.0),
}


@pytest.mark.parametrize(("prepare", "low", "high"), TRIED.values(), ids=TRIED)
def test_a_host_that_fails_its_probation_is_tried_ever_more_seldom(
    prepare: Callable[[WithDevices], object], low: float, high: float
) -> None:
    options = JobOptions(WorldLimits(start=1, settle_s=0.1), cooldown_s=(low, high), standby_timeout_s=60.0)
    cluster = WithDevices(options)
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.world == ["a"])
    prepare(cluster)
    cluster.hosts(a=1, b=1)
    cluster.run(1000.0 if high > 1.0 else 14.0)
    waits = [strike["cooldown_s"] for strike in cluster.events("struck")]
    assert waits[:6] == [min(high, low * 2**n) for n in range(6)]
    assert cluster.driver.outcome is None
    assert cluster.world == ["a"]
    assert [event["cause"] for event in cluster.events("resized")] == ["start"]


def test_a_recreated_pod_starts_clean() -> None:
    cluster = WithDevices(JobOptions(WorldLimits(start=1, settle_s=0.1)))

    def pods(uid: str) -> HostSet:
        return HostSet((Host("a", 1, uid="uid-a"), Host("b", 1, uid=uid)))

    cluster.training.broken.add(("b", 0))
    cluster.publish(pods("first"))
    cluster.run(120.0)
    assert cluster.world == ["a"]
    assert len(cluster.started["b", 0]) >= 3
    cluster.training.broken.clear()
    tries = len(cluster.started["b", 0])
    cluster.publish(pods("second"))
    cluster.until(lambda: sorted(cluster.world) == ["a", "b"], within=10.0)
    assert len(cluster.started["b", 0]) == tries + 1


def test_a_spare_beside_the_training_has_the_device_of_one_slot_and_replaces_that_one_only() -> None:
    options = JobOptions(
        WorldLimits(start=4, least=1, settle_s=0.1), names_devices=True, spares=SpareLimits(number=1), cooldown_s=(5, 9)
    )
    cluster = WithDevices(options, devices=",".join(f"GPU-{slot}" for slot in range(4)))
    cluster.hosts(a=4)
    cluster.until(lambda: len(cluster.world) == 4)
    cluster.until(lambda: cluster.driver.job.spares)
    cluster.run(5.0)
    assert cluster.slots == [0, 1, 2, 3]
    assert cluster.started["a", 4][0][DEVICE] == "GPU-0"
    assert cluster.own_device("a", 4) == "GPU-0"
    cluster.kill("a", 1)
    cluster.run(2.0)
    assert cluster.slots == [0, 2, 3]  # it would train on the device of slot 0
    cluster.until(lambda: cluster.slots == [0, 1, 2, 3], within=20.0)
    cluster.run(40.0)
    cluster.kill("a", 0)
    cluster.until(lambda: cluster.slots == [1, 2, 3, 4], within=0.5)
    cluster.run(30.0)
    assert cluster.slots == [1, 2, 3, 4]
    assert cluster.driver.job.spares == (Seat("a", 0),)  # the slot is the spare of its spare, on the same device
    assert (cluster.started["a", 0][-1][DEVICE], cluster.own_device("a", 0)) == ("GPU-0", "GPU-0")


def test_a_spare_that_trains_on_the_device_of_a_slot_gives_it_back_when_its_host_gets_more_slots() -> None:
    """Its seat is that of another slot then, which would have no process."""
    options = JobOptions(
        WorldLimits(start=2, least=1, settle_s=0.1), names_devices=True, spares=SpareLimits(number=1), cooldown_s=(5, 9)
    )
    cluster = WithDevices(options, devices="w,x,y,z")
    cluster.hosts(a=2)
    cluster.until(lambda: len(cluster.world) == 2)
    cluster.until(lambda: cluster.driver.job.spares)
    cluster.run(5.0)
    cluster.kill("a", 0)
    cluster.until(lambda: cluster.slots == [1, 2], within=0.5)
    cluster.run(30.0)
    assert (cluster.slots, cluster.own_device("a", 2)) == ([1, 2], "w")
    cluster.hosts(a=4)
    cluster.run(60.0)
    assert cluster.slots == [0, 1, 2, 3]
    assert [cluster.own_device("a", slot) for slot in range(4)] == ["w", "x", "y", "z"]


def test_after_a_fault_of_a_device_no_spare_uses_it() -> None:
    options = JobOptions(WorldLimits(start=2, settle_s=0.1), names_devices=True, spares=SpareLimits(number=1))
    cluster = WithDevices(options, devices="x,y")
    cluster.hosts(a=2)
    cluster.until(lambda: len(cluster.world) == 2)
    cluster.until(lambda: cluster.driver.job.spares)
    cluster.run(5.0)
    cluster.training.broken |= {("a", 0), ("a", 2)}
    cluster.kill("a", 0, code=1)
    cluster.run(5.0)
    assert cluster.slots == [1]
    assert [event["slot"] for event in cluster.events("exited")] == [0]
