"""Calls collectives before its training functions and between two of them, and prints what they return.

A training function ends when there is a file ``stop`` with its number. ``USE``: whose elastic module.
"""

import os
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as keras_hvd
import tensorflow as tf

if os.environ.get("USE", "ours") == "ours":
    import hvd_elastic_ext.tensorflow as elastic
else:
    elastic = hvd.elastic

MANY = int(os.environ.get("MANY", "20000"))
"""Numbers in variables that are too large to be recorded."""


@elastic.run
def fit(state, net, optimizer, call):
    print(f"rank {hvd.rank()} pid {os.getpid()} trains in call {call}", flush=True)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(tf.ones((1, 2))))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return hvd.allreduce(loss, name="loss")  # in a graph

    last = None
    while last is None or state.step < last:
        step()
        state.step += 1
        state.commit()
        time.sleep(0.02)
        found = hvd.allreduce(tf.constant([float(Path(f"stop{call}").exists())]), op=hvd.Sum, name="stop")
        if last is None and float(found[0]):
            last = state.step + 2
    return state.step


@tf.function
def in_a_graph(value):
    return hvd.allreduce(value, op=hvd.Sum, name="in-a-graph")


def own(rank: int) -> list[object]:
    """What collectives return to this process."""
    seed, statistics = tf.Variable([float(rank), 7.0]), tf.Variable(float(rank + 5))
    large = tf.Variable(tf.fill([MANY], float(rank)), name="large")
    outside.append(large)
    hvd.broadcast_([seed], root_rank=0)
    hvd.broadcast_variables([statistics], root_rank=0)
    hvd.broadcast_variables([large], root_rank=0)
    two = hvd.grouped_allreduce([tf.constant([rank]), tf.constant([10 * rank])], op=hvd.Sum)
    return [
        float(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Average, name="mean")),
        hvd.broadcast_object({"lr": 0.5, "layers": (1, 2)} if rank == 0 else None),
        hvd.allgather(tf.constant([100 * (rank + 1)])).numpy().tolist(),
        hvd.allgather_object([rank], name="ranks"),
        [int(each[0]) for each in two],
        float(keras_hvd.allreduce(rank + 2.0, op=hvd.Sum)),
        float(hvd.broadcast(tf.constant(3.0 + rank), root_rank=0)),
        seed.numpy().tolist(),
        float(statistics),
    ]


tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
outside = []
print(f"pid {os.getpid()} got {own(hvd.rank())}", flush=True)
print(f"pid {os.getpid()} in a graph {int(in_a_graph(tf.constant(1)))}", flush=True)
for call in (1, 2):
    net = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(net.trainable_variables)
    state = elastic.TensorFlowKerasState(net, optimizer, step=0)
    fit(state, net, optimizer, call)
    drawn = hvd.broadcast_object([hvd.rank(), os.getpid()], name="drawn")
    print(f"pid {os.getpid()} after call {call} got {drawn}", flush=True)
print("done", flush=True)
