"""Accounts for the time of a simulated job's hosts: every available slot-second is in one category.

A step counts once training has continued from it. The time of a step that is rolled back is lost. The useful share of
all slot-seconds is the goodput of :mod:`hvd_elastic_ext.core.goodput`: a step is worth what it takes undisturbed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.core.goodput import ROUNDING, Miscounted
from hvd_elastic_ext.simulate.cluster.observer import Observer
from hvd_elastic_ext.simulate.cluster.processes import Commit, Process, World
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.cluster.virtual_time import Sim

CATEGORIES: Final = {
    "useful": "steps that are not done again, of what all hosts could have done",
    "rollback": "steps done again, cut short, or held up",
    "checkpoint": "commits, and slower steps while checkpoints are written",
    "resize": "ready processes that wait for their world",
    "boot": "agents and processes that start",
    "spare": "processes that are ready to take the place of a lost one",
    "below_min": "fewer slots than training needs",
    "asleep": "the job sleeps",
    "uneven": "faster hosts wait for slower ones",
    "unused": "slots that the job does not use",
    "over": "the job has ended or failed, and its hosts are idle",
}
"""Categories of time, in the order of the table."""
WAITS: Final = ("parked", "asking", "joining", "syncing")


@dataclass(slots=True)
class Segment:
    """Consecutive steps of one world, up to step ``last``. Each counts as ``own`` slot-seconds, of ``size`` ranks."""

    key: tuple[int, int]
    first: int
    last: int
    size: int
    own: float


@dataclass
class Accounts(Observer):
    """``least``: fewest slots with which the job trains. Times are slot-seconds, except in ``segments``."""

    sim: Sim
    times: Times
    least: int = 1
    slot_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    phase: str = "running"
    """The job's phase: running, asleep or over."""
    slots: int = 0
    """Available slots; ``published``: those of listed hosts without notice."""
    available: float = 0.0
    """Slot-seconds of all available slots."""
    published: int = 0
    missing: int = 0
    """Wanted processes that are not started."""
    spares: int = 0
    """Ready processes that no world needs."""
    away: set[str] = field(default_factory=set)
    """Hosts that have vanished, whose processes do not count."""
    worlds: int = 0
    rollbacks: int = 0
    lost: int = 0
    """Number of repeated steps."""
    downtime_s: float = 0.0
    """Seconds without a step between two worlds, except during sleeps."""
    slept: bool = False
    """Whether the job has slept since the newest step."""
    rank_steps: int = 0
    """Sum of the steps of all ranks; :attr:`kept` has those that count."""
    checkpoints: int = 0
    _states: Counter[str] = field(default_factory=Counter)
    _segments: list[Segment] = field(default_factory=list)
    _at: float = 0.0
    _stepped_at: float | None = None
    """Time of the newest step."""
    _training: float = 0.0
    _accounted: float = 0.0
    """Slot-seconds in training that are already in a category."""

    # --- time

    def begin(self) -> None:
        """Start the accounting at the present time."""
        self._at = self.sim.now

    def count(self) -> None:
        """Account for the time until now. Call it before each change."""
        now, states, slot_seconds = self.sim.now, self._states, self.slot_seconds
        passed, self._at = now - self._at, now
        if passed <= 0.0:
            return
        training = states["training"]
        self.available += self.slots * passed
        self._training += training * passed
        rest = (self.slots - training) * passed
        if self.phase != "running":
            slot_seconds[self.phase] += rest
        elif self.published < self.least:
            slot_seconds["below_min"] += rest
        else:
            waits, boots = sum(states[name] for name in WAITS), states["booting"]
            left = self.slots - training  # spares in extra seats take no slot
            parts = {"resize": max(0, waits - self.spares), "boot": boots, "spare": min(waits, self.spares)}
            for name, wanted in parts.items():
                parts[name] = min(wanted, left)
                left -= parts[name]
            parts["boot"] += min(left, self.missing)
            left -= min(left, self.missing)
            for name, count in (*parts.items(), ("unused", left)):
                slot_seconds[name] += count * passed

    def close(self) -> None:
        """Account for the remaining time. Raises :class:`Miscounted` if the parts are not the whole."""
        self.count()
        self.slot_seconds["useful"] = sum((each.last - each.first) * each.own for each in self._segments)
        self.slot_seconds["rollback"] += self._training - self._accounted
        self._check()

    def _check(self) -> None:
        slack = ROUNDING * (1.0 + self.available)
        total = sum(self.slot_seconds.values())
        below = [name for name, seconds in self.slot_seconds.items() if not seconds >= -slack]
        if below or not abs(total - self.available) <= slack:
            what = f"{below[0]} has {self.slot_seconds[below[0]]:.6g}" if below else f"the categories have {total:.6g}"
            raise Miscounted(
                f"{what} of {self.available:.6g} slot-seconds; this is a defect of hvd-elastic: please report it, with "
                "the trace and the command"
            )
        for name, seconds in self.slot_seconds.items():
            self.slot_seconds[name] = max(0.0, seconds)

    @property
    def kept(self) -> int:
        """Sum of the steps of all ranks that count."""
        return sum((each.last - each.first) * each.size for each in self._segments)

    @property
    def batch(self) -> int:
        """The newest step."""
        return self._segments[-1].last if self._segments else 0

    # --- events

    def moved(self, process: Process, before: str) -> None:
        """Note that a process has another state than ``before``."""
        if process.host in self.away:
            return
        self.count()
        if before:
            self._states[before] -= 1
        if process.state != "gone":
            self._states[process.state] += 1

    def vanished(self, host: str, processes: list[Process]) -> None:
        """Note that a host has no slots any more. Its processes do not count."""
        self.count()
        self.away.add(host)
        for process in processes:
            self._states[process.state] -= 1

    def sealed(self, commit: Commit) -> None:
        """Note that a checkpoint is complete."""
        self.checkpoints += 1

    def agreed(self, world: World, elected: Commit | None) -> None:
        """Note that a world continues from a commit: the steps after that commit are lost."""
        self.worlds += 1
        batch = 0 if elected is None else elected.batch
        if self.batch > batch:
            self.rollbacks += 1
            self.lost += self.batch - batch
        if self._stepped_at is not None and not self.slept:
            self.downtime_s += self.sim.now - self._stepped_at
        self._stepped_at = self.sim.now
        while self._segments and self._segments[-1].last > batch:
            newest = self._segments[-1]
            kept = max(newest.first, batch)
            self.slot_seconds["rollback"] += (newest.last - kept) * newest.own
            newest.last = kept
            if newest.first == kept:
                self._segments.pop()
        kinds = Counter(process.agent.kind for process in world.members)
        own = sum(count * self.times.step(kind, len(world.members)) for kind, count in kinds.items())
        self._segments.append(Segment(world.key, batch, batch, len(world.members), own))

    def steps(self, world: World, count: int) -> None:
        """Note that a world has done steps. Time beyond the hosts' own step times belongs to other categories."""
        now = self._segments[-1]
        now.last += count
        self._stepped_at, self.slept = world.stepped_at, False
        self.rank_steps += count * now.size
        commit_s = self.times.commit_s / world.every
        took = count * world.step_s
        trained = took / (1.0 + self.times.slowed if world.writing else 1.0)
        more_s, world.delayed_s = world.delayed_s, 0.0
        self.slot_seconds["checkpoint"] += (took - trained + more_s + count * commit_s) * now.size
        self.slot_seconds["uneven"] += (trained - count * commit_s) * now.size - count * now.own
        self._accounted += (took + more_s) * now.size
