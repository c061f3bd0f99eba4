"""Detects ranks of one world that each train alone: no operation averages their gradients, and no error occurs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms import Comms

log = logging.getLogger(__name__)

STEPS: Final = 100
"""Steps without a collective operation before the warning. Scripts that average their weights only sometimes do so
after some tens of steps."""
SECONDS: Final = 30.0
"""Seconds without one before the warning. Of steps shorter than 0.3 s, such scripts may do more than :data:`STEPS`."""
FEW_STEPS: Final = 20
"""Fewest steps of a training that ends before its first window, for which it is still judged."""


class _Window(NamedTuple):
    """Steps that are looked at together."""

    at: float
    """When it began."""
    begun: int | None
    """The number of collectives that the script had begun by then; None if they are not counted."""


REMEDIES: Final = (
    "wrap the optimizer with hvd.DistributedOptimizer or elastic.wrap, or under torch.distributed the model with "
    "DistributedDataParallel",
    "wrap the optimizer with hvd.DistributedOptimizer, or the tape with hvd.DistributedGradientTape",
)
"""What to do: with torch, and with TensorFlow."""
EVENT: Final = "trains_alone"
"""The event's name in the journal."""


class TrainingAlone:
    """Warns once if the ranks train alone: they do steps, and begin no collective operation of their own.

    It reads a count of collectives at the beginning and the end of each window of :data:`STEPS` and :data:`SECONDS`;
    steps in between are only counted. If a training ends before its first window, it is judged at its end. ``record``
    writes :data:`EVENT` into the journal. If the script averages something later, such as a loss at the end of an
    epoch, the warning stays.
    """

    def __init__(self, comms: Comms, clock: Clock, record: Callable[..., None]) -> None:
        self._comms = comms
        self._clock = clock
        self._record = record
        self._window: _Window | None = None
        self._steps = 0
        self._judged = False
        """Whether a window of the present world is over."""
        self._warned = False

    def world_ended(self) -> None:
        """Note the end of a world: drop its counts."""
        self._window, self._steps, self._judged = None, 0, False

    def training_ended(self) -> None:
        """Note the end of training: judge a training that was too short for a whole window."""
        if self._warned or self._judged or self._window is None or self._steps < FEW_STEPS:
            return
        if self._window.begun is not None and self._window.begun == self._comms.begun_by_script():
            self._tell(self._clock.mono() - self._window.at)

    def stepped(self, steps: int = 1) -> None:
        """Note finished optimizer steps of the present world."""
        self._steps += steps
        if self._warned or (self._window is not None and self._steps < STEPS):
            return
        now = self._clock.mono()
        if self._window is not None and now - self._window.at < SECONDS:
            return
        before, self._steps = self._window, 0
        self._judged = before is not None
        self._window = _Window(now, self._comms.begun_by_script())
        if before is not None and before.begun is not None and before.begun == self._window.begun:
            self._tell(now - before.at)

    def _tell(self, seconds: float) -> None:
        size = self._comms.size()
        if size == 1:
            return
        self._warned = True
        if self._comms.rank() > 0:
            return
        log.warning(
            "each of the %d ranks trains alone: nothing was averaged over them for %.0f s; %s (a script that averages "
            "its weights less often can ignore this)",
            size,
            seconds,
            REMEDIES[stock.FRAMEWORK == "tensorflow"],
        )
        self._record(EVENT, size=size, rank=0, reason=f"nothing was averaged over the {size} ranks for {seconds:.0f} s")
