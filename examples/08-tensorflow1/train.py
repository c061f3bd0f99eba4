"""A script in the style of the first tutorials, for TensorFlow 1: a session, a hook, checkpoints of its own.

Only ``tensorflow`` is now ``tensorflow.compat.v1``, with the behaviour of version 1. It has no elastic loop: after a
change of hosts all processes start again, and go on from the newest checkpoint.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
CHECKPOINTS = sys.argv[2] if len(sys.argv) > 2 else "checkpoints"

tf.disable_v2_behavior()


def digits():
    """Batches of the digits of scikit-learn, other ones on each rank."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(hvd.rank())
    while True:
        chosen = random.integers(0, len(images), 32)
        yield (images[chosen] / 16).astype(np.float32), labels[chosen].astype(np.int32)


def main():
    hvd.init()
    image = tf.placeholder(tf.float32, [None, 64], name="image")
    label = tf.placeholder(tf.int32, [None], name="label")
    weights = tf.get_variable("weights", [64, 10])
    bias = tf.get_variable("bias", [10], initializer=tf.zeros_initializer())
    logits = tf.matmul(image, weights) + bias
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
    global_step = tf.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.01 * hvd.size()))
    train_op = optimizer.minimize(loss, global_step=global_step)
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # rank 0 restores the checkpoint, the others get it from there
        tf.train.StopAtStepHook(last_step=STEPS),
    ]
    config = tf.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    batches = digits()
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=CHECKPOINTS if hvd.rank() == 0 else None, save_checkpoint_steps=100, hooks=hooks, config=config
    ) as session:
        while not session.should_stop():
            images, labels = next(batches)
            _, step, value = session.run([train_op, global_step, loss], {image: images, label: labels})
            if hvd.rank() == 0 and step % 100 == 0:
                print(f"step {step}, {hvd.size()} workers, loss {value:.3f}", flush=True)


if __name__ == "__main__":
    main()
