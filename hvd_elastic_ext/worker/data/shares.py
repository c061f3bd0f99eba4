"""Shares of a global batch that follow the measured speed of each rank, for ranks on unlike hosts.

:func:`decide` is the decision, the same on all ranks: ``(measured seconds, present shares, limits) -> (shares,
reason)``. :class:`MeasuredShares` measures this rank's steps, and lets the ranks agree at a commit.

In synchronous training all steps take the same time, because the fast ranks wait for the slow one. So a step is
measured from the request of its first batch to the end of its last backward pass, less waits for other ranks
(:class:`~hvd_elastic_ext.worker.optim.step_waits.OwnTime`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import torch

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.optim.step_waits import OwnTime
from hvd_elastic_ext.worker.process import standby

# --- the decision

Rows = tuple[int, ...]
"""The samples of each rank in one global batch, by rank."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When shares change, and how far."""

    factor: float = 4.0
    """A share is at least the equal one divided by this, and at most the equal one times this. It is never below one
    sample."""
    gain: float = 0.05
    """Shares change only if the predicted time of a step falls by more than this part of it. So noise changes nothing,
    and two ranks' shares do not go back and forth."""


LIMITS: Final = Limits()


def equal(total: int, size: int) -> Rows:
    """Return equal shares of ``total`` samples; the first ranks may have one more."""
    base, more = divmod(total, size)
    return tuple(base + (rank < more) for rank in range(size))


