"""Horovod's own modules for TensorFlow, with the Keras that ``tf.keras`` is."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.support.tensorflow import is_there, needs_tensorflow

pytestmark = needs_tensorflow

SCRIPT = """
import horovod.tensorflow as hvd
import horovod.tensorflow.keras
import horovod.keras
import sys
import tensorflow as tf
from hvd_elastic_ext.worker.patches.keras3 import MODULES, refuse_keras3

for name in MODULES:
    refuse_keras3(sys.modules[name])
hvd.init()
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
calls = {
    "tensorflow": lambda: hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)),
    "tensorflow.keras": lambda: horovod.tensorflow.keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)),
    "keras": lambda: horovod.keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)),
    "broadcast": lambda: hvd.broadcast_variables(model.variables, root_rank=0),
    "callback": lambda: horovod.tensorflow.keras.callbacks.BroadcastGlobalVariablesCallback(0),
    "metrics": lambda: horovod.tensorflow.keras.callbacks.MetricAverageCallback(),
    "state": lambda: horovod.tensorflow.elastic.TensorFlowKerasState(model, tf.keras.optimizers.SGD(0.1)),
    "keras state": lambda: horovod.tensorflow.keras.elastic.KerasState(model, tf.keras.optimizers.SGD(0.1)),
}
for name, call in calls.items():
    try:
        call()
    except BaseException as error:
        print(f"{name}: {type(error).__name__}")
    else:
        print(f"{name}: done")
"""
NAMES = ("tensorflow", "tensorflow.keras", "keras", "broadcast", "callback", "metrics", "state", "keras state")


needs_keras3 = pytest.mark.skipif(
    is_there() and version("keras").startswith("2."), reason="needs TensorFlow 2.16 or newer, which has Keras 3"
)


@pytest.mark.parametrize(
    ("legacy", "outcome"),
    [pytest.param("0", "UsageError", marks=needs_keras3, id="Keras 3"), pytest.param("1", "done", id="Keras 2")],
)
def test_what_horovod_cannot_do_with_keras_3_is_refused_and_keras_2_has_all_of_it(
    legacy: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TF_USE_LEGACY_KERAS": legacy, "TF_CPP_MIN_LOG_LEVEL": "3", "HOROVOD_ELASTIC": "0"}.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.splitlines() == [f"{name}: {outcome}" for name in NAMES], done.stderr
