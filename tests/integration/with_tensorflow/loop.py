"""A loop of one's own with TensorFlow: every rank has the same data, so the numbers are those of one process alone.

A file in ``MARKS`` tells a process to do something once: see ``once``. ``USE``: whose elastic module.
"""

import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

if os.environ["USE"] == "ours":
    import hvd_elastic_ext.tensorflow as elastic
else:
    elastic = hvd.elastic

MARKS = Path(os.environ["MARKS"])
BATCHES = int(os.environ.get("BATCHES", "60"))
SIZE = int(os.environ.get("SIZE", "0"))
"""The world that must have formed before the last batch."""
DIES_AT = [int(word) for word in os.environ.get("DIES_AT", "").split()]
"""Batches at which the last rank is killed, each once."""
STOPS_AT = int(os.environ.get("STOPS_AT", "-1"))
"""The batch at which it is stopped instead, once."""
ALL_DIE_AT = int(os.environ.get("ALL_DIE_AT", "-1"))
KILLS = [word.split(":") for word in os.environ.get("KILLS", "").split()]
"""Batches with the ranks that are killed there at the same time, once: ``7:0 16:1,2``."""
DIES_COMMITTING = int(os.environ.get("DIES_COMMITTING", "-1"))
"""The batch from which on rank 1 is killed in the middle of its next commit, once."""
RAISES_AT = int(os.environ.get("RAISES_AT", "-1"))
"""The batch at which Python code raises an error in the graph of rank 1, once."""
ALL_RAISE_AT = int(os.environ.get("ALL_RAISE_AT", "-1"))
"""The batch at which it does on every rank, in each process."""
DIES_TRACING = os.environ.get("DIES_TRACING") == "1"
"""Whether a process that joins others is killed once, while it makes its graph."""


def once(name):
    """Whether this process is the first to do something."""
    try:
        (MARKS / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die_committing(frame, event, _):
    """Kill this process once it has copied a commit, before that is sealed. For ``sys.setprofile``."""
    code = frame.f_code
    if event == "return" and code.co_name == "store" and code.co_filename.endswith("/worker/commits/copying.py"):
        (MARKS / "died-committing").write_text("in a commit")
        os.kill(os.getpid(), signal.SIGKILL)


def labels(number):
    """Look up the labels of a batch. Runs as Python within the graph."""
    if number == ALL_RAISE_AT or (number == RAISES_AT and hvd.rank() == 1 and once("raised")):
        raise RuntimeError(f"there are no labels for batch {number}")
    return number


def batch_of(number):
    x = tf.random.Generator.from_seed(number).normal((8, 4), dtype=tf.float64)
    return x, tf.reduce_sum(x, 1, keepdims=True), tf.constant(number)


tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
tf.keras.backend.set_floatx("float64")  # the mean of equal numbers is that number in each printed digit
initial = tf.random.Generator.from_seed(7)
model = tf.keras.Sequential(
    [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, activation="tanh"), tf.keras.layers.Dense(1)]
)
for variable in model.variables:
    variable.assign(initial.normal(variable.shape, dtype=tf.float64))
optimizer = tf.keras.optimizers.Adam(0.01)


@tf.function
def step(x, y, number):
    # This runs when the graph is made. A process that joins others makes it before, in a world of one.
    with (MARKS / "traces").open("a") as file:
        file.write(f"{os.getpid()} {mpi_ops.size()}\n")
    if DIES_TRACING and hvd.size() > mpi_ops.size() and once("died-tracing"):
        os.kill(os.getpid(), signal.SIGKILL)
    if max(RAISES_AT, ALL_RAISE_AT) >= 0:
        tf.numpy_function(labels, [number], number.dtype)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


if os.environ["USE"] != "ours":  # Horovod's State wants the optimizer's variables to be there
    optimizer.build(model.trainable_variables)
state = elastic.TensorFlowKerasState(model, optimizer, batch=0)


def reset():
    """As in Horovod's example for Keras, which trains a step here."""
    together = hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="reset")
    print(f"{int(together)} ranks reset", flush=True)


if os.environ.get("RESETS") == "1":
    state.register_reset_callbacks([reset])


@elastic.run
def train(state):
    while state.batch < BATCHES:
        if state.batch == BATCHES - 1 and hvd.size() < SIZE:
            time.sleep(0.02)
            state.check_host_updates()
            continue
        if state.batch in DIES_AT and hvd.rank() == hvd.size() - 1 > 0 and once(f"died-{state.batch}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if state.batch == STOPS_AT and hvd.rank() == hvd.size() - 1 > 0 and once("stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        for at, ranks in KILLS:
            if state.batch == int(at) and str(hvd.rank()) in ranks.split(",") and once(f"killed-{at}-{hvd.rank()}"):
                os.kill(os.getpid(), signal.SIGKILL)
        if 0 <= DIES_COMMITTING <= state.batch and hvd.rank() == 1 and once("dies-committing"):
            sys.setprofile(die_committing)
        if state.batch == ALL_DIE_AT and once(f"all-died-{hvd.rank()}"):
            os.kill(os.getpid(), signal.SIGKILL)
        step(*batch_of(state.batch))
        state.batch += 1
        if state.batch % 3 == 0:
            state.commit()
        if state.batch == 5 and once("fifth"):
            print("five batches are done", flush=True)
    return float(sum(tf.reduce_sum(variable) for variable in model.variables))


total = train(state)
slots = float(sum(tf.reduce_sum(tf.cast(each, tf.float64)) for each in optimizer.variables))
print(f"rank {hvd.rank()} of {hvd.size()} result {total:.9f} {slots:.6f} steps {int(optimizer.iterations)}", flush=True)
