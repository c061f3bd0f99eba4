"""The rehearsal of a first step: a newcomer traces its functions before the others wait for it.

TensorFlow makes the graph of a function at its first call, which takes seconds. Without a rehearsal a newcomer does so
in the new world, where all others wait for its gradients. Before it joins, Horovod has a world of one here, and its
operations ask for the size when they run: so the training function is called, until it has done one step or commits,
and everything that the State keeps is put back. What it prints meanwhile is not shown.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

from hvd_elastic_ext.worker.process import standby

log = logging.getLogger(__name__)


class RehearsalOver(BaseException):
    """Ends the training function after its first step. Not an ``Exception``, which a script may catch."""


class Rehearsal:
    """Whether a rehearsal is under way in this process, and whether its step is done."""

    def __init__(self) -> None:
        self._steps: Callable[[], int] | None = None
        self._before = 0

    @property
    def runs(self) -> bool:
        """Whether one is under way."""
        return self._steps is not None

    def end_if_stepped(self) -> None:
        """End it, if a step is done."""
        if self._steps is not None and self._steps() > self._before:
            raise RehearsalOver

    def end(self) -> None:
        """End it, if it is under way: the training function commits, or asks for changes."""
        if self._steps is not None:
            raise RehearsalOver

    def run(self, train: Callable[[], object], *, steps: Callable[[], int]) -> None:
        """Call ``train`` until a step is done, by the count that ``steps`` returns. Its errors are logged, and come
        again when it trains."""
        self._steps, self._before = steps, steps()
        try:
            quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
            with quiet[0], quiet[1], _watched(self.end_if_stepped):
                train()
        except RehearsalOver:
            pass
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the script's own, which comes again in training)
            log.info("the rehearsal of a step ended early: %s: %s", type(error).__name__, error)
        finally:
            self._steps = None


def is_due() -> bool:
    """Whether this process is about to join others that train, and is in a world of its own until then."""
    process = standby.current()
    return process.parks and process.goes_alone


@contextlib.contextmanager
def _watched(stepped: Callable[[], None]) -> Iterator[None]:
    """Call ``stepped`` after each call of a function with a graph, and each ``apply_gradients`` outside of one."""
    import tensorflow as tf

    # The class of what tf.function returns has a place of its own in each version.
    kinds: list[tuple[Any, str]] = [(type(tf.function(lambda: None)), "__call__")]
    kinds += [(kind, "apply_gradients") for kind in _optimizer_classes(tf) if "apply_gradients" in vars(kind)]
    originals = [(kind, name, vars(kind)[name]) for kind, name in kinds]
    depth = [0]

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                result = original(*args, **kwargs)
            finally:
                depth[0] -= 1
            if depth[0] == 0 and tf.executing_eagerly():
                stepped()
            return result

        return called

    for kind, name, original in originals:
        setattr(kind, name, watching(original))
    try:
        yield
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def _optimizer_classes(tf: Any) -> set[Any]:
    found = set[Any]()
    for kind in (tf.keras.optimizers.Optimizer, getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers).Optimizer):
        found.update(base for base in kind.__mro__ if base is not object)
    return found
