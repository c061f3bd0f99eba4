"""Keras 3 on the torch backend under ``--engine torch``: ``fit`` in a job whose ranks come and go."""

from __future__ import annotations

import os
import re
import signal
import sys
from importlib.util import find_spec

import pytest

from tests.integration.engines.conftest import Job
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("keras") is None, reason="needs Keras 3: make test WITH=tensorflow"),
]

SCRIPT = """
import os
os.environ.update(KERAS_BACKEND="torch", TF_CPP_MIN_LOG_LEVEL="3")
import time
import keras
import numpy
import torch
import hvd_elastic_ext.torch as elastic

STEPS, ROWS = 60, 12
torch.set_num_threads(1)
keras.config.set_floatx("float64")

def made(wrap):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    optimizer = wrap(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)))
    model.compile(optimizer=optimizer, loss="mse")
    return model, optimizer

def batches(first, rank, size):
    for step in range(first, STEPS):
        rows = numpy.random.RandomState(step).randn(ROWS, 8)
        yield rows[rank::size], rows[rank::size].sum(1, keepdims=True)

class Commits(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        state.step += 1
        state.commit()
        time.sleep(0.05)

elastic.init()
model, optimizer = made(elastic.wrap)
state = elastic.TorchState(model=model, optimizer=optimizer, step=0)

@elastic.run
def train(state):
    print(f"goes on count={state.step} size={elastic.size()} pid={os.getpid()}", flush=True)
    if state.step < STEPS:
        left = batches(state.step, elastic.rank(), elastic.size())
        model.fit(left, steps_per_epoch=STEPS - state.step, callbacks=[Commits()], verbose=0)

train(state)
print("iterations", int(optimizer.iterations), flush=True)
if elastic.rank() == 0:
    alone, its = made(lambda optimizer: optimizer)
    alone.fit(batches(0, 0, 1), steps_per_epoch=STEPS, verbose=0)
    pairs = zip(model.variables + optimizer.variables, alone.variables + its.variables)
    print("differs by", max(float((a.value - b.value).abs().max()) for a, b in pairs), flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed"])
def test_ranks_that_fit_a_model_of_keras_come_to_what_one_process_with_all_rows_comes_to(
    job: Job, killed: bool
) -> None:
    job.set_hosts("a:1", "b:1")
    with job.run(*job.command("torch", script=(sys.executable, "-c", SCRIPT))) as process:
        if killed:
            job.wait_for_world(2)
            wait_until(lambda: len(job.counted("stepped")) > 5, what="steps", timeout=60)
            os.kill(job.events("spawned")[1].get("pid"), signal.SIGKILL)
        assert process.wait(200) == 0, process.output
    assert re.findall(r"iterations (\d+)", process.output) == ["60"] * (1 if killed else 2)
    [difference] = re.findall(r"differs by (\S+)", process.output)
    assert float(difference) < 1e-6  # Keras computes a part of its losses with 32 bits
    assert max(job.counted("stepped")) == 60, "each apply is a step"
    assert [record.get("size") for record in job.events("resized")] == ([2, 1] if killed else [2])
    if killed:
        assert [record.get("steps_lost") for record in job.events("resized")[1:]] == [0]
