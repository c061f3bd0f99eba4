"""Shares of a global batch that follow the measured speed of each rank, for ranks on unlike hosts.

:func:`decide` is the decision, the same on all ranks: ``(measured seconds, present shares, limits) -> (shares,
reason)``. :class:`MeasuredShares` measures this rank's steps, and :func:`agree` lets the ranks compare at a commit.

In synchronous training all steps take the same time, because the fast ranks wait for the slow one. So a step is
measured from the request of its first batch to the end of its last backward pass, less waits for other ranks
(:class:`~hvd_elastic_ext.worker.optim.step_waits.OwnTime`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
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
    unknown = [rank for rank, each in enumerate(seconds) if not _known(each)]
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


def pace(seconds: Sequence[Sequence[float]], samples: Sequence[int]) -> tuple[float, ...]:
    """Return how much time each rank takes, beside the mean of all: one speed for all samplers of a State. Empty: that
    is not known.

    ``seconds``: by sampler, what each rank takes for one sample; 0 if that is not known. ``samples``: how many each
    sampler has given. A rank's time is that for all of them.
    """
    known = [(each, count) for each, count in zip(seconds, samples, strict=True) if all(map(_known, each))]
    taken = [sum(times) for times in zip(*([one * count for one in each] for each, count in known), strict=True)]
    return tuple(each / fmean(taken) for each in taken)


def _known(seconds: float) -> bool:
    return 0.0 < seconds < math.inf


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
_NOMINAL: Final = 1024
"""The samples of each rank in the global batch by which a sampler follows others that has given none yet."""
MOST: Final = 64
"""As long as nothing changes, each comparison comes after twice as many steps as the last, up to this."""


class MeasuredShares:
    """The shares of one sampler or stream, for global batches of any size. They begin equal in each world, and change
    at a commit, on all ranks.

    ``own_time``: begins a measurement of this rank's own work.
    """

    def __init__(self, *, limits: Limits = LIMITS, own_time: Callable[[], OwnTime] = OwnTime.begin) -> None:
        self.changes = 0
        """Grows with each change: what is planned with earlier shares is planned anew."""
        self._limits = limits
        self._own_time = own_time
        self._seconds: tuple[float, ...] = ()
        """What each rank takes for a sample, as all have agreed. Empty: shares are equal."""
        self._rows: dict[tuple[int, int], Rows] = {}
        """The shares by that, by samples of a global batch and number of ranks."""
        self._total = 0
        """The samples of the latest whole global batch in this world. 0: there was none."""
        self._usual: float | None = None
        """What a rank takes for a sample in the mean, when it was last known."""
        self.steps = 0
        """Steps since the last comparison."""
        self.samples = 0
        """Samples of all ranks in these steps."""
        self._measured: deque[tuple[OwnTime, int]] = deque(maxlen=MOST)
        """The latest of these steps, and this rank's samples in each."""
        self.every = FIRST
        """Steps from the last comparison to the next one."""

    def __reduce__(self) -> Any:
        """A copy, such as that of a loader process, measures for itself."""
        return MeasuredShares, ()

    def begin_world(self) -> None:
        """Begin with equal shares. All ranks call it: each sync loads the progress of the sampler."""
        self._follow(())
        self._total, self._usual = 0, None
        standby.current().link.status.share = None
        self.begin_span(FIRST)

    def rows(self, total: int, size: int) -> Rows:
        """Return the shares of a whole global batch of ``total`` samples."""
        if total < size or len(self._seconds) != size:
            return equal(total, size)
        if (total, size) not in self._rows:
            self._rows[total, size] = _fastest(self._seconds, total, bounds(total, size, self._limits))
        return self._rows[total, size]

    def most(self, total: int, size: int) -> int:
        """Return the most samples that a rank may ever have of ``total``."""
        return bounds(total, size, self._limits)[1]

    def begin_step(self) -> OwnTime:
        """Begin to measure a step, at the request of its first batch."""
        return self._own_time()

    def stepped(self, measured: OwnTime, rows: int, *, total: int) -> None:
        """Note a step with a whole global batch of ``total`` samples, of which this rank had ``rows``."""
        measured.end()
        self._total = total
        self.steps += 1
        self.samples += total
        if rows:
            self._measured.append((measured, rows))

    def report(self, rows: Rows, rank: int) -> None:
        """Let heartbeats report the present share of this rank: the launcher knows then why it does less."""
        standby.current().link.status.share = None if len(rows) < 2 else (rows[rank], sum(rows))

    def sample_s(self) -> float:
        """Return what this rank takes for a sample, by the steps since the last comparison; 0 if that is not known."""
        times = [took / rows for own, rows in self._measured if (took := own.seconds()) is not None]
        return median(times) if times else 0.0

    def compared(self, paces: Sequence[float], seconds: Sequence[float] | None) -> Mapping[str, Any] | None:
        """Take what all ranks have agreed on, and return what has changed: the fields of the event.

        ``paces``: see :func:`pace`. ``seconds``: what each rank takes for a sample of this sampler; None if it was not
        used.
        """
        if seconds is not None and all(map(_known, seconds)):
            self._usual = fmean(seconds)
        if not self._total:
            usual = self.rows(_NOMINAL * len(paces), len(paces))
            if decide(paces, usual, self._limits)[0] != usual:  # else it would follow noise once it is used
                self._follow(tuple(paces))
            return None
        if self._usual is None:
            return None
        sample_s = tuple(self._usual * each for each in paces)
        before = self.rows(self._total, len(paces))
        rows, reason = decide(sample_s, before, self._limits)
        if rows == before:
            return None
        self._follow(sample_s)
        sample_s = tuple(round(each, 9) for each in sample_s)
        return {"rows": list(rows), "rows_before": list(before), "sample_s": list(sample_s), "reason": reason}

    def begin_span(self, every: int) -> None:
        """Count the steps to the next comparison."""
        self.steps, self.samples, self.every = 0, 0, every
        self._measured.clear()

    def _follow(self, seconds: tuple[float, ...]) -> None:
        self.changes += 1
        self._seconds = seconds
        self._rows.clear()


