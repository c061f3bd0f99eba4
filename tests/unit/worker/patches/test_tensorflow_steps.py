"""Steps of TensorFlow scripts are found by the optimizer's own count, or by the runs of a session."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_elastic_ext.worker.patches import tensorflow_steps
from hvd_elastic_ext.worker.patches.horovod_hook import HOOKS
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.process.standby import Standby
from hvd_elastic_ext.worker.process.steps import StepTimer
from tests.support.tensorflow import needs_tensorflow


class Optimizer:
    """As Keras' optimizers are in a graph: the count changes, and no Python runs."""

    def __init__(self) -> None:
        self.iterations = 0

    def apply_gradients(self, gradients: Any) -> str:
        self.iterations += 1
        return f"applied {gradients}"


class _MonitoredSession:
    def run(self, fetches: str) -> str:
        return f"ran {fetches}"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    found = Standby(Link(), environ={})
    found.step_timer = StepTimer(found.link.status)
    monkeypatch.setattr(standby, "_current", [found])
    tensorflow_steps._seen.clear()
    yield found
    tensorflow_steps._seen.clear()


def look(process: Standby) -> int:
    assert process.link.status.look is not None
    process.link.status.look()
    assert process.link.status.stepped is not None
    return process.link.status.stepped[0]


def patched() -> Any:
    kind = type("Optimizer", (Optimizer,), {"apply_gradients": Optimizer.apply_gradients})
    tensorflow_steps.keras_optimizer(types.SimpleNamespace(Optimizer=kind))
    return kind()


def test_a_heartbeat_finds_the_steps_that_an_optimizer_has_counted_in_its_graph(process: Standby) -> None:
    optimizer = patched()
    assert optimizer.apply_gradients("these") == "applied these"  # Python sees it once, as the graph is made
    optimizer.iterations = 7
    assert look(process) == 7
    assert look(process) == 7
    optimizer.iterations = 9
    assert look(process) == 9
    assert process.link.status.step == 9


def test_steps_that_a_roll_back_has_taken_away_count_again_when_they_are_done_again(process: Standby) -> None:
    optimizer = patched()
    optimizer.apply_gradients("these")
    optimizer.iterations = 7
    assert look(process) == 7
    optimizer.iterations = 5
    assert look(process) == 7
    optimizer.iterations = 7
    assert look(process) == 9


@pytest.mark.parametrize("readable", [True, False], ids=["eager", "a count that cannot be read in its graph"])
def test_steps_that_an_optimizer_had_made_before_the_script_loaded_it_are_not_steps_of_this_process(
    process: Standby, readable: bool
) -> None:
    told: list[int] = []
    process.step_timer = StepTimer(process.link.status, on_step=told.append)
    optimizer = patched()
    optimizer.iterations = 1_000_000 if readable else None
    if readable:
        optimizer.apply_gradients("these")
        before = 1_000_000
    else:
        tensorflow_steps._seen[optimizer] = tensorflow_steps._count_before(optimizer)
        process.link.status.look = tensorflow_steps._look
        before = optimizer.iterations = 1_000_001
        tensorflow_steps._look()
    optimizer.iterations = before + 5
    assert look(process) == 5
    assert told == [5]


def test_the_step_of_a_state_is_its_own_and_only_the_pace_is_found_here(process: Standby) -> None:
    optimizer = patched()
    optimizer.apply_gradients("these")
    process.link.status.own_step, process.link.status.step = True, 100
    optimizer.iterations = 3
    assert look(process) == 3
    assert process.link.status.step == 100


def test_each_run_of_a_monitored_session_is_a_step(process: Standby) -> None:
    kind = type("_MonitoredSession", (_MonitoredSession,), {"run": _MonitoredSession.run})
    tensorflow_steps.monitored_session(types.SimpleNamespace(_MonitoredSession=kind))
    session = kind()
    assert [session.run("a"), session.run("b")] == ["ran a", "ran b"]
    assert process.link.status.step == 2


def test_a_session_counts_each_run_once_however_often_its_module_is_patched(process: Standby) -> None:
    """The import of TensorFlow does it, and that of our own module for it."""
    name = "tensorflow.python.training.monitored_session"
    kind = type("_MonitoredSession", (_MonitoredSession,), {"run": _MonitoredSession.run})
    module = types.SimpleNamespace(_MonitoredSession=kind)
    for _ in range(2):
        HOOKS[name](module)
    kind().run("a")
    assert process.link.status.step == 1


@needs_tensorflow
def test_a_count_that_is_read_where_python_code_becomes_a_graph_is_a_number(
    process: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``tf_keras`` with TensorFlow 2.15, which leaves only ``keras`` as it is."""
    import tensorflow as tf
    from tensorflow.python.autograph.core import config

    monkeypatch.setattr(config, "CONVERSION_RULES", config.CONVERSION_RULES)
    tensorflow_steps.autograph(config)

    class Counting:
        iterations = tf.Variable(3)

        def apply_gradients(self, gradients: Any) -> None:
            self.iterations.assign_add(1)

    tensorflow_steps.keras_optimizer(types.SimpleNamespace(Optimizer=Counting))
    optimizer = Counting()
    tf.function(lambda: optimizer.apply_gradients("these"))()
    assert [type(count) for count in tensorflow_steps._seen.values()] == [int]
