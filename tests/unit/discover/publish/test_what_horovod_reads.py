"""The hosts file as stock Horovod 0.28.1 reads it: its own driver, our file between."""

import threading
import time
from unittest.mock import Mock

import pytest

from discover.publish.files import HostsFile
from discover.publish.overlap import Overlap
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication, parse_hosts_text
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until

DEADLINE = 60.0

elastic_driver = pytest.importorskip("horovod.runner.elastic.driver", reason="needs Horovod: run scripts/setup")


def of(*names: str) -> Publication:
    return Publication("life", 1, HostSet.of(dict.fromkeys(names, 1)))


class FromFile:
    """What Horovod's discovery script prints, without starting a process each time."""

    def __init__(self, path) -> None:
        self.path = path

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return parse_hosts_text(self.path.read_text(), where="hosts").as_slots()


class Job:
    """Horovod's driver with workers that are threads, which do nothing until the job ends."""

    def __init__(self, path) -> None:
        self.ended = threading.Event()
        self.driver = elastic_driver.ElasticDriver(Mock(), FromFile(path), min_num_proc=1, max_num_proc=8, timeout=60)
        self.driver.start(1, self._work)

    def _work(self, _slot, _events) -> tuple[int, float]:
        self.ended.wait()
        return 0, time.time()

    def until_it_knows(self, *names: str) -> None:
        known = self.driver._host_manager
        wait_until(lambda: known.current_hosts.available_hosts == set(names), what=f"{names} seen", timeout=DEADLINE)

    def next_world(self) -> set[str]:
        """What workers bring about that meet again: a world of the hosts that are known now."""
        self.driver.resume()
        return set(self.driver.host_assignments)

    def end(self) -> None:
        self.ended.set()
        self.driver.stop()
        self.driver.get_results()


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(elastic_driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.02)
    made: list[Job] = []

    def start() -> Job:
        made.append(Job(tmp_path / "hosts"))
        return made[-1]

    yield start
    for each in made:
        each.end()


def test_rule_20_without_the_last_survivor_horovod_ends_the_job(job, tmp_path):
    hosts_file = HostsFile(tmp_path / "hosts")
    hosts_file.publish(of("a", "b"))
    running = job()
    hosts_file.publish(of("c"))
    running.until_it_knows("c")
    with pytest.raises(RuntimeError, match="No hosts from previous set remaining"):
        running.next_world()
    hosts_file.close()


def test_rule_20_with_the_last_survivor_horovod_goes_on_to_hosts_that_are_all_new(job, tmp_path):
    clock = ManualClock()
    hosts_file = HostsFile(tmp_path / "hosts", overlap=Overlap(alive=lambda host: True, clock=clock))
    hosts_file.publish(of("a", "b"))
    running = job()
    clock.advance(60.0)
    hosts_file.publish(of())
    running.until_it_knows("a")
    hosts_file.publish(of("c", "d"))
    running.until_it_knows("a", "c", "d")
    assert running.next_world() == {"a", "c", "d"}
    clock.advance(10.0)
    hosts_file.publish(of("c", "d"))
    running.until_it_knows("c", "d")
    assert running.next_world() == {"c", "d"}
    hosts_file.close()
