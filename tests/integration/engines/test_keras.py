"""Keras 3 on the torch backend under ``--engine torch``: ``fit`` in a job whose ranks come and go."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.engines.conftest import Job
from tests.support import tensorflow
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not tensorflow.is_keras_3_there(), reason=tensorflow.KERAS_3_MISSING),
]

SCRIPT = """
import os
os.environ.update(KERAS_BACKEND="torch", TF_CPP_MIN_LOG_LEVEL="3")
import sys
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
        while sys.argv[1:] == ["joined"] and state.step == 10 and elastic.size() == 1:
            state.check_host_updates()

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
@pytest.mark.parametrize(
    ("engine", "change", "sizes"),
    [
        ("torch", "nothing", [2]),
        ("torch", "killed", [2, 1]),
        ("torch", "joined", [1, 2]),
        ("torchrun", "killed", [2, 1]),
    ],
)
def test_ranks_that_fit_a_model_of_keras_come_to_what_one_process_with_all_rows_comes_to(
    job: Job, engine: str, change: str, sizes: list[int]
) -> None:
    job.set_hosts("a:1", "b:1") if sizes[0] == 2 else job.set_hosts("a:1")
    command = job.command(engine, processes=sizes[0], script=(sys.executable, "-c", SCRIPT, change))
    with job.run(*command) as process:
        if len(sizes) > 1:
            wait_until(lambda: len(job.counted("stepped")) > 5, what="steps", timeout=100)
        if change == "killed":
            os.kill(job.events("spawned")[1].get("pid"), signal.SIGKILL)
        elif change == "joined":
            job.set_hosts("a:1", "b:1")
        assert process.wait(200) == 0, process.output
    assert re.findall(r"iterations (\d+)", process.output) == ["60"] * sizes[-1]
    [difference] = re.findall(r"differs by (\S+)", process.output)
    assert float(difference) < 1e-6  # Keras computes a part of its losses with 32 bits
    assert max(job.counted("stepped")) == 60, "each apply is a step"
    assert [record.get("size") for record in job.events("resized")] == sizes
    assert not any(record.get("steps_lost") for record in job.events("resized"))


WRAPPED = """
import os
os.environ.update(KERAS_BACKEND="torch", TF_CPP_MIN_LOG_LEVEL="3")
import keras
import numpy
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.optim.averaging import wrap

class Doubled:
    sums = 0
    def size(self):
        return 2
    def sum(self, data, *, name):
        self.sums += 1
        data.mul_(2)

def fitted(optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    rows = numpy.linspace(-1, 1, 512, dtype="float32").reshape(64, 8)
    model.fit(rows, rows.sum(1, keepdims=True), verbose=0, shuffle=False)
    return model

comms = Doubled()
plain, wrapped = (fitted(made) for made in (keras.optimizers.Adam(), wrap(keras.optimizers.Adam(), comms=comms)))
assert all(map(numpy.array_equal, plain.get_weights(), wrapped.get_weights()))
assert comms.sums == 4, "two steps, each with one for what is there and one for the values"
wrapped.save("model.keras")
loaded = keras.models.load_model("model.keras").optimizer
assert type(loaded) is type(plain.optimizer)
assert int(loaded.iterations) == 2

keras.config.set_dtype_policy("mixed_float16")
try:
    fitted(wrap(keras.optimizers.Adam(), comms=comms))
except UsageError as error:
    print(error)
before = comms.sums
fitted(wrap(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), comms=comms))
assert comms.sums == before + 4
"""


def test_keras_takes_a_wrapped_optimizer_for_its_own_and_saves_it_as_a_plain_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRAPPED], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "wrap it instead: elastic.wrap(keras.optimizers.LossScaleOptimizer(optimizer))" in done.stdout
