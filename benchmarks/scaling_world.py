"""A simulated job with a known speed at each size, and what chooses the size: policies of ours, and others.

At each tick the cluster has the number of hosts in the trace. Requested hosts come after their boot. A change of the
size stops training for a moment. All get the same traces and curves. The worth of a run is its work beyond a given
price of a host-second, which is a share of the work of a single host.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from hvd_elastic_ext.launcher.scaling.decide import Memory, Policy, ScaleLimits, decide
from hvd_elastic_ext.launcher.scaling.observations import Observations, SpeedLog

TICK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TrueCurve:
    """``step_s``: seconds of a step by number of hosts. ``batch``: ``global`` or ``host``. ``busy``: by number of
    hosts, the share of a step in which CPUs compute."""

    name: str
    batch: str
    step_s: Callable[[int], float]
    busy: Callable[[int], float]

    def rate(self, size: int) -> float:
        """Return the work in a second."""
        return (size if self.batch == "host" else 1) / self.step_s(size) if size else 0.0

    def worth(self, size: int, share: float) -> float:
        """Return the work in a second beyond the price of its hosts."""
        return self.rate(size) - share * self.rate(1) * size

    def best(self, share: float, most: int) -> int:
        """Return the size with the highest worth."""
        return max(range(1, most + 1), key=lambda size: (self.worth(size, share), -size))


def same_batch(name: str, alone: float, shared: float, each: float) -> TrueCurve:
    """Return a curve with one batch that all hosts share."""
    return TrueCurve(
        name,
        "global",
        lambda n: alone + shared / n + each * (n - 1),
        lambda n: (alone + shared / n) / (alone + shared / n + each * (n - 1)),
    )


def batch_a_host(name: str, compute: float, ring: float, each: float, *, latency: float = 0.0) -> TrueCurve:
    """Return a curve with a batch for each host. ``latency``: seconds that grow with the logarithm of the size, as in
    trees."""

    def step_s(n: int) -> float:
        return compute + ring * (n - 1) / n + each * (n - 1) + latency * math.log2(n)

    return TrueCurve(name, "host", step_s, lambda n: compute / step_s(n))


def efficient(name: str, at: int, efficiency: float) -> TrueCurve:
    """Return a curve with a published scaling efficiency at ``at`` hosts: half of the loss is the ring, half grows with
    the logarithm of the size."""
    lost = 0.2 * (1 / efficiency - 1)
    return batch_a_host(name, 0.2, lost / 2 * at / (at - 1), 0.0, latency=lost / 2 / math.log2(at))


CURVES: Final[Sequence[TrueCurve]] = (
    # Sergeev and Del Balso, Horovod, arXiv:1802.05799, figure 6: efficiency on 128 servers of 4 GPUs.
    efficient("Inception V3 (Horovod paper: 90 % at 128 servers)", 128, 0.90),
    efficient("VGG-16 (Horovod paper: 68 % at 128 servers)", 128, 0.68),
    same_batch("Amdahl, 5 % serial", 0.05, 0.95, 0.0),
    same_batch("Amdahl, 20 % serial", 0.2, 0.8, 0.0),
    same_batch("Amdahl, 60 % serial", 0.6, 0.4, 0.0),
    same_batch("5 % serial, slower with each host", 0.05, 0.95, 0.02),
    batch_a_host("slow network", 0.2, 0.3, 0.0),
    batch_a_host("slower with each host", 0.2, 0.05, 0.02),
    batch_a_host("much slower with each host", 0.2, 0.1, 0.1),
    batch_a_host("logarithm", 0.2, 0.0, 0.0, latency=0.1),
)


def whole_samples(name: str, sample_s: float, samples: int, alone: float) -> TrueCurve:
    """Return a curve with one batch of whole samples: the host with the most samples decides."""
    return TrueCurve(
        name,
        "global",
        lambda n: alone + sample_s * math.ceil(samples / n),
        lambda n: sample_s * math.ceil(samples / n) / (alone + sample_s * math.ceil(samples / n)),
    )


def in_racks(name: str, compute: float, ring: float, hosts: int, slower: float) -> TrueCurve:
    """Return a curve with a batch for each host. With more than ``hosts`` hosts, all data crosses a slower link."""

    def step_s(n: int) -> float:
        return compute + ring * (n - 1) / n * (slower if n > hosts else 1.0)

    return TrueCurve(name, "host", step_s, lambda n: compute / step_s(n))


def _rows(n: int) -> float:
    return 0.2 + 0.04 * (n - 1) / n * (1 if n <= 4 else 2 if n <= 16 else 6)


def _memory(n: int) -> float:
    return 0.05 + 0.9 / n * (1.5 if n < 3 else 1.0)


HELD_OUT: Final[Sequence[TrueCurve]] = (
    same_batch("30 % serial, a little slower with each host", 0.3, 0.7, 0.005),
    same_batch("2 % serial", 0.02, 0.98, 0.0),
    batch_a_host("a little slower with each host", 0.5, 0.05, 0.004),
    batch_a_host("a little of each", 0.3, 0.05, 0.003, latency=0.01),
    whole_samples("64 whole samples", 0.02, 64, 0.1),
    in_racks("racks of eight", 0.2, 0.04, 8, 8.0),
    in_racks("racks of five", 0.2, 0.03, 5, 12.0),
    in_racks("racks of twelve, a link half as fast", 0.25, 0.1, 12, 2.0),
    in_racks("racks of six", 0.2, 0.05, 6, 4.0),
    in_racks("racks of seven", 0.15, 0.02, 7, 10.0),
    in_racks("racks of ten", 0.25, 0.08, 10, 3.0),
    in_racks("racks of sixteen", 0.2, 0.03, 16, 6.0),
    TrueCurve("racks of four in rows of sixteen", "host", _rows, lambda n: 0.2 / _rows(n)),
    TrueCurve("too little memory below three", "global", _memory, lambda n: 1 - 0.05 / _memory(n)),
    whole_samples("48 whole samples", 0.03, 48, 0.05),
    in_racks("racks of nine, a link a third as fast", 0.2, 0.06, 9, 3.0),
    in_racks("racks of fourteen", 0.3, 0.09, 14, 2.5),
    in_racks("racks of twenty, a link half as fast", 0.25, 0.08, 20, 2.0),
    in_racks("racks of three", 0.2, 0.04, 3, 5.0),
    whole_samples("40 whole samples", 0.04, 40, 0.1),
)
"""Curves that were made after the policy. From ``64 whole samples`` on they have forms that the policy does not know.
``racks of eight`` and ``of twelve`` were used to improve the search for cliffs, so only the curves after them judge it.
"""


@dataclass(frozen=True, slots=True)
class ScaleTrace:
    """``there``: hosts that the cluster has at each tick. ``noise``: relative deviation of a step."""

    there: Sequence[int]
    boot_s: float
    resize_s: float
    noise: float
    seed: int
    start: int


def trace(seed: int, *, hours: float = 8.0, most: int = 32) -> ScaleTrace:
    """Return a random trace. For even seeds the cluster always has all hosts, for odd ones hosts come and go."""
    chance = random.Random(seed)
    ticks = int(hours * 3600 / TICK_S)
    there, now = [], most
    for _ in range(ticks):
        if seed % 2 and chance.random() < TICK_S / 3600:
            now = chance.randint(most // 4, most)
        there.append(now)
    return ScaleTrace(
        there,
        chance.uniform(20, 180),
        chance.uniform(0.1, 2.0),
        chance.uniform(0.01, 0.1),
        seed,
        chance.choice((1, 2, 4, 8)),
    )


class Sizer(Protocol):
    """Chooses the number of hosts."""

    looks: bool
    """Whether it uses step times."""

    def size(self, now: float, seen: Observations) -> int: ...


@dataclass(slots=True)
class Ours:
    """A policy of ours within limits."""

    policy: Policy
    limits: ScaleLimits
    memory: Memory = field(default_factory=Memory)
    reasons: list[tuple[float, int, str]] = field(default_factory=list)
    looks: bool = True

    def size(self, now: float, seen: Observations) -> int:
        decision, self.memory = decide(now, self.policy, seen, self.limits, self.memory)
        if decision.change:
            self.reasons.append((now, decision.size, decision.reason))
        return decision.size


@dataclass(slots=True)
class FixedSize:
    """Always chooses the same size."""

    hosts: int
    looks: bool = False

    def size(self, now: float, seen: Observations) -> int:
        return self.hosts


@dataclass(slots=True)
class Hpa:
    """HorizontalPodAutoscaler by CPU: its formula, tolerance and windows (up at once, down after 300 s)."""

    most: int
    target: float = 0.8
    past: list[tuple[float, int]] = field(default_factory=list)
    looks: bool = False

    def size(self, now: float, seen: Observations) -> int:
        ratio = seen.signals["cpu"] / self.target
        wanted = seen.size if abs(ratio - 1) <= 0.1 else math.ceil(seen.size * ratio - 1e-9)
        self.past = [(at, size) for at, size in self.past if now - at < 300.0] + [(now, wanted)]
        lowest = max(size for _, size in self.past)
        return max(1, min(self.most, wanted if wanted > seen.size else min(lowest, seen.size)))


@dataclass(slots=True)
class Run:
    """``worth``: see the module's docstring. ``changes``: times (s) and sizes of changes of the requested size.
    ``still_s``: seconds without steps because of changes."""

    worth: float = 0.0
    work: float = 0.0
    host_s: float = 0.0
    still_s: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)
    size: int = 0


def play(curve: TrueCurve, cluster: ScaleTrace, sizer: Sizer, share: float) -> Run:
    """Run one job on one trace."""
    chance = random.Random(cluster.seed)
    run, log = Run(), SpeedLog()
    wanted = size = cluster.start
    arrivals: list[float] = []
    price = share * curve.rate(1)
    for tick, there in enumerate(cluster.there):
        now = tick * TICK_S
        resized = False
        here = sum(at <= now for at in arrivals)
        arrivals = [at for at in arrivals if at > now]
        new = min(size + here, wanted, there)
        if new != size:
            resized, size = True, new
        step_s = curve.step_s(size)
        usable_s = TICK_S - (cluster.resize_s if resized else 0.0)
        run.still_s += TICK_S - usable_s
        if sizer.looks:
            steps = [step_s * chance.lognormvariate(0.0, cluster.noise) for _ in range(min(20, int(usable_s / step_s)))]
            new_steps = steps[1 if resized else 0 :]
            log = log.seen(size, new_steps, [step * curve.busy(size) for step in new_steps])
        run.work += curve.rate(size) * usable_s
        held = size + len(arrivals)
        run.host_s += held * TICK_S
        run.worth += curve.rate(size) * usable_s - price * held * TICK_S
        signals = {"cpu": curve.busy(size) * usable_s / TICK_S, "iteration": step_s}
        seen = Observations(size, wanted, log.speeds(), signals, cluster.resize_s, run.work, run.work)
        asked = sizer.size(now, seen)
        if asked != wanted:
            run.changes.append((now, asked))
            wanted = asked
        missing = min(wanted, there) - size - len(arrivals)
        if missing < 0:
            arrivals = arrivals[: max(0, len(arrivals) + missing)]
        arrivals += [now + cluster.boot_s * chance.uniform(0.8, 1.2)] * max(0, missing)
    run.size = wanted
    return run


def oracle(curve: TrueCurve, cluster: ScaleTrace, share: float, most: int) -> Run:
    """Return the run that always has the available size with the highest worth: hosts come at once, changes cost
    nothing."""
    best: Mapping[int, int] = {there: curve.best(share, there) for there in set(cluster.there)}
    run = Run()
    for there in cluster.there:
        size = best[there]
        run.work += curve.rate(size) * TICK_S
        run.host_s += size * TICK_S
        run.worth += curve.worth(size, share) * TICK_S
    return run
