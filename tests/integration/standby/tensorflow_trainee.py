"""A training script for TensorFlow. ``KIND``: of its State. Each making of its graph is a line of the file ``TRACES``:
process, and size of Horovod's world. ``LOOP``: ours or stock. It ends when the file ``STOP`` exists, and fails when
``FAILS`` does.
"""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.elastic import State
from horovod.tensorflow import mpi_ops

KIND = os.environ.get("KIND", "ours")
if KIND == "unmodified":
    elastic: Any = hvd.elastic
else:
    import hvd_elastic_ext.tensorflow as elastic

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
print("before init", flush=True)
hvd.init()
print(
    "built as",
    *(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()),
    flush=True,
)
if hvd.rank() == 0:
    print("rank 0 branch", flush=True)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, kernel_initializer="ones")])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)


class Users(State):
    """A user's State, with Horovod's collectives in its ``sync``."""

    def __init__(self, model: Any, optimizer: Any, **given: Any) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.model, self.optimizer = model, optimizer
        self.step = given["step"]
        self.save()

    def save(self) -> None:
        variables = [*self.model.variables, *self.optimizer.variables]
        self.saved = copy.deepcopy(([variable.numpy() for variable in variables], self.step))

    def restore(self) -> None:
        arrays, self.step = copy.deepcopy(self.saved)
        for variable, array in zip([*self.model.variables, *self.optimizer.variables], arrays, strict=True):
            variable.assign(array)

    def sync(self) -> None:
        hvd.broadcast_variables([*self.model.variables, *self.optimizer.variables], root_rank=0)
        self.step = hvd.broadcast_object(self.step, root_rank=0)
        self.save()


def over(old: type) -> Any:
    return type(f"Over{old.__name__}", (elastic.ElasticMixin, old), {})


make = {
    "ours": lambda: elastic.TensorFlowKerasState,
    "over_horovods": lambda: over(hvd.elastic.TensorFlowKerasState),
    "over_users": lambda: over(Users),
    "unmodified": lambda: hvd.elastic.TensorFlowKerasState,
}[KIND]()
state = make(model, optimizer, step=0)


def label() -> int:
    """Runs as Python within the graph."""
    if os.path.exists(os.environ["FAILS"]):
        raise RuntimeError("there is no such label")
    return 0


@tf.function
def train_step(number: Any, stops: Any) -> Any:
    with open(os.environ["TRACES"], "a") as file:
        file.write(f"{os.getpid()} {mpi_ops.size()}\n")
    tf.numpy_function(label, [], tf.int64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(tf.ones((2, 4)) * number) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return hvd.allreduce(stops, op=hvd.Max, name="stops")


@(hvd.elastic.run if os.environ.get("LOOP") == "stock" else elastic.run)
def train(state: Any) -> str:
    while True:
        stops = train_step(tf.constant(float(state.step % 7)), tf.constant(float(os.path.exists(os.environ["STOP"]))))
        state.step += 1
        print("step", state.step, "rank", hvd.rank(), "size", hvd.size(), flush=True)
        if stops:
            return "trained"
        time.sleep(0.02)
        if state.step % 10 == 0:
            state.commit()
            if KIND != "unmodified":
                print("committed", state.step, state.fingerprint(), flush=True)
        else:
            state.check_host_updates()


print(train(state), flush=True)
