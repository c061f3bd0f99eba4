"""The public interface for Keras users: ``import hvd_elastic_ext.keras as elastic``.

    state = elastic.KerasState(model, epoch=0, batch=0)

    @elastic.run
    def train(state):
        model.fit(data, initial_epoch=state.epoch, epochs=EPOCHS, callbacks=[
            elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state),
            elastic.CommitStateCallback(state),
        ])

Names and arguments are those of ``horovod.tensorflow.keras.elastic``. With ``steps_per_epoch``, or data of known
length, an epoch that was interrupted goes on with the batches that are left; Horovod's callbacks repeat it.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from horovod._keras import elastic as _horovods

from hvd_elastic_ext import tensorflow as _tensorflow
from hvd_elastic_ext.tensorflow import *  # noqa: F403 (all of it)
from hvd_elastic_ext.tensorflow import TensorFlowKerasState
from hvd_elastic_ext.worker.data.tensorflow_data import ForFit
from hvd_elastic_ext.worker.patches.keras3 import use_keras2
from hvd_elastic_ext.worker.state.public import no_such_name

__all__ = [
    *_tensorflow.__all__,
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]

use_keras2(sys.modules["horovod.tensorflow.keras"])


class KerasState(TensorFlowKerasState):
    """``TensorFlowKerasState`` by the name that it has in ``horovod.tensorflow.keras.elastic``."""


class CommitStateCallback(_horovods.CommitStateCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the State every ``batches_per_commit`` batches, and at the end of each epoch. Give it after the callbacks
    that count."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__(tf.keras.backend, state, batches_per_commit)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, except after the last batch of an epoch: the commit at its end follows."""
        if self.batches_remaining > 1 or batch + 1 != _steps_left(self):
            super().on_batch_end(batch, logs)


class UpdateBatchStateCallback(_horovods.UpdateBatchStateCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Counts in ``state.batch`` the batches of the present epoch that are done; 0 between two epochs.

    If an epoch was interrupted, :meth:`fit` does only the batches that are left of it, but at least one.
    ``params["steps"]`` of all callbacks is that number in such an epoch. Where Keras does not know the length of an
    epoch, it is as long as the data.
    """

    def __init__(self, state: Any) -> None:
        super().__init__(tf.keras.backend, state)

    def on_train_begin(self, logs: Any = None) -> None:
        """Go on after the batches that are done."""
        self.steps_per_epoch: int | None = None
        self._before = self.state.batch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Shorten the first epoch by the batches that are done; the next ones have their whole length."""
        steps = self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        handler = _data_handler()
        if steps and handler is not None and not isinstance(handler._dataset, ForFit):  # that says itself what is left
            # An epoch may be shorter now than what is done of it, if its length depends on the number of ranks. Keras
            # does not take an epoch of no batch.
            self.params["steps"] = handler._inferred_steps = max(1, steps - self._before)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a batch."""
        self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count from 0 again."""
        self.state.batch = self._before = 0


class UpdateEpochStateCallback(_horovods.UpdateEpochStateCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Counts in ``state.epoch`` the epochs that are done, with ``initial_epoch=state.epoch`` or without it.

    With it, callbacks get the number of an epoch also after an interruption; Horovod's own would count that number
    twice.
    """

    def __init__(self, state: Any) -> None:
        super().__init__(tf.keras.backend, state)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count an epoch."""
        self.state.epoch += 1


def _steps_left(callback: Any) -> int | None:
    """The number of batches of the epoch under way, if Keras knows it."""
    handler = _data_handler()
    steps: int | None = callback.params.get("steps") if handler is None else handler._inferred_steps
    return steps


def _data_handler() -> Any:
    """What feeds the ``fit`` that called the callback. Keras 2, which does not change any more, keeps it in a variable
    of that function, and asks it after each batch whether the epoch is over."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        handler = frame.f_locals.get("data_handler") if frame.f_code.co_name == "fit" else None
        if hasattr(handler, "_inferred_steps"):
            return handler
        frame = frame.f_back
    return None


if not TYPE_CHECKING:  # otherwise type checkers accept every name

    def __getattr__(name: str) -> Any:
        no_such_name(__name__, __all__, name)
