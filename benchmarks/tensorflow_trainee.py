"""Horovod's elastic examples for TensorFlow 2 and Keras, made smaller; the same for stock Horovod and for ours.

    tensorflow_trainee.py SIDE loop|fit STAMPS SECONDS

Each step adds a line to STAMPS; see ``benchmarks/steps.py``. Each step pauses for 20 ms.
"""

import importlib
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

SIDE, KIND, STAMPS, LIMIT_S = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
PAUSE_S = 0.02
COMMIT_EVERY = 5
EPOCH = 100
ENDLESS = 100_000

hvd = importlib.import_module("horovod.tensorflow" if KIND == "loop" else "horovod.tensorflow.keras")
ours = (
    importlib.import_module(f"hvd_elastic_ext.{'tensorflow' if KIND == 'loop' else 'keras'}")
    if SIDE == "ours"
    else None
)
elastic: Any = ours or hvd.elastic

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)])
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.001)
images, labels = tf.random.normal((32, 64)), tf.zeros((32,), tf.int32)
stamps = os.open(STAMPS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
started = time.monotonic()
if KIND == "fit":
    optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(loss=loss, optimizer=optimizer)
optimizer.build(model.trainable_variables)


@tf.function  # type: ignore[untyped-decorator]
def train_one_batch() -> None:
    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=True))
    gradients = hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def stamp(count: int) -> None:
    """Write a stamp by one call, so that lines of several processes never mix."""
    who = f"{os.getpid()} {hvd.rank()} {hvd.size()} {count} {os.environ['HOROVOD_HOSTNAME']}"
    os.write(stamps, f"{time.monotonic():.6f} {who}\n".encode())
    time.sleep(PAUSE_S)


def loop(state: Any) -> None:
    while time.monotonic() < started + LIMIT_S:  # ends even if the benchmark hangs
        train_one_batch()
        state.batch += 1
        stamp(state.batch)
        if state.batch % COMMIT_EVERY == 0:
            state.commit()
        else:
            state.check_host_updates()


class Stamp(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Stamps each batch, and ends training at the limit."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        stamp(int(optimizer.iterations))
        if time.monotonic() > started + LIMIT_S:
            os._exit(0)


def fit(state: Any) -> None:
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    callbacks = [
        elastic.UpdateEpochStateCallback(state),
        elastic.UpdateBatchStateCallback(state),
        elastic.CommitStateCallback(state, batches_per_commit=COMMIT_EVERY),
        Stamp(),
    ]
    model.fit(data, steps_per_epoch=EPOCH, epochs=ENDLESS - state.epoch, callbacks=callbacks, verbose=0)


if KIND == "loop":
    elastic.run(loop)(elastic.TensorFlowKerasState(model, optimizer, batch=0))
else:
    elastic.run(fit)(elastic.KerasState(model, batch=0, epoch=0))
