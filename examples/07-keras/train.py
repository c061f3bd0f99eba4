"""Handwritten digits with Keras: ``model.fit`` while hosts come and go.

hvd-elastic run --min-np 1 --hosts-file hosts train.py
"""

import argparse
import os
import time

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Horovod's optimizers know Keras 2 (package tf-keras)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

import hvd_elastic_ext.keras as elastic

parser = argparse.ArgumentParser(description="Handwritten digits with Keras.")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="make each step slower")
args = parser.parse_args()

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels)).repeat().shuffle(1000).batch(32)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.002)),
)
state = elastic.KerasState(model, epoch=0, batch=0)


class Report(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(args.step_delay)

    def on_epoch_end(self, epoch, logs=None):
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}/{args.epochs}  loss {logs['loss']:.4f}  {hvd.size()} workers", flush=True)


callbacks = [
    elastic.UpdateEpochStateCallback(state),
    elastic.UpdateBatchStateCallback(state),
    elastic.CommitStateCallback(state, batches_per_commit=5),
    Report(),
]


@elastic.run
def train(state):
    model.fit(data, steps_per_epoch=50, initial_epoch=state.epoch, epochs=args.epochs, callbacks=callbacks, verbose=0)


train(state)
