"""Ranks agree whether to stop, without waiting for the answer.

After each optimizer step every rank starts a tiny reduction, and takes the result of the one before, which arrived long
ago, with the gradients. So a notice takes effect one check later, at the same step on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_elastic_ext.worker.comms import Comms, PeerLost, Pending

_NAME = "agreement"


class Agreement:
    """One number, the largest that any rank wants; 0 is nothing.

    Every rank steps and asks in the same order. If no step lies between two questions (as in an evaluation), the second
    one starts a reduction and waits for it.
    """

    def __init__(self, comms: Comms) -> None:
        self._comms = comms
        self._pending: Pending | None = None
        self._agreed = 0
        self._stepped = False

    def stepped(self, wanted: int) -> None:
        """A step is done: take the last step's answer and start the next reduction."""
        # Clear it first, so that an error is raised only once.
        pending, self._pending = self._pending, None
        if pending is not None:
            self._agreed = max(self._agreed, pending.wait())
        self._pending = self._start(wanted) if self._comms.size() > 1 else None
        self._stepped = True

    def ask(self, wanted: int) -> int:
        """Return the number that the ranks agree on, the same on every rank."""
        if self._comms.size() == 1:
            return wanted
        pending, self._stepped, stepped = self._pending, False, self._stepped
        if not stepped:
            self._pending = None
            now = pending.wait() if pending is not None else self._comms.max(wanted, name=_NAME)
            self._agreed = max(self._agreed, now)
        agreed, self._agreed = self._agreed, 0
        return agreed

    def _start(self, wanted: int) -> Pending:
        """A world that is gone matters if training goes on: the first rank to reach the end may leave at once."""
        try:
            return self._comms.start_max(wanted, name=_NAME)
        except PeerLost as error:
            return _Lost(error)

    def drop(self) -> None:
        """The world ends: drop the pending reduction without waiting, as its answer may belong to another world."""
        self._pending = None
        self._agreed = 0
        self._stepped = False


@dataclass(frozen=True, slots=True)
class _Lost:
    """A reduction that failed to start."""

    error: Exception

    def wait(self) -> int:
        raise self.error


def missed_deadline(now: float, deadline: float | None, *, next_check: float | None) -> tuple[bool, str]:
    """Whether a host will be gone before the ranks can agree to let it go, and why; all in seconds of one clock.

    Such a host leaves with its last commit. ``next_check`` is when the ranks are expected to ask the next time; None if
    that cannot be told.
    """
    if deadline is None:
        return False, "no host is about to go"
    if now >= deadline:
        return True, f"the deadline passed {now - deadline:.1f} s ago"
    if next_check is not None and next_check > deadline:
        return True, f"the deadline is in {deadline - now:.1f} s, the next check in {next_check - now:.1f} s"
    return False, "the next check comes in time"
