"""Agrees with other ranks whether to stop, without waiting for the answer.

After each optimizer step every rank starts a tiny reduction, and reads the result of the one before, which has arrived
together with the gradients. So a notice takes effect one check later, at the same step on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_elastic_ext.worker.comms import Comms, PeerLost, Pending

_NAME = "agreement"


class Agreement:
    """One agreed number: the largest that any rank wants; 0 means nothing.

    Every rank steps and asks in the same order. If there is no step between two questions (as in an evaluation), the
    second one waits for a reduction.
    """

    def __init__(self, comms: Comms) -> None:
        self._comms = comms
        self._pending: Pending | None = None
        self._agreed = 0
        self._stepped = False

    def stepped(self, wanted: int) -> None:
        """Note a finished step: read the answer of the step before, and start the next reduction."""
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
        """Start a reduction. If a peer is lost, only ``wait`` raises: at the end of training ranks may leave early."""
        try:
            return self._comms.start_max(wanted, name=_NAME)
        except PeerLost as error:
            return _Lost(error)

    def drop(self) -> None:
        """Note the end of the world: drop the pending reduction without waiting. It may belong to another world."""
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
    """Return whether a host will be gone before the ranks can agree to stop, and why. Times in seconds of one clock.

    Then its work since the last commit is lost. ``next_check``: the expected time of the next check; None if unknown.
    """
    if deadline is None:
        return False, "no host is about to go"
    if now >= deadline:
        return True, f"the deadline passed {now - deadline:.1f} s ago"
    if next_check is not None and next_check > deadline:
        return True, f"the deadline is in {deadline - now:.1f} s, the next check in {next_check - now:.1f} s"
    return False, "the next check comes in time"
