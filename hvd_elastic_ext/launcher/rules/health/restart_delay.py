"""How long to wait before a process replaces one that left by itself. Reads no clock: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvd_elastic_ext.launcher.health.ledger import DECAY, cooldown_s
from hvd_elastic_ext.launcher.membership.rendezvous import Seat


@dataclass(slots=True)
class RestartDelays:
    """Delays by seat, as long as cooldowns. They are not faults, so they are not in the ledger. Times are mono."""

    _of: dict[Seat, tuple[int, float]] = field(default_factory=dict)
    """By seat: exits in a row, and when the next process may start."""

    def over(self, seat: Seat, now: float) -> bool:
        """Whether a process may start there."""
        return now >= self._of.get(seat, (0, now))[1]

    def begin(self, seat: Seat, now: float, limits: tuple[float, float]) -> None:
        """A process has left. ``limits``: shortest and longest delay, in seconds."""
        times, until = self._of.get(seat, (0, now))
        # As with strikes, a long run without an exit clears the count.
        times = 1 if not times or now - until > DECAY * cooldown_s(times, limits) else times + 1
        self._of[seat] = (times, now + cooldown_s(times, limits))

    def forget(self, host: str) -> None:
        """Another host has this name now."""
        self._of = {seat: rest for seat, rest in self._of.items() if seat.host != host}
