"""Who may not be used for now, and for how long. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

DEFAULT_COOLDOWN_S = (10.0, 300.0)
"""Cooldown range when ``--blacklist-cooldown-range`` is absent. Stock Horovod blocks for ever."""

NOT_STARTED = 125
"""What counts as the exit code of a process that could not be started; an agent ends with it too."""
SSH_FAILED = 255
"""What ssh itself ends with when it could not connect, or lost the connection."""
SIGNALLED = 128
"""Exit codes above this are 128 + the number of the signal that ended the process."""


def cooldown_s(failures: int, limits: tuple[float, float]) -> float:
    """Seconds that a host is blocked after its ``failures``-th failure (counted from 1).

    The first cooldown is the lower limit and each further one twice the one
    before, up to the upper limit: what Horovod's documentation of
    ``--blacklist-cooldown-range`` says. (Its code doubles once more and adds a
    random share, so that its first cooldown is two to three times the
    documented one.)
    """
    if failures < 1:
        raise ValueError("a cooldown follows a failure")
    low, high = limits
    # Doubling stops mattering long before a float overflows.
    return float(min(high, low * 2 ** min(failures - 1, 64)))


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What is held against one host: how often it failed, and until when (mono) it is blocked."""

    failures: int = 0
    blocked_until: float | None = None

    def struck(self, now: float, limits: tuple[float, float]) -> HostRecord:
        """The record after one more failure at ``now``; a host that is blocked already is not struck again."""
        if self.blocked(now):
            return self
        failures = self.failures + 1
        return HostRecord(failures, now + cooldown_s(failures, limits))

    def blocked(self, now: float) -> bool:
        return self.blocked_until is not None and now < self.blocked_until

    def cooled_down(self, now: float) -> bool:
        """True if a block has run out and nobody has taken note of it yet."""
        return self.blocked_until is not None and not self.blocked(now)

    def readmitted(self) -> HostRecord:
        """The record once the host may work again; its failures still count."""
        return replace(self, blocked_until=None)


def exit_cause(code: int, *, told_to_leave: bool) -> str:
    """Say in a word or two why a training process ended, from its exit code as a shell reports it."""
    if told_to_leave:
        return "told to leave"
    if code == 0:
        return "done"
    if code == SSH_FAILED:
        return "unreachable"
    if code > SIGNALLED:
        return f"killed by signal {code - SIGNALLED}"
    return f"crashed with exit code {code}"
