"""Estimates a job of stock Horovod on the same trace: it continues in place with the remaining hosts, and waits for
newcomers.

The arithmetic is that of :mod:`~hvd_elastic_ext.simulate.versus`, with differences: a change costs the other hosts no
start; a new host stops training until its processes have booted; a commit in memory saves the steps before it, as long
as one of its holders is left. If none is left, all start again from the newest checkpoint.
"""

from __future__ import annotations

import math

from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.versus import Loop, Restarted
from hvd_elastic_ext.simulate.traces.rows import Trace


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