def bounds(total: int, size: int, limits: Limits = LIMITS) -> tuple[int, int]:
    """Return the fewest and the most samples that a rank may have of ``total``."""
    fewest, most = max(1, math.ceil(total / size / limits.factor)), math.floor(total / size * limits.factor)
    return fewest, min(max(most, -(-total // size)), max(1, total - (size - 1) * fewest))


def scaled(rows: Rows, total: int) -> Rows:
    """Return the same shares of another number of samples, such as the last ones of an epoch. Some may be 0."""
    whole = sum(rows)
    parts = [divmod(each * total, whole) for each in rows]
    left = total - sum(part for part, _ in parts)
    first = sorted(range(len(rows)), key=lambda rank: (-parts[rank][1], rank))[:left]
    return tuple(part + (rank in first) for rank, (part, _) in enumerate(parts))


def decide(seconds: Sequence[float], rows: Rows, limits: Limits = LIMITS) -> tuple[Rows, str]:
    """Return the shares from now on, and why. They are ``rows`` themselves if nothing changes.

    ``seconds``: what each rank takes for one sample, without waits; 0 if that is not known. A step takes as long as its
    slowest rank, so the shares are those with which that is fastest.
    """
    total, size = sum(rows), len(rows)
    unknown = [rank for rank, each in enumerate(seconds) if not 0.0 < each < math.inf]
    if unknown:
        return rows, f"rank {unknown[0]} has not been measured"
    if total < size:
        return rows, f"{total} samples are too few for {size} ranks"
    best = _fastest(seconds, total, bounds(total, size, limits))
    before, after = _step_s(seconds, rows), _step_s(seconds, best)
    times = f"{after:.3g} s instead of {before:.3g} s"
    if after >= before * (1.0 - limits.gain):
        return rows, f"other shares would hardly be faster: {times}"
    return best, f"the samples of a step are predicted to take {times}"


def _step_s(seconds: Sequence[float], rows: Rows) -> float:
    return max(each * count for each, count in zip(seconds, rows, strict=True))


def _fastest(seconds: Sequence[float], total: int, within: tuple[int, int]) -> Rows:
    """Return the shares with the shortest step: all that each rank does in a time, and the longest such time."""
    fewest, most = within

    def done_in(time: float) -> list[int]:
        return [max(fewest, int(min(most, time / each))) for each in seconds]

    low, high = 0.0, max(seconds) * (total + 1)
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(done_in(middle)) <= total else (low, middle)
    rows = done_in(low)
    while (left := total - sum(rows)) > 0:
        free = (rank for rank, count in enumerate(rows) if count < most)
        soonest = sorted(free, key=lambda rank: ((rows[rank] + 1) * seconds[rank], rank))
        for rank in soonest[:left]:
            rows[rank] += 1
    return tuple(rows)


# --- measuring and agreeing

EQUAL, MEASURED = "equal", "measured"
FIRST: Final = 8
"""Steps after which the ranks compare their times, at the next commit: after the start of a world, and after a change.
The first steps of a process are slow, and the median leaves them out."""
MOST: Final = 64
"""As long as nothing changes, each comparison comes after twice as many steps as the last, up to this."""


class MeasuredShares:
    """The shares of one sampler or stream. They begin equal in each world, and change at a commit, on all ranks.

    All ranks do the same steps, so they compare their times at the same commits without being told. ``own_time``:
    begins a measurement of this rank's own work.
    """

    def __init__(self, *, limits: Limits = LIMITS, own_time: Callable[[], OwnTime] = OwnTime.begin) -> None:
        self.changes = 0
        """Grows with each change: what is planned with earlier shares is planned anew."""
        self._limits = limits
        self._own_time = own_time
        self._rows: Rows = ()
        """The present shares of a whole global batch. Empty: none was divided in this world."""
        self._steps = 0
        """Steps since the last comparison."""
        self._measured: deque[tuple[OwnTime, int]] = deque(maxlen=MOST)
        """The latest of these steps, and this rank's samples in each."""
        self._every = FIRST

    def __reduce__(self) -> Any:
        """A copy, such as that of a loader process, measures for itself."""
        return MeasuredShares, ()

    def begin_world(self) -> None:
        """Begin with equal shares. All ranks call it: each sync loads the progress of the sampler."""
        self.changes += 1
        self._rows = ()
        standby.current().link.status.share = None
        self._begin_span(FIRST)

    def rows(self, total: int, size: int) -> Rows:
        """Return the shares of a whole global batch of ``total`` samples."""
        if (sum(self._rows), len(self._rows)) != (total, size):
            self._rows = equal(total, size)
            self._begin_span(FIRST)
        return self._rows

    def most(self, total: int, size: int) -> int:
        """Return the most samples that a rank may ever have of ``total``."""
        return bounds(total, size, self._limits)[1]

    def begin_step(self) -> OwnTime:
        """Begin to measure a step, at the request of its first batch."""
        return self._own_time()

    def stepped(self, measured: OwnTime, rows: int) -> None:
        """Note a step with a whole global batch, of which this rank had ``rows`` samples."""
        measured.end()
        self._steps += 1
        if rows:
            self._measured.append((measured, rows))

    def report(self, rank: int) -> None:
        """Let heartbeats report the present share of this rank: the launcher knows then why it does less."""
        alone = len(self._rows) < 2
        standby.current().link.status.share = None if alone else (self._rows[rank], sum(self._rows))

    def agree(self, comms: Comms, *, name: str) -> Mapping[str, Any] | None:
        """Compare the times of all ranks, if that is due. Called on all ranks, after a commit. Return what has changed.

        Raises :data:`~hvd_elastic_ext.worker.comms.PeerLost` if a rank is lost meanwhile.
        """
        if self._steps < self._every or len(self._rows) != comms.size() or comms.size() == 1:
            return None
        times = [took / rows for own, rows in self._measured if (took := own.seconds()) is not None]
        carried = torch.zeros(comms.size(), dtype=torch.float64)
        carried[comms.rank()] = median(times) if times else 0.0
        comms.sum(carried, name=name)  # the others add 0, so all ranks get the same bits
        before, seconds = self._rows, carried.tolist()
        self._rows, reason = decide(seconds, before, self._limits)
        if self._rows == before:
            self._begin_span(min(MOST, 2 * self._every))
            return None
        self.changes += 1
        self._begin_span(FIRST)
        sample_s = [round(each, 9) for each in seconds]
        return {"rows": list(self._rows), "rows_before": list(before), "sample_s": sample_s, "reason": reason}

    def _begin_span(self, every: int) -> None:
        self._steps, self._every = 0, every
        self._measured.clear()


def chosen(shares: object, *, of: str) -> MeasuredShares | None:
    """Return the shares that a user has chosen; None for equal ones. Raises :class:`UsageError` for another value."""
    if shares not in (EQUAL, MEASURED):
        raise UsageError(f'{of}: shares is {shares!r}; give "{EQUAL}" or "{MEASURED}"')
    return MeasuredShares() if shares == MEASURED else None
