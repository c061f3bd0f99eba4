"""What seals were seen to cost a running job, how often something failed, and so how often one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.launcher.rules.checkpoints import interval
from hvd_elastic_ext.launcher.rules.checkpoints.failure_rate import Failures
from hvd_elastic_ext.launcher.rules.checkpoints.interval import Choice, Seal
from hvd_elastic_ext.launcher.rules.checkpoints.slowdown import UNKNOWN, Slowing
from hvd_elastic_ext.launcher.state.context import Station

FIRST_S: Final = 5.0
"""How long a commit is thought to take to become durable before any has."""


class Estimate:
    """See the module's docstring. ``auto``: the interval is chosen by it, and the journal told of that."""

    def __init__(self, station: Station, *, auto: bool) -> None:
        self._station = station
        self._auto = auto
        self._failures = Failures()
        self._watched_from = station.now()
        self._choice: Choice = interval.UNMEASURED
        self._seals: list[Seal] = []
        self.slowing = Slowing()

    @property
    def interval_s(self) -> float:
        """From the start of one seal to that of the next."""
        return self._choice.seconds

    @property
    def durable_s(self) -> float:
        """How long a commit took to become durable, the last time; a guess at first."""
        return self._seals[-1].durable_s if self._seals else FIRST_S

    def began_with(self, facts: Mapping[str, Any]) -> None:
        """Training goes on from a checkpoint at whose seal ``facts`` were noted: see :meth:`facts`.

        Unless the job was told to end with it, something has cost every commit in memory since then: such failures
        are what checkpoints are for.
        """
        known = Failures.of(facts.get("failures"))
        self._failures = known if facts.get("ended") is True else known.failed()
        self._watched_from = self._station.now()

    def facts(self, *, ended: bool) -> dict[str, Any]:
        """What is noted at a seal. ``ended``: with its commit the job ends, or sleeps."""
        return {"failures": self._watched().told(), "ended": ended}

    def sealed(self, durable_s: float, slowed: float | None, *, stall_s: float = 0.0) -> None:
        """A seal has taken so long, and made steps slower by that share (None: that could not be measured).

        ``stall_s``: seconds of it in which training stood still.
        """
        usual = self._seals[-1].slowed if self._seals else UNKNOWN
        seal = Seal(stall_s, durable_s, usual if slowed is None else slowed)
        self._seals = [*self._seals[1 - interval.LATEST :], seal]
        if self._auto:
            self._choose()

    def _choose(self) -> None:
        before = self._choice
        self._choice = interval.checkpoint_interval(self._seals, self._watched().rate(), before=before)
        if self._choice is not before:
            reason = f"checkpoints every {self._choice.seconds:.3g} s: {self._choice.reason}"
            self._station.record("interval", seconds=round(self._choice.seconds, 3), reason=reason)

    def _watched(self) -> Failures:
        now = self._station.now()
        watched, self._watched_from = self._failures.watched(now - self._watched_from), now
        self._failures = watched
        return watched
