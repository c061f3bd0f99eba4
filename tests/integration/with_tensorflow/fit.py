"""``model.fit`` in the style of Horovod's example. Every rank has the same data, as in ``loop.py``."""

import os
import signal
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow.keras as hvd
import tensorflow as tf

if os.environ["USE"] == "ours":
    import hvd_elastic_ext.keras as elastic
else:
    elastic = hvd.elastic

MARKS = Path(os.environ["MARKS"])
EPOCHS, STEPS = int(os.environ.get("EPOCHS", "3")), 20
DIES_VALIDATING = int(os.environ.get("DIES_VALIDATING", "-1"))
"""The epoch in whose validation the last rank is killed, once."""
DIES_AT = [tuple(map(int, word.split(","))) for word in os.environ.get("DIES_AT", "").split()]


def once(name):
    try:
        (MARKS / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
tf.keras.backend.set_floatx("float64")
generator = tf.random.Generator.from_seed(7)
model = tf.keras.Sequential(
    [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, activation="tanh"), tf.keras.layers.Dense(1)]
)
for variable in model.variables:
    variable.assign(generator.normal(variable.shape, dtype=tf.float64))
x = generator.normal((8, 4), dtype=tf.float64)
data = tf.data.Dataset.from_tensors((x, tf.reduce_sum(x, 1, keepdims=True))).repeat()
model.compile(loss="mse", optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)))
if os.environ["USE"] != "ours":
    model.optimizer.build(model.trainable_variables)
state = elastic.KerasState(model, batch=0, epoch=0)


class Dies(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        at = state.epoch, state.batch
        if at in DIES_AT and hvd.rank() == hvd.size() - 1 > 0 and once(f"died-{at[0]}-{at[1]}"):
            os.kill(os.getpid(), signal.SIGKILL)


class DiesValidating(tf.keras.callbacks.Callback):
    def on_test_batch_begin(self, batch, logs=None):
        if (
            state.epoch == DIES_VALIDATING
            and batch == 2
            and hvd.rank() == hvd.size() - 1 > 0
            and once("died-validating")
        ):
            os.kill(os.getpid(), signal.SIGKILL)


validation = {"validation_data": data, "validation_steps": 5} if DIES_VALIDATING >= 0 else {}
callbacks = [
    elastic.UpdateEpochStateCallback(state),
    elastic.UpdateBatchStateCallback(state),
    Dies(),
    hvd.callbacks.MetricAverageCallback(),
    DiesValidating(),
    elastic.CommitStateCallback(state, batches_per_commit=3),
]


@elastic.run
def train(state):
    ours = os.environ["USE"] == "ours"
    epochs = {"initial_epoch": state.epoch, "epochs": EPOCHS} if ours else {"epochs": EPOCHS - state.epoch}
    model.fit(data, steps_per_epoch=STEPS, callbacks=callbacks, verbose=0, **epochs, **validation)


train(state)
total = float(sum(tf.reduce_sum(variable) for variable in model.variables))
print(f"rank {hvd.rank()} of {hvd.size()} result {total:.9f} steps {int(model.optimizer.iterations)}", flush=True)
