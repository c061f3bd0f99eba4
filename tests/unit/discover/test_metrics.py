"""Numbers about a cluster: what they count, and that they are there only where there is one."""

import pytest

from discover.metrics import Metrics
from tests.support.clock import ManualClock


class Numbers:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics(self.clock)
        self.cluster = self.metrics.for_cluster()

    def value(self, line: str) -> float:
        """The value of one line of the text that is scraped, named up to its value."""
        for each in self.metrics.render().decode().splitlines():
            name, _, value = each.rpartition(" ")
            if name == f"hvd_discover_{line}":
                return float(value)
        raise AssertionError(f"no line {line}")


@pytest.fixture
def numbers():
    return Numbers()


def test_a_daemon_that_follows_no_cluster_has_none_of_them(manual_clock):
    metrics = Metrics(manual_clock)
    metrics.delivered()
    assert b"node_watch" not in metrics.render()


def test_a_first_list_is_no_relist(numbers):
    for resource in ("pods", "nodes", "pods", "pods"):
        numbers.cluster.listed(resource)
    assert numbers.value('relists_total{resource="pods"}') == 2.0
    assert numbers.value('relists_total{resource="nodes"}') == 0.0


def test_the_age_of_what_is_known_grows_by_itself(numbers):
    heard: list[float | None] = [None]
    numbers.cluster.follow("pods", lambda: heard[0])
    assert numbers.value('last_sync_age_seconds{resource="pods"}') != 0.0, "before the first it is not a number"
    heard[0] = numbers.clock.mono()
    numbers.clock.advance(12.0)
    assert numbers.value('last_sync_age_seconds{resource="pods"}') == pytest.approx(12.0)


def test_warnings_that_are_over_count_nothing(numbers):
    counts = {("node", "imminent"): 3, ("pod", "imminent"): 1}
    numbers.cluster.count_warnings(lambda: counts)
    assert numbers.value('warnings{class="imminent",source="pod"}') == 1.0
    counts = {("node", "imminent"): 1}
    assert numbers.value('warnings{class="imminent",source="node"}') == 1.0
    assert numbers.value('warnings{class="imminent",source="pod"}') == 0.0


def test_latency_is_counted_once_from_the_oldest_news_to_the_last_way_out(numbers):
    start = numbers.clock.mono()
    numbers.cluster.caused([("removal", start)])
    numbers.clock.advance(0.2)
    numbers.cluster.caused([("removal", start + 0.2), ("addition", start - 1.0)])
    numbers.clock.advance(0.1)
    for _ in range(3):
        numbers.metrics.delivered()
    assert numbers.value('event_to_publication_seconds_count{change="removal"}') == 1.0
    assert numbers.value('event_to_publication_seconds_sum{change="removal"}') == pytest.approx(0.3)
    assert numbers.value('event_to_publication_seconds_sum{change="addition"}') == pytest.approx(1.3)
    assert numbers.value('event_to_publication_seconds_bucket{change="removal",le="0.25"}') == 0.0
