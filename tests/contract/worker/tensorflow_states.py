"""States of TensorFlow in a process without a launcher. Horovod's module for Keras is imported first, as in a script.

Each check runs once, and prints its name: ``test_tensorflow_states_alone.py`` compares.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3")

import horovod.tensorflow.keras as hvd
import numpy
import tensorflow as tf

import hvd_elastic_ext.tensorflow as elastic
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms.horovod_tensorflow import HorovodComms
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE

DATA = numpy.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)


def compiled() -> Any:
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2), tf.keras.layers.BatchNormalization()])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.1)), loss="mse")
    return model


def fit(model: Any) -> None:
    model.fit(DATA, DATA[:, :2], batch_size=2, verbose=0)


def refusal(make: Any) -> str:
    try:
        make()
    except StateError as error:
        return str(error)
    raise AssertionError("it was taken")


def horovods_module_for_keras_has_the_fence() -> None:
    assert hvd.shutdown.hvd_elastic_fence is HOROVOD_FENCE
    assert hvd.init is tf_hvd().init is tf_hvd().elastic.init


def tf_hvd() -> Any:
    import horovod.tensorflow

    return horovod.tensorflow


def the_world_is_that_of_horovod_for_tensorflow() -> None:
    assert stock.FRAMEWORK == "tensorflow"
    assert (elastic.rank(), elastic.size(), elastic.local_rank()) == (0, 1, 0)
    assert isinstance(elastic.TensorFlowState([], step=0)._keeper._comms, HorovodComms)


def a_keras_state_is_rolled_back_exactly_three_times() -> None:
    model = compiled()
    state = elastic.TensorFlowKerasState(model, batch=0, history=[])
    assert state.optimizer is model.optimizer
    state.sync()
    fit(model)
    state.batch, state.history = 4, [1.0]
    state.commit()
    committed = state.fingerprint()
    for _ in range(3):
        fit(model)
        model.optimizer.learning_rate = 0.5
        state.batch += 1
        state.history.append(2.0)
        assert state.fingerprint() != committed
        state.restore()
        assert state.fingerprint() == committed
        assert (state.batch, state.history) == (4, [1.0])
    assert state._keeper._steps.done == 4


def a_state_of_variables_is_rolled_back_exactly_and_its_commits_are_its_steps() -> None:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    state = elastic.TensorFlowState(variables=variables, batch=0)
    assert state.variables[0] is variables[0]
    seen = []

    @elastic.run
    def train(state: Any) -> None:
        variables[0].assign_add([1.0, 1.0])
        state.commit()
        variables[1].assign_add(5)
        state.restore()
        seen.append((variables[0].numpy().tolist(), int(variables[1]), state._keeper._steps.done))

    train(state)
    assert seen == [([2.0, 3.0], 3, 1)]


def variables_modules_and_generators_are_kept_as_keywords() -> None:
    count, mean = tf.Variable(1), tf.keras.metrics.Mean()
    generator = tf.random.Generator.from_seed(1)
    state = elastic.TensorFlowKerasState(compiled(), count=count, mean=mean, generator=generator)
    state.save()
    first = generator.normal(()).numpy()
    count.assign(7)
    mean.update_state(3.0)
    state.restore()
    assert (int(count), float(mean.result()), generator.normal(()).numpy()) == (1, 0.0, first)
    assert state.count is count


def an_epoch_that_is_shorter_now_than_what_is_done_of_it_ends_after_one_batch() -> None:
    """As ``steps_per_epoch=STEPS // hvd.size()`` is when hosts have come."""
    import hvd_elastic_ext.keras

    model = compiled()
    state = hvd_elastic_ext.keras.KerasState(model, batch=7, epoch=2)
    batches, ends = hvd_elastic_ext.keras.UpdateBatchStateCallback(state), []
    counted = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ends.append(int(model.optimizer.iterations))
    )
    model.fit(DATA, DATA[:, :2], batch_size=2, epochs=2, verbose=0, callbacks=[batches, counted])
    assert ends == [1, 5]
    assert state.batch == 0


def epochs_are_counted_with_and_without_the_number_of_the_first_one() -> None:
    """With it, a schedule gets the epoch's own number after an interruption."""
    import hvd_elastic_ext.keras

    model, seen = compiled(), []
    state = hvd_elastic_ext.keras.KerasState(model, epoch=2)
    callbacks = [
        hvd_elastic_ext.keras.UpdateEpochStateCallback(state),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: seen.append(epoch) or rate),
    ]
    options = {"batch_size": 2, "verbose": 0, "callbacks": callbacks}
    model.fit(DATA, DATA[:, :2], initial_epoch=state.epoch, epochs=4, **options)
    assert (state.epoch, seen) == (4, [2, 3])
    model.fit(DATA, DATA[:, :2], epochs=5 - state.epoch, **options)
    assert (state.epoch, seen) == (5, [2, 3, 0])


def mistakes_are_refused_in_one_line() -> None:
    unbuilt = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model = compiled()
    said = [
        refusal(lambda: elastic.TensorFlowKerasState(unbuilt)),
        refusal(lambda: elastic.TensorFlowKerasState(3)),
        refusal(lambda: elastic.TensorFlowKerasState(model, optimizer="adam")),
        refusal(lambda: elastic.TensorFlowState([tf.constant(1.0)])),
        refusal(lambda: elastic.TensorFlowState([tf.Variable("text", name="words")])),
        refusal(lambda: elastic.TensorFlowState([tf.Variable(1.0)], words=tf.Variable("text", name="words"))),
    ]
    assert [line for line in said if "\n" in line] == []
    assert "'sequential" in said[0]
    assert "is not built yet, so it has no variables; call build(input_shape) first" in said[0]
    assert "state.model is a int; give a model of tf.keras there" in said[1]
    assert "state.optimizer is a str; give an optimizer of tf.keras there" in said[2]
    assert "state.variables holds a" in said[3]
    assert said[4] == "state.variables: 'words:0' is of type string, which cannot be committed"
    assert said[5] == "state.words: 'words:0' is of type string, which cannot be committed"


CHECKS = (
    horovods_module_for_keras_has_the_fence,
    the_world_is_that_of_horovod_for_tensorflow,
    a_keras_state_is_rolled_back_exactly_three_times,
    a_state_of_variables_is_rolled_back_exactly_and_its_commits_are_its_steps,
    variables_modules_and_generators_are_kept_as_keywords,
    an_epoch_that_is_shorter_now_than_what_is_done_of_it_ends_after_one_batch,
    epochs_are_counted_with_and_without_the_number_of_the_first_one,
    mistakes_are_refused_in_one_line,
)

if __name__ == "__main__":
    hvd.init()
    for check in CHECKS:
        check()
        print(check.__name__)
