"""Shows an error of the script once if it ends several processes with the same text."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.core import errors
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

TRACEBACK_START: Final = "Traceback (most recent call last):"
OWN_ERROR_PREFIX: Final = f"{errors.__name__}."
"""The beginning of the last line of our own errors, which name a mistake and its remedy."""
MAX_HELD_LINES: Final = 100
"""Lines of a traceback that are held back until its last one. Tracebacks of our errors end at the script's own line."""
MAX_HELD_CHARS: Final = 10_000
"""A longer line ends the holding back: what is held has a bound."""


class Repeats:
    """Passes on lines of standard error, without tracebacks of our errors that another process has shown.

    A process that comes to the same error again, as after a restart, shows it again.
    """

    def __init__(self) -> None:
        self._held: dict[ProcessId, list[str]] = {}
        self._shown_by: dict[str, set[Seat]] = {}
        """By traceback, the processes that had it since it was shown."""

    def next(self, life: ProcessId, line: str) -> list[str]:
        """Take a line of a process. Return the lines to show now."""
        if line.startswith(TRACEBACK_START):
            before, self._held[life] = self.rest(life), [line]
            return before
        held = self._held.get(life)
        small = held is not None and len(held) < MAX_HELD_LINES and len(line) < MAX_HELD_CHARS
        if held is not None and small and line.startswith(" "):
            held.append(line)
            return []
        whole = [*self.rest(life), line]
        return [] if line.startswith(OWN_ERROR_PREFIX) and self._repeats(life.seat, "".join(whole)) else whole

    def concerns(self, life: ProcessId, text: str) -> bool:
        """Whether some line of ``text`` may be held back, or end what is held back."""
        return life in self._held or TRACEBACK_START in text or OWN_ERROR_PREFIX in text

    def rest(self, life: ProcessId) -> list[str]:
        """Return the lines held back of a process that has ended."""
        return self._held.pop(life, [])

    def _repeats(self, seat: Seat, text: str) -> bool:
        seats = self._shown_by.setdefault(text, set())
        repeats = bool(seats) and seat not in seats
        if not repeats:
            seats.clear()
        seats.add(seat)
        return repeats
