"""Decides when this process's world ends for a change of hosts, from this rank's notices and the agreement of all
ranks.

The ranks agree without waiting for the answer. After an optimizer step every rank starts a tiny reduction, and reads
its result after the next step, when it has arrived together with the gradients. So a notice takes effect one check
later, at the same step on every rank.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.worker.comms import Comms, Finished, PeerLost, Pending
from hvd_elastic_ext.worker.sync.commit_interval import CommitSchedule
from hvd_elastic_ext.worker.sync.host_updates import Inbox
from hvd_elastic_ext.worker.sync.training_alone import TrainingAlone

log = logging.getLogger(__name__)


UNCHECKED_S: Final = 30.0
"""Seconds of steps without a check after which a warning is logged."""


class Stopping:
    """Follows the worlds of one State: a sync enters a world, each check asks whether it ends, and all ranks leave it
    together, or after a loss.

    ``record`` writes a line of the journal.
    """

    def __init__(
        self, comms: Comms, clock: Clock, schedule: CommitSchedule, record: Callable[..., None] = lambda *_, **__: None
    ) -> None:
        self.inbox = Inbox()
        self._schedule = schedule
        self._comms = comms
        self._clock = clock
        self._agreement = Agreement(comms)
        self._alone = TrainingAlone(comms, clock, record)
        self._in_world = False
        self._due = False
        self._deferred: int | None = None
        self._next_check: float | None = None
        self._checked_at: float | None = None
        self._missed: float | None = None
        self._unchecked_since: float | None = None

    def follow(self, schedule: CommitSchedule) -> None:
        """Use another schedule from now on."""
        self._schedule = schedule

    def enter(self) -> None:
        """Note a finished sync: from now on, steps carry the agreement."""
        self._in_world = True

    def stepped(self) -> None:
        """Note a finished optimizer step."""
        if self._in_world:
            self._agreement.stepped(self._wanted())
            self._alone.stepped()
            if self._checked_at is None:
                self._warn_of_no_check()

    def counted(self, steps: int) -> None:
        """Note steps that an optimizer has counted itself."""
        if self._in_world:
            self._alone.stepped(steps)

    def due(self) -> bool:
        """Return whether the world must end. The answer is the same on all ranks, and stays True until they leave."""
        self._note_check()
        self._due = self._schedule.agreed(self._agreement.ask(self._wanted())) or self._due
        return self._due

    def asked_here(self) -> bool:
        """Note a check of ranks that do not agree at each step, and return whether this one has a notice."""
        self._note_check()
        return self.inbox.pending > 0

    def _wanted(self) -> int:
        return self._schedule.wanted(stop=self.inbox.pending > 0)

    def may_wait(self, *, step: int) -> bool:
        """Return whether to finish the present step first. False in a later step: the script has no other check."""
        if self._deferred is None:
            self._deferred = step
        return self._deferred == step

    def newly_missed(self) -> str | None:
        """Return why a host will be gone before the next check; None if no host will, or if it was returned before."""
        deadline = self.inbox.deadline
        if deadline is None:
            return None
        missed, reason = missed_deadline(self._clock.mono(), deadline, next_check=self._next_check)
        if not missed or self._missed == deadline:
            return None
        self._missed = deadline
        return reason

    def wait_for_all(self) -> None:
        """Wait until every rank is about to leave. A rank that leaves earlier breaks the last step of the others.

        Raises ``HorovodInternalError`` if one is lost meanwhile.
        """
        self._comms.max(0, name="leaving")

    def leave(self) -> None:
        """Note the end of the world: the next one covers all notices so far. Drop pending reductions, do not wait."""
        self.inbox.leave()
        self.drop()

    def training_ended(self) -> None:
        """Note that the training function has returned, in a world that is still whole."""
        self._alone.training_ended()

    def drop(self) -> None:
        """Drop pending reductions and answers, but keep the notices."""
        self._agreement.drop()
        self._alone.world_ended()
        self._in_world = self._due = False
        self._deferred = None
        self._schedule.reset()

    def _warn_of_no_check(self) -> None:
        """Warn once that nothing has been committed since training began."""
        now = self._clock.mono()
        if self._unchecked_since is None:
            self._unchecked_since = now
        elif now - self._unchecked_since > UNCHECKED_S:
            self._unchecked_since = math.inf  # warn only once
            if self._comms.rank() == 0:
                log.warning(
                    "no state.commit() in the first %.0f s of training: a failure loses all steps since the last one, "
                    "and changes of hosts wait for the next; call it after each step, or every few steps", UNCHECKED_S
                )  # fmt: skip

    def _note_check(self) -> None:
        now = self._clock.mono()
        if self._checked_at is not None:
            self._next_check = now + (now - self._checked_at)
        self._checked_at = now


# --- the agreement of all ranks


_NAME = "agreement"


SPAN_S: Final = 0.05
"""Time in which the ranks agree once, where a reduction is a cost of its own. A notice waits longer only if steps have
just become longer."""
LONGEST: Final = 4
"""Most steps from one reduction to the next are 2 to the power of this: steps may become longer at any time."""
MEASURED: Final = 8
"""Steps whose mean length counts. Before, each step has its reduction."""


class Agreement:
    """One agreed number: the largest that any rank wants; 0 means nothing.

    Every rank steps and asks in the same order. If there is no step between two questions (as in an evaluation), the
    second one waits for a reduction.

    Under Horovod a reduction rides along with the gradients, and each step has one. Elsewhere it costs half a
    millisecond in each of two steps, so of short steps every second, fourth, … has one: as many share it as fit into
    :data:`SPAN_S` on the rank with the longest steps. Each reduction carries the ranks' proposals for the next one.
    """

    def __init__(self, comms: Comms, now: Callable[[], float] = time.perf_counter) -> None:
        self._comms = comms
        self._now = now
        self._pending: Pending | None = None
        self._agreed = 0
        self._stepped = False
        self._every = 1
        """Steps from one reduction to the next."""
        self._since = 0
        """Steps since the last one began."""
        self._times: deque[float] = deque(maxlen=MEASURED + 1)
        """When the last steps ended."""

    def stepped(self, wanted: int) -> None:
        """Note a finished step: read the answer of the step before, and start the next reduction if it is due."""
        # Clear it first, so that an error is raised only once.
        pending, self._pending = self._pending, None
        if pending is not None:
            self._read(pending.wait())
        self._stepped = True
        self._since += 1
        if self._comms.size() > 1:
            self._times.append(self._now())
            if self._since >= self._every:
                self._pending, self._since = self._start(wanted), 0
                if isinstance(self._pending, Finished):  # the library has waited for it
                    self._read(self._pending.wait())
                    self._pending = None

    def ask(self, wanted: int) -> int:
        """Return the number that the ranks agree on, the same on every rank."""
        if self._comms.size() == 1:
            return wanted
        pending, self._stepped, stepped = self._pending, False, self._stepped
        if not stepped:
            self._pending = None
            self._read(pending.wait() if pending is not None else self._comms.max(self._packed(wanted), name=_NAME))
        agreed, self._agreed = self._agreed, 0
        return agreed

    def _packed(self, wanted: int) -> int:
        """Both in one number. The maximum over all ranks has the largest ``wanted`` and, of the ranks that want that,
        the shortest distance to the next reduction.
        """
        return wanted << 6 | 63 - self._proposed()

    def _read(self, packed: int) -> None:
        self._agreed = max(self._agreed, packed >> 6)
        self._every = 1 << 63 - (packed & 63)

    def _proposed(self) -> int:
        """To which power of 2 the distance to the next reduction should be, by this rank's steps."""
        if self._comms.rides_along or len(self._times) <= MEASURED:
            return 0
        step_s = (self._times[-1] - self._times[0]) / MEASURED
        return next(power for power in range(LONGEST, -1, -1) if power == 0 or step_s * 2**power <= SPAN_S)

    def _start(self, wanted: int) -> Pending:
        """Start a reduction. If a peer is lost, only ``wait`` raises: at the end of training ranks may leave early."""
        try:
            return self._comms.start_max(self._packed(wanted), name=_NAME)
        except PeerLost as error:
            return _Lost(error)

    def drop(self) -> None:
        """Note the end of the world: drop the pending reduction without waiting. It may belong to another world."""
        self._pending = None
        self._agreed = self._since = 0
        self._every = 1
        self._stepped = False
        self._times.clear()


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
