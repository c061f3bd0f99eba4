"""Seats whose process left of its own accord: what follows it at once would most likely leave, too. Pure."""

from __future__ import annotations

from hvd_elastic_ext.launcher.rules.health.ledger import DECAY, cooldown_s
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat


class Rests:
    """Nobody is to blame, so it is not in the ledger; but a rest is as long as a cooldown would be. Times are mono."""

    def __init__(self) -> None:
        self._of: dict[Seat, tuple[int, float]] = {}
        """How often in a row a seat's process has left, and until when nobody follows the last one."""

    def over(self, seat: Seat, now: float) -> bool:
        """Whether a process may be started there."""
        return now >= self._of.get(seat, (0, now))[1]

    def begin(self, seat: Seat, now: float, limits: tuple[float, float]) -> None:
        """A process has left. ``limits``: the shortest and the longest rest, in seconds."""
        times, until = self._of.get(seat, (0, now))
        # It was good for longer than it rested: as with strikes, what was before does not count any more.
        times = 1 if not times or now - until > DECAY * cooldown_s(times, limits) else times + 1
        self._of[seat] = (times, now + cooldown_s(times, limits))

    def forget(self, host: str) -> None:
        """Another host has taken the name."""
        self._of = {seat: rest for seat, rest in self._of.items() if seat.host != host}
