"""A rehearsal of TensorFlow's kinds of steps: it ends after one, the graph stays, and nothing else does."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.parts import rng, tensorflow_parts
from hvd_elastic_ext.worker.state import journal
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.keeper import Keeper, WorkerSettings
from tests.contract.parts.tensorflow_cases import around, fill, of_tensorflow
from tests.support.tensorflow import needs_tensorflow
from tests.unit.worker.made_commits import buffer_over

pytestmark = needs_tensorflow

DATA = numpy.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)


@pytest.fixture
def tf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with of_tensorflow() as found:
        kept = rng.capture()
        yield found
        rng.restore(kept)


class Training:
    """A model with its optimizer, a Keeper of both, and how often Python ran a step: once for a graph."""

    def __init__(self, tf: Any, optimizer: Any = None) -> None:
        self.tf = tf
        self.model = fill(tf, tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)]), 3)
        self.optimizer = optimizer or tf.keras.optimizers.Adam(0.1)
        tensorflow_parts.build(self.optimizer, self.model)
        self.ran = 0
        self.owner = SimpleNamespace(model=self.model, optimizer=self.optimizer, batch=0)
        parts = {"model": around(self.model), "optimizer": around(self.optimizer)}
        clock = SystemClock()
        self.keeper = Keeper(
            Inventory(self.owner, parts, names=["batch"], part_for=lambda value: None),
            buffer=buffer_over(None), comms=AloneComms(), clock=clock, program="", settings=WorkerSettings(),
            reporter=journal.Reporter(None, clock, sample=0.0, host=""),
        )  # fmt: skip

    def step(self) -> None:
        self.ran += 1
        with self.tf.GradientTape() as tape:
            loss = self.tf.reduce_sum(self.model(DATA) ** 2)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))

    def rehearse(self, train: Callable[[], object]) -> None:
        """Check that all comes back."""
        before = self.keeper.fingerprint()
        self.keeper.rehearse(train)
        assert self.keeper.fingerprint() == before


@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
def test_a_loop_around_a_function_with_a_graph_ends_after_one_step_and_the_graph_stays(tf: Any, legacy: bool) -> None:
    training = Training(tf, tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9) if legacy else None)
    step, steps = tf.function(training.step), []

    def train() -> None:
        for _ in range(5):
            steps.append(1)
            step()

    training.rehearse(train)
    assert len(steps) == 1
    traced = training.ran
    train()
    assert training.ran == traced, "it was traced again"
    assert int(training.optimizer.iterations) == 5


def test_a_loop_that_runs_eagerly_ends_after_one_step(tf: Any) -> None:
    training = Training(tf)

    def train() -> None:
        for _ in range(5):
            training.step()

    training.rehearse(train)
    assert training.ran == 1


def test_a_function_that_does_no_step_does_not_end_it(tf: Any) -> None:
    training = Training(tf)
    step, evaluate, went = tf.function(training.step), tf.function(lambda: training.model(DATA)), []

    def train() -> None:
        for name, function in (("evaluate", evaluate), ("step", step), ("again", evaluate)):
            went.append(name)
            function()

    training.rehearse(train)
    assert went == ["evaluate", "step"]


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_fit_ends_after_one_batch_prints_nothing_and_trains_as_ever_afterwards(
    tf: Any, eagerly: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    training, ends = Training(tf), []
    model = training.model
    model.compile(optimizer=training.optimizer, loss="mse", run_eagerly=eagerly)
    callback = tf.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: ends.append(batch))

    def train() -> Any:
        return model.fit(DATA, DATA[:, :1], batch_size=2, epochs=2, verbose=2, shuffle=False, callbacks=[callback])

    training.rehearse(train)
    assert ends == []
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    history = train()
    assert int(training.optimizer.iterations) == 8
    assert len(history.history["loss"]) == 2


def test_training_after_a_rehearsal_is_as_without_one(tf: Any) -> None:
    """The rehearsal draws from generators, too."""

    def trained(rehearsed: bool) -> Any:
        numpy.random.seed(3)
        tf.random.set_global_generator(tf.random.Generator.from_seed(3))
        training = Training(tf)
        step = tf.function(training.step)
        seen = []

        def train() -> None:
            for _ in range(3):
                training.owner.batch += 1
                step()
                seen.append(tf.random.get_global_generator().normal(()).numpy().item())
                seen.append(numpy.random.rand())

        if rehearsed:
            training.keeper.rehearse(train)
        seen.clear()
        train()
        return training.keeper.fingerprint(), seen

    try:
        assert trained(True) == trained(False)
    finally:
        tf.random.set_global_generator(None)


def test_a_commit_a_roll_back_and_a_rehearsal_hold_nothing_that_tensorflow_would_copy_at_the_next_write(
    tf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, plain, seen = Training(tf), tensorflow_parts._read, []

    def noting(variable: Any) -> Any:
        tensor = plain(variable)
        seen.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(tensorflow_parts, "_read", noting)
    keeper = training.keeper
    for do in (keeper.save, lambda: keeper.restore(world_lost=False), keeper.sync, lambda: keeper.rehearse(int)):
        do()
        assert seen
        assert [each for each in seen if each() is not None] == []
        seen.clear()


def test_nothing_stays_patched_after_an_error_of_the_script(tf: Any) -> None:
    training = Training(tf)
    kinds = type(tf.function(lambda: None)), type(training.optimizer)
    before = [kinds[0].__call__, kinds[1].apply_gradients]

    def train() -> None:
        raise ValueError("no data")

    training.rehearse(train)
    assert [kinds[0].__call__, kinds[1].apply_gradients] == before
