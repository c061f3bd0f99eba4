"""A learning rate that follows the number of ranks, for scripts whose global batch grows with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, get_args

from torch import Tensor
from torch.optim import Optimizer

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world

Rule = Literal["linear", "sqrt", "none"]


def lr_factor(rule: Rule, *, size: int, base: float) -> float:
    """Return the factor for a learning rate that was chosen for ``base`` ranks.

    Raises :class:`UsageError` for an unknown rule or a base that is not positive.
    """
    if rule not in _FACTORS:
        raise UsageError(f"learning-rate rule {rule!r}: no such rule; choose {', '.join(get_args(Rule))}")
    if base <= 0:
        raise UsageError(f"the learning rate's base is {base} ranks; it must be positive")
    return _FACTORS[rule](size / base)


_FACTORS: Final[dict[str, Callable[[float], float]]] = {"linear": float, "sqrt": math.sqrt, "none": lambda _: 1.0}
KEY: Final = "hvd_elastic_lr_factor"
"""Key of the present factor in each parameter group. So it is committed, rolled back and synced with the group."""
_RATES: Final = ("lr", "initial_lr", "max_lr", "min_lr")


class ScaledLearningRate:
    """Keeps an optimizer's rates at their initial values times the rule's factor for the present world.

    The initial rates are those for ``base`` ranks. A call applies the rule; a second call changes nothing. The
    constructor applies it, too. Register it as a reset callback, and also call it at the start of the training
    function, for newcomers and for states of another world.

    ``scheduler``: the scheduler of this optimizer, if there is one; create it before this object. Raises
    :class:`UsageError` for an unknown rule or base, and for a scheduler of another optimizer.
    """

    def __init__(self, optimizer: Optimizer, rule: Rule = "linear", *, base: float, scheduler: Any = None) -> None:
        for steering in _schedulers(scheduler):
            if getattr(steering, "optimizer", optimizer) is not optimizer:
                # They share their groups only until one of them loads a state.
                raise UsageError(
                    f"ScaledLearningRate: {type(steering).__name__} steers another optimizer object; "
                    "wrap the optimizer first (hvd.DistributedOptimizer), then give the wrapped one to both"
                )
        self.optimizer = optimizer
        self.rule = rule
        self.base = base
        self.scheduler = scheduler
        # The scheduler keeps these rates itself, with the factor in them; remember them without it.
        present = [group.get(KEY, 1.0) for group in optimizer.param_groups]
        self._peaks = [
            (peaked, [peak / factor for peak, factor in zip(peaked.max_lrs, present, strict=True)])
            for peaked in _schedulers(scheduler)
            if hasattr(peaked, "max_lrs")
        ]
        self()

    def world(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks."""
        return current_world.current()

    def __call__(self) -> None:
        wanted = lr_factor(self.rule, size=self.world()[1], base=self.base)
        for group in self.optimizer.param_groups:
            present = group.get(KEY, 1.0)
            if present != wanted:
                for name in _RATES:
                    if name in group:
                        group[name] = _times(group[name], wanted / present)
                group[KEY] = wanted
        for scheduler in _schedulers(self.scheduler):
            _follow(scheduler, self.optimizer.param_groups)
        for peaked, peaks in self._peaks:
            peaked.max_lrs = [peak * wanted for peak in peaks]


def _times(rate: Any, ratio: float) -> Any:
    # A tensor rate may be part of a captured graph: change it in place.
    return rate.mul_(ratio) if isinstance(rate, Tensor) else rate * ratio


def _schedulers(scheduler: Any) -> Iterator[Any]:
    """Yield the scheduler and its inner schedulers."""
    if scheduler is not None:
        yield scheduler
        for inner in getattr(scheduler, "_schedulers", ()):
            yield from _schedulers(inner)


def _follow(scheduler: Any, groups: list[dict[str, Any]]) -> None:
    """Set the scheduler's base rates to the groups' initial ones."""
    if hasattr(scheduler, "base_lrs") and all("initial_lr" in group for group in groups):
        scheduler.base_lrs = [_plain(group["initial_lr"]) for group in groups]
    if hasattr(scheduler, "_last_lr"):
        scheduler._last_lr = [_plain(group["lr"]) for group in groups]


def _plain(rate: Any) -> Any:
    return rate.clone() if isinstance(rate, Tensor) else rate
