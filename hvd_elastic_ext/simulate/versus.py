"""What other kinds of jobs get out of the same trace: arithmetic in their favour, without a driver.

:func:`restarted`: a job that restarts from its last checkpoint whenever a process ends, which is stock Horovod in a
loop, or torchrun: every change of the world is a new start. It knows at once that a host has gone, unless the host
vanishes. After a notice, it saves and continues without that host. Its ``auto`` interval is the best one for the
failures of this trace. It adds new hosts either by a restart for them, or at its next restart, whichever is better in
total.

:func:`in_place`: a job of stock Horovod that continues in place with the remaining hosts, and waits for newcomers. A
change costs the other hosts no start; a new host stops training until its processes have booted; a commit in memory
saves the steps before it, as long as one of its holders is left. If none is left, all start again from the newest
checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hvd_elastic_ext.core.goodput import share
from hvd_elastic_ext.launcher.checkpoints.interval import best_interval
from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.traces.rows import Row, Trace


@dataclass(frozen=True, slots=True)
class Restarted:
    """``useful``: slot-seconds of the kept steps; ``kept``: their number for all ranks; ``done``: all steps of all
    ranks; ``lost``: repeated steps. ``downtime_s``: seconds without a step since the first one. ``interval_s``: seconds
    between checkpoints.
    """

    useful: float
    capacity: float
    kept: int
    done: int
    lost: int
    downtime_s: float
    starts: int
    interval_s: float
    took_s: float | None

    @property
    def goodput(self) -> float:
        """The useful share of all slot-seconds. Raises :class:`~hvd_elastic_ext.core.goodput.Miscounted`."""
        return share(self.useful, self.capacity)


def restarted(
    trace: Trace,
    settings: RunSettings,
    times: Times,
    *,
    rank_steps: int | None = None,
    grows: bool | None = None,
    starts: Callable[[], float] | None = None,
) -> Restarted:
    """Return the result of such a job. ``grows``: whether it restarts for new hosts; None: whichever is better.
    ``starts``: the seconds of each start except the first; None: as in ``times``.
    """
    ways = (False, True) if grows is None else (grows,)
    found = [Loop(trace, settings, times, rank_steps, grows=way, starts=starts).run() for way in ways]
    return max(found, key=lambda each: (each.kept, -(each.took_s or 0.0)))


class _Happens(NamedTuple):
    """``what``: the event of the row, joins (its agent has started), told (it has notice), or end (of the trace)."""

    at: float
    what: str
    row: Row | None = None


def _happens(trace: Trace, agent_s: float) -> Iterator[_Happens]:
    """Yield what happens until the end of the trace; of one moment, in this order."""
    for row in trace.rows:
        if row.notice:
            yield _Happens(max(0.0, row.at - row.notice), "told", row)
        if row.event != "price" and trace.plays(row):
            yield _Happens(row.at, row.event, row)
        if row.event == "up" and row.at > 0.0 and row.at + agent_s < trace.ends:
            yield _Happens(row.at + agent_s, "joins", row)
    yield _Happens(trace.ends, "end")


class Loop:
    """One job. ``saves_to_grow``: whether it saves before it adds hosts, and so loses no step."""

    saves_to_grow = False

    def __init__(
        self,
        trace: Trace,
        settings: RunSettings,
        times: Times,
        rank_steps: int | None,
        *,
        grows: bool,
        starts: Callable[[], float] | None = None,
    ) -> None:
        self._grows, self._start_takes = grows, starts
        self._trace, self._settings, self._times, self._wanted = trace, settings, times, rank_steps
        self.interval_s = self._interval(
            sum(row.event not in ("up", "price") and trace.plays(row) for row in trace.rows)
        )
        self._start_s = times.boot_s + times.join_s + times.sync_s + times.load_s
        self._there: dict[str, int] = {}
        self._ready: set[str] = set()
        """Hosts whose agents have started."""
        self._leaving: set[str] = set()
        self._of: dict[str, int] = {}
        """The hosts of the present world, with their slots."""
        self._begun: float | None = None
        """When the first step of the present world begins."""
        self._halted: float | None = None
        """When the world before the present one ended."""
        self._kept = self._done = self._lost = self._starts = self._size = 0
        self._useful = self._downtime = 0.0
        self._took: float | None = None

    def _interval(self, goes: int) -> float:
        durability = self._settings.options.durability
        every = None if durability is None else durability.every
        if every is not None and every.seconds is not None:
            return every.seconds
        if every is not None and every.steps is not None:
            return every.steps * self._times.step_s
        best = best_interval(self._times.write_s, goes / self._trace.ends if self._trace.ends else 0.0)
        return max(self._times.step_s, min(best, self._trace.ends))

    def run(self) -> Restarted:
        at, spans = 0.0, list[tuple[float, float, int]]()
        for now, what, row in sorted(_happens(self._trace, self._times.agent_s), key=lambda each: each.at):
            if now > at:
                if self._begun is None:
                    self._start(at)
                spans.append((at, now, sum(self._there.values())))
            self._take(now, what, row)
            if self._took is not None:
                break
            at = now
        ends = math.inf if self._took is None else self._took
        capacity = math.fsum(slots * max(0.0, min(end, ends) - begin) for begin, end, slots in spans)
        figures = self._kept, self._done, self._lost, self._downtime, self._starts, self.interval_s, self._took
        return Restarted(self._useful, capacity, *figures)

    def _take(self, now: float, what: str, row: Row | None) -> None:
        if row is None:
            trains = self._begun is not None and now > self._begun
            self._stop(now, saves=True)
            self._downtime += 0.0 if trains or self._halted is None else now - self._halted
            return
        within = row.host in self._of
        if what == "up":
            self._there[row.host] = row.slots
            self._ready |= {row.host} if not now else set()
        elif what == "joins" and self._there.get(row.host) == row.slots:
            self._ready.add(row.host)
            if self._grows and self._begun is not None:
                self._stop(now, saves=self.saves_to_grow)
                self._start(now)
        elif what == "told" and row.host in self._there:
            self._leaving.add(row.host)
        elif what in ("down", "lost"):
            self._there.pop(row.host, None)
            self._leaving.discard(row.host)
            self._ready.discard(row.host)
        if within and what not in ("up", "joins"):
            self._stop(now, saves=what == "told")
            self._start(now + (self._times.gloo_s if what == "lost" else 0.0))

    def _start(self, at: float) -> None:
        """Start with all hosts that will stay, if they are enough."""
        stay = {host: slots for host, slots in self._there.items() if host in self._ready - self._leaving}
        slots, most = sum(stay.values()), self._settings.options.limits.most
        if slots < self._settings.options.limits.least:
            self._of, self._begun = {}, None
            return
        self._of = stay
        self._size = slots if most is None else min(slots, most)
        self._begun = self._begins(at)
        self._starts += 1

    def _begins(self, at: float) -> float:
        """Return when the first step of a world begins."""
        if not self._starts:
            return at + self._start_s + self._times.agent_s + self._times.cold_s
        return at + (self._start_s if self._start_takes is None else self._start_takes())

    def _stop(self, now: float, *, saves: bool = False) -> None:
        """End the present world. Keep the steps on storage; with ``saves``, all steps."""
        if self._begun is None or now <= self._begun:
            return
        if self._halted is not None:
            self._downtime += self._begun - self._halted
        self._halted = now
        step_s, write_s = self._times.step("", self._size), self._times.write_s
        done, steps = self._keep(now - self._begun, step_s, saves=saves)
        if self._wanted is not None and self._kept + steps * self._size >= self._wanted:
            steps = done = math.ceil((self._wanted - self._kept) / self._size)
            trains_s = steps * step_s
            self._took = min(now, self._begun + trains_s + math.floor(trains_s / self.interval_s) * write_s)
        self._begun = None  # its steps count once
        self._kept += steps * self._size
        self._done += done * self._size
        self._lost += done - steps
        self._useful += steps * self._size * step_s

    def _keep(self, trained_s: float, step_s: float, *, saves: bool) -> tuple[int, int]:
        """Return the number of steps done, and of those that are kept."""
        cycle = self.interval_s + self._times.write_s
        whole = math.floor(trained_s / cycle)
        rest = math.floor(min(self.interval_s, trained_s - whole * cycle) / step_s)
        steps = math.floor(whole * self.interval_s / step_s)
        return steps + rest, steps + rest if saves else steps


def in_place(trace: Trace, settings: RunSettings, times: Times, *, rank_steps: int | None = None) -> Restarted:
    """Return the result of such a job. At its end, steps that are only in memory count as kept."""
    return _InPlace(trace, settings, times, rank_steps, grows=True).run()


class _InPlace(Loop):
    saves_to_grow = True

    def __init__(
        self, trace: Trace, settings: RunSettings, times: Times, rank_steps: int | None, *, grows: bool
    ) -> None:
        super().__init__(trace, settings, times, rank_steps, grows=grows)
        self._booted: dict[str, float] = {}
        """When the processes of each host of the present world are ready."""
        self._in_memory: list[tuple[int, int, float]] = []
        """Committed steps since the newest checkpoint, the size of their world, and the seconds of a step."""

    def _begins(self, at: float) -> float:
        """Return when a world of the present hosts trains: when all of them have booted."""
        before = self._booted
        if any(ready <= at for host, ready in before.items() if host in self._of):
            known = {host: before[host] for host in self._of if host in before}
            self._booted = {**dict.fromkeys(self._of, at + self._times.boot_s), **known}
            return max(at + self._times.join_s + self._times.sync_s, *self._booted.values())
        self._roll_back()
        begins = super()._begins(at)
        self._booted = dict.fromkeys(self._of, begins)
        return begins

    def _roll_back(self) -> None:
        """Drop the steps in memory, because no host is left that holds a commit."""
        for steps, size, step_s in self._in_memory:
            self._kept -= steps * size
            self._lost += steps
            self._useful -= steps * size * step_s
        self._in_memory.clear()

    def _keep(self, trained_s: float, step_s: float, *, saves: bool) -> tuple[int, int]:
        """Return the number of steps done, and of those that are committed."""
        done = math.floor(trained_s / step_s)
        kept = done if saves else done - done % self._times.every
        self._in_memory.append((kept, self._size, step_s))
        since_s = math.fsum(steps * step_s for steps, _, step_s in self._in_memory)
        if since_s >= self.interval_s:
            self._in_memory = self._newest(since_s % self.interval_s)
        return done, kept

    def _newest(self, seconds: float) -> list[tuple[int, int, float]]:
        """Return the committed steps of the last seconds of training."""
        found = list[tuple[int, int, float]]()
        for steps, size, step_s in reversed(self._in_memory):
            within = min(steps, math.floor(seconds / step_s))
            seconds -= within * step_s
            found.insert(0, (within, size, step_s))
            if within < steps:
                break
        return found
