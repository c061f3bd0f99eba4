"""``plain.py KIND``: trains with Horovod alone, in a ``tf.function``, until there is a file ``stop``.

``plain`` has no elastic loop, ``stock`` has Horovod's State, and ``alone`` averages nothing. While there is a file
``hang``, the last rank hangs between two steps. Rank ``FAILS`` then fails in the graph of a step, and rank ``FEWER``
trains less than the others.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow as hvd
import tensorflow as tf

KIND, FAILS, FEWER = sys.argv[1], int(os.environ.get("FAILS", "-1")), int(os.environ.get("FEWER", "-1"))

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
optimizer.build(model.trainable_variables)


@tf.function
def step(bad):
    tf.debugging.assert_less(bad, 1, message="no number like this")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((1, 2))))
    tape = tape if KIND == "alone" else hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def another_one(number):
    """Do a step. Return whether another one follows."""
    while hvd.rank() == hvd.size() - 1 and Path("hang").exists():
        time.sleep(0.1)
    stops = Path("stop").exists()
    step(tf.constant(int(stops and hvd.rank() == FAILS)))
    sys.stdout.write(f"step {number} rank {hvd.rank()} size {hvd.size()}\n")
    sys.stdout.flush()
    time.sleep(0.05)
    if KIND == "alone":
        return not stops
    return not float(hvd.allreduce(tf.constant([float(stops)]), op=hvd.Sum, name="stop")[0])


@hvd.elastic.run
def train(state):
    while another_one(state.count):
        state.count += 1
        if hvd.rank() == FEWER and state.count > 20:
            return
        state.commit()


if KIND == "stock":
    train(hvd.elastic.TensorFlowKerasState(model, optimizer, count=0))
else:
    hvd.broadcast_variables(model.variables, root_rank=0)
    count = 0
    while another_one(count):
        count += 1
time.sleep(3600 if hvd.rank() == FEWER else 0.5)
sys.stdout.write(f"end of rank {hvd.rank()}\n")
