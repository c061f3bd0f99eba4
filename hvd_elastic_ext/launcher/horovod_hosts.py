"""Horovod's idea of hosts, over our feed and our health records. Imported by ``horovod_driver`` only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from horovod.runner.elastic.discovery import HostDiscovery, HostManager
from horovod.runner.elastic.worker import HostUpdateResult

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.launcher.feed import HostFeed
from hvd_elastic_ext.launcher.health import HostRecord


class PushedHosts(HostDiscovery):  # type: ignore[misc]
    """Horovod's discovery port over a feed: answers at once, never fails."""

    def __init__(self, feed: HostFeed) -> None:
        self._feed = feed

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return self._feed.hosts().as_slots()


class HostHealth:
    """Stands in for Horovod's ``HostState``: the same questions, answered from a :class:`HostRecord`."""

    def __init__(self, limits: tuple[float, float], clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self.record = HostRecord()

    def blacklist(self) -> None:
        self.record = self.record.struck(self._clock.mono(), self._limits)

    def whitelist(self) -> None:
        self.record = self.record.readmitted()

    def is_blacklisted(self) -> bool:
        """True until the host is let in again, which may be later than the end of its cooldown."""
        return self.record.blocked_until is not None

    def is_resurrected(self) -> bool:
        return self.record.cooled_down(self._clock.mono())


class OrderedHostManager(HostManager):  # type: ignore[misc]
    """Horovod's host manager with documented cooldowns and newcomers in order of name."""

    def __init__(
        self, feed: HostFeed, limits: tuple[float, float], clock: Clock, on_strike: Callable[[str, HostRecord], None]
    ) -> None:
        super().__init__(PushedHosts(feed))
        self._hosts_state: defaultdict[str, HostHealth] = defaultdict(lambda: HostHealth(limits, clock))
        self._clock = clock
        self._on_strike = on_strike

    def blacklist(self, host: str) -> None:
        before = self._hosts_state[host].record
        super().blacklist(host)
        after = self._hosts_state[host].record
        if after != before:
            self._on_strike(host, after)

    def update_available_hosts(self) -> HostUpdateResult:
        veterans = list(self._current_hosts.host_assignment_order)
        result = super().update_available_hosts()
        # Horovod appends newcomers in the order of a set, by a static method that no subclass can replace.
        found = self._current_hosts
        there = set(found.host_assignment_order)
        stayed = [host for host in veterans if host in there]
        found._host_assignment_order = [*stayed, *sorted(there.difference(stayed))]
        return result

    def cooled_down(self) -> set[str]:
        return {host for host, health in list(self._hosts_state.items()) if health.is_resurrected()}

    def seconds_to_next_release(self) -> float | None:
        now = self._clock.mono()
        ends = [health.record.blocked_until for health in list(self._hosts_state.values())]
        return min((end - now for end in ends if end is not None and end > now), default=None)
