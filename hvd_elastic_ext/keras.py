"""The public interface for Keras users: ``import hvd_elastic_ext.keras as elastic``.

    state = elastic.KerasState(model, epoch=0, batch=0)

    @elastic.run
    def train(state):
        model.fit(data, epochs=EPOCHS - state.epoch, callbacks=[
            elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state),
            elastic.CommitStateCallback(state),
        ])

Names and arguments are those of ``horovod.tensorflow.keras.elastic``. The callbacks are Horovod's: they count in the
State, and commit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.tensorflow.keras.elastic import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)

from hvd_elastic_ext import tensorflow as _tensorflow
from hvd_elastic_ext.tensorflow import *  # noqa: F403 (all of it)
from hvd_elastic_ext.tensorflow import TensorFlowKerasState
from hvd_elastic_ext.worker.state.public import no_such_name

__all__ = [
    *_tensorflow.__all__,
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class KerasState(TensorFlowKerasState):
    """``TensorFlowKerasState`` by the name that it has in ``horovod.tensorflow.keras.elastic``."""


if not TYPE_CHECKING:  # otherwise type checkers accept every name

    def __getattr__(name: str) -> Any:
        no_such_name(__name__, __all__, name)