def agree(measured: Mapping[str, MeasuredShares], comms: Comms) -> Mapping[str, Mapping[str, Any]]:
    """Compare the times of all ranks, if that is due. Called on all ranks, after a commit, with all samplers of the
    State: all of them follow one measured speed. Return what has changed, by sampler.

    All ranks do the same steps, so they compare at the same commits without being told. Raises
    :data:`~hvd_elastic_ext.worker.comms.PeerLost` if a rank is lost meanwhile.
    """
    size = comms.size()
    if size == 1 or all(each.steps < each.every for each in measured.values()):
        return {}
    used = {name: each for name, each in measured.items() if each.steps}
    carried = torch.zeros(len(used), size, dtype=torch.float64)
    carried[:, comms.rank()] = torch.tensor([each.sample_s() for each in used.values()], dtype=torch.float64)
    comms.sum(carried, name="shares")  # the others add 0, so all ranks get the same bits
    seconds = dict(zip(used, carried.tolist(), strict=True))
    paces = pace(list(seconds.values()), [each.samples for each in used.values()])
    found = {name: each.compared(paces, seconds.get(name)) for name, each in measured.items()} if paces else {}
    changed = {name: fields for name, fields in found.items() if fields is not None}
    every = FIRST if changed else min(MOST, 2 * max(each.every for each in measured.values()))
    for each in measured.values():
        each.begin_span(every)
    return changed


def chosen(shares: object, *, of: str) -> MeasuredShares | None:
    """Return the shares that a user has chosen; None for equal ones. Raises :class:`UsageError` for another value."""
    if shares not in (EQUAL, MEASURED):
        raise UsageError(f'{of}: shares is {shares!r}; give "{EQUAL}" or "{MEASURED}"')
    return MeasuredShares() if shares == MEASURED else None
