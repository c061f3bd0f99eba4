"""Counts steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch.optim import Optimizer

from hvd_elastic_ext.worker.process.steps import is_preparing

_COUNTER: Final = "_hvd_elastic_counter"


class StepCount:
    """Number of steps that lead to the present state: of an optimizer, else calls of ``commit()``.

    Horovod's optimizer is a generated subclass whose ``step`` calls the original ``step``. torch hooks both, so one
    step of the user calls the hooks twice. Only the outermost call counts.
    """

    def __init__(self, on_step: Callable[[], None]) -> None:
        self.done = 0
        self._on_step = on_step
        self._depth = 0
        self._hooks: list[Any] = []

    def watch(self, optimizer: Optimizer | None) -> None:
        """Count the steps of ``optimizer`` from now on, and of no other."""
        self.forget()
        if optimizer is not None:
            # The optimizer must not keep a replaced State alive, and that State must stop counting.
            earlier = getattr(optimizer, _COUNTER, None)
            if earlier is not None:
                earlier.forget()
            setattr(optimizer, _COUNTER, self)
            self._hooks = [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            ]
        self.between()

    def forget(self) -> None:
        """Count no optimizer's steps."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def between(self) -> None:
        """Note that no step is under way. Needed after a step that raised, because its end was not reported."""
        self._depth = 0

    def _before(self, *_: Any) -> None:
        self._depth += 1

    def _after(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and not is_preparing():
            self.done += 1
            self._on_step()
