"""What simulated processes run: a prologue, and one training call or several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Program:
    """A script. Without changes, it has no prologue and one training call: processes park at their training loop.

    ``steps``: of each training call except the last one, which trains until training is done. ``between_s``: from the
    end of a call to the begin of the next one.

    ``prologue_s``: from ``hvd.init()`` to the training loop; None: processes do not park in ``hvd.init()``.
    ``quiet``: no collective in the prologue: a lost peer is noticed in the loop.

    Several calls need :attr:`Times.every_step`.
    """

    steps: tuple[int, ...] = ()
    between_s: float = 0.1
    prologue_s: float | None = None
    quiet: bool = False

    def steps_of(self, call: int) -> int | None:
        """How many steps a training call has; None: it is the last one."""
        return self.steps[call - 1] if call <= len(self.steps) else None
