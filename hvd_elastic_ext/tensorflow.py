"""The public interface for TensorFlow users: ``import hvd_elastic_ext.tensorflow as elastic``.

    state = elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0)

    @elastic.run
    def train(state): ...

Names and arguments are those of ``horovod.tensorflow.elastic``. For ``model.fit`` there is ``hvd_elastic_ext.keras``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as _hvd
import tensorflow as tf

from hvd_elastic_ext.core.errors import DataError, ElasticError, StateError, UsageError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms.current_world import local_rank, rank, size, with_horovod
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.tensorflow_data import dataset
from hvd_elastic_ext.worker.parts import tensorflow_parts
from hvd_elastic_ext.worker.patches import horovod_hook
from hvd_elastic_ext.worker.state.mixin import NOT_GIVEN, ElasticMixin, KeywordState
from hvd_elastic_ext.worker.state.public import (
    check_alive,
    heartbeat,
    init,
    load_checkpoint,
    no_such_name,
    on_removed,
    run,
)
from hvd_elastic_ext.worker.state.user_files import Checkpoint

__all__ = [
    "Checkpoint",
    "DataError",
    "ElasticError",
    "ElasticMixin",
    "ElasticSampler",
    "GlobalBatches",
    "StateError",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UsageError",
    "check_alive",
    "dataset",
    "heartbeat",
    "init",
    "load_checkpoint",
    "local_rank",
    "on_removed",
    "rank",
    "run",
    "size",
]

if stock.FRAMEWORK != "tensorflow":
    raise UsageError(
        f"{__name__} comes too late: this process already trains with horovod.torch, and it can be in the world of one "
        "of them only; import this module first, or train with the other framework in another process"
    )
horovod_hook.install()
with_horovod.fence_horovod()


class TensorFlowKerasState(KeywordState, _hvd.elastic.TensorFlowKerasState):  # type: ignore[misc]
    """Horovod's ``TensorFlowKerasState`` with exact commits: a roll-back restores exactly the variables of the model
    and the optimizer, slots included, that were committed or synced.

    ``model``: a built Keras model. ``optimizer``: a Keras optimizer; by default the one that the model is compiled
    with. It is built here, so that a commit before the first step has its slots, too. ``backend`` is ignored. Every
    keyword becomes an attribute, and is kept: also a ``tf.Variable``, what is a ``tf.Module`` (such as a metric), and a
    ``tf.random.Generator``. ``comms``, ``checkpoint``: as in ``TorchState``.

    ``rng``: whether to commit and roll back this rank's random generators: Python's, NumPy's, torch's, and TensorFlow's
    global ``tf.random.Generator`` and those of Keras' layers. Other random operations of TensorFlow keep their state
    where it cannot be read, and go on after a roll-back: ``tf.random.normal`` and its like, shuffles of ``tf.data``,
    and dropout, unless ``tf.keras.backend.experimental.enable_tf_random_generator()`` was called before the model was
    made.

    ``rehearse``: whether a process that joins others calls the training function for one step before, to trace its
    functions while the others train. The State and random generators are put back after it, and nothing is printed;
    what else the function does, such as writing to files or reading from an open stream, it does once more.

    Raises :class:`StateError`, one line, for a value that cannot be committed, and for a mistake in the arguments.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        backend: Any = None,
        *,
        rng: Any = True,
        comms: Any = "auto",
        checkpoint: Any = NOT_GIVEN,
        rehearse: bool = True,
        **kwargs: Any,
    ) -> None:
        _demand_eager(type(self))
        optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        parts: dict[str, Any] = {"model": _model_part(model)}
        if optimizer is not None:
            parts["optimizer"] = _optimizer_part(optimizer, model)
        given = {"model": model, **({} if optimizer is None else {"optimizer": optimizer}), **kwargs}
        self._keep(given, rng=rng, comms=comms, checkpoint=checkpoint, begin=self._begin_values, parts=parts)
        self._rehearses = rehearse

    def _rehearse(self, train: Callable[[], object]) -> None:
        if self._rehearses:
            self._keeper.rehearse(train)

    def _begin_values(self, **values: Any) -> None:
        # Not Horovod's own initialisation: it copies all variables, and broadcasts when it syncs.
        stock.ObjectState.__init__(self, None, None, **values)


class TensorFlowState(KeywordState, _hvd.elastic.TensorFlowState):  # type: ignore[misc]
    """Horovod's ``TensorFlowState`` with exact commits, for a list of variables.

    ``variables``: ``tf.Variable`` objects. Without them there is nothing to keep but the keywords: TensorFlow 2 has no
    list of all variables. The calls of ``commit()`` are the steps. ``session`` is ignored. Further as
    :class:`TensorFlowKerasState`.
    """

    def __init__(
        self,
        variables: Sequence[Any] | None = None,
        session: Any = None,
        *,
        rng: Any = True,
        comms: Any = "auto",
        checkpoint: Any = NOT_GIVEN,
        **kwargs: Any,
    ) -> None:
        _demand_eager(type(self))
        kept = list(variables or ())
        for variable in kept:
            if not isinstance(variable, tf.Variable):
                raise StateError(f"state.variables holds a {type(variable).__name__}; give a list of tf.Variable")
        part = tensorflow_parts.VariablesPart(kept, lambda: kept)
        self._keep(
            {"variables": kept, **kwargs},
            rng=rng, comms=comms, checkpoint=checkpoint, begin=self._begin_values, parts={"variables": part},
        )  # fmt: skip

    def _begin_values(self, **values: Any) -> None:
        stock.ObjectState.__init__(self, None, None, **values)


def _demand_eager(kind: type) -> None:
    if not tf.executing_eagerly():
        raise UsageError(
            f"{kind.__name__}: eager execution is off, as in scripts for TensorFlow 1; such a script resumes by a "
            "checkpoint of its own (docs/frameworks.md)"
        )


def _model_part(model: Any) -> Any:
    part = tensorflow_parts.part_for(model, None)  # type: ignore[arg-type]
    if not isinstance(part, tensorflow_parts.KerasModelPart):
        raise StateError(f"state.model is a {type(model).__name__}; give a model of tf.keras there")
    return part


def _optimizer_part(optimizer: Any, model: Any) -> Any:
    part = tensorflow_parts.part_for(optimizer, None)  # type: ignore[arg-type]
    if not isinstance(part, tensorflow_parts.KerasOptimizerPart):
        raise StateError(f"state.optimizer is a {type(optimizer).__name__}; give an optimizer of tf.keras there")
    tensorflow_parts.build(optimizer, model)
    return part


if not TYPE_CHECKING:  # otherwise type checkers accept every name

    def __getattr__(name: str) -> Any:
        no_such_name(__name__, __all__, name)
