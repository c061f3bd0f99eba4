"""``consumption.py DIRECTORY loop|fit``: trains two epochs, and writes with each step which samples it trains with.

Each rank writes to a file of its own: when its world began, the step, the epoch, the samples. A step that was rolled
back is written again by a later world. The last of three ranks is killed once, between two commits. Steps are slow
until the file ``hurry`` exists.
"""

import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from horovod.tensorflow import broadcast_object

import hvd_elastic_ext.keras as elastic

COUNT, EPOCHS, BATCH, DIES_AT = 240, 2, 2, 7
DIRECTORY, WAY = Path(sys.argv[1]), sys.argv[2]

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()


def written(samples, step):
    print(began, step, state.data.epoch, ",".join(map(str, samples)), file=out, flush=True)
    if step == DIES_AT and hvd.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002 if (DIRECTORY / "hurry").exists() else 0.25)


class Model(tf.keras.Model):
    def train_step(self, samples):
        tf.numpy_function(written, [samples, self.optimizer.iterations], [])
        rows = tf.cast(samples, tf.float32)[:, None] / COUNT
        return super().train_step((rows, rows))


def of_epoch(epoch):
    return tf.data.Dataset.range(COUNT).shuffle(50, seed=epoch).map(lambda number: number, num_parallel_calls=2)


inputs = tf.keras.Input((1,))
model = Model(inputs, tf.keras.layers.Dense(1)(inputs))
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1e-3)), "mse")
state = elastic.KerasState(model, data=elastic.dataset(of_epoch, BATCH))
train_step = tf.function(model.train_step)


@elastic.run
def train(state):
    global began
    began = broadcast_object(time.monotonic_ns(), root_rank=0)
    if WAY == "fit":
        batches = state.data.for_fit(model)
        callbacks = [elastic.CommitStateCallback(state, batches_per_commit=3)]
        model.fit(batches, epochs=EPOCHS, initial_epoch=state.data.epoch, callbacks=callbacks, verbose=0)
        return
    while state.data.epoch < EPOCHS:
        for samples in state.data:
            train_step(samples)
            if model.optimizer.iterations % 3 == 0:
                state.commit()


with (DIRECTORY / f"{os.getpid()}.consumed").open("w") as out:
    train(state)
print("done after", int(model.optimizer.iterations), "steps", flush=True)
