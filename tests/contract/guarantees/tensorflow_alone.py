"""Each kind of State of TensorFlow in a world of one: what a test of the table asks of it, as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import horovod.tensorflow.keras as hvd  # first: our own modules take the world of this one
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.worker.calls import calls
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.state import public
from tests.contract.guarantees.judgements import asks_to_skip, rolls_back_exactly, skips_a_finished_call, synced_at
from tests.contract.guarantees.tensorflow_subjects import EACH, OfTensorFlow


def skips(make: Any) -> bool:
    """The results of this program's calls are in one memory, as in that of its slot."""
    past = os.memfd_create("past")
    os.environ[call_results.RESULTS] = str(past)

    def one_program() -> Iterator[OfTensorFlow]:
        return (OfTensorFlow(make) for _ in range(2))

    try:
        return skips_a_finished_call(one_program)
    finally:
        del os.environ[call_results.RESULTS]
        calls.forget()
        os.close(past)


def takes_a_lost_collective_for_a_lost_peer(make: Any) -> bool:
    """Under our loop, whatever kind of error TensorFlow makes of it, and whoever's State it is."""
    current_world.use(None)  # that of a State of ours before
    state, worlds = OfTensorFlow(make).state, []
    state.save()

    def training(state: Any) -> None:
        worlds.append(state)
        if len(worlds) == 1:
            raise tf.errors.AbortedError(None, None, "[[{{node HorovodAllreduce_grads_0}}]]")

    with mock.patch.object(public, "_next_world"), contextlib.suppress(tf.errors.AbortedError):
        public.run(training)(state)
    return len(worlds) == 2


CHECKS: dict[str, Callable[[Any], Any]] = {
    "asks to skip": lambda make: asks_to_skip(OfTensorFlow(make).state),
    "rolls back exactly": lambda make: rolls_back_exactly(OfTensorFlow(make)),
    "skips a finished call": skips,
    "takes a lost collective for a lost peer": takes_a_lost_collective_for_a_lost_peer,
}


class Lost(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """A peer is lost after some batches, once."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.after -= 1
        if self.after == 0:
            raise HorovodInternalError("a peer was lost")


def trained_by_horovods_callbacks() -> list[int]:
    """With which samples Horovod's own State and callbacks train in an epoch of eight batches, of which the fifth
    loses a peer; a commit is after each batch."""
    trained: list[int] = []

    class Noting(tf.keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            tf.numpy_function(lambda rows: trained.append(int(rows[0, 0])), [data[0]], [])
            return super().train_step(data)

    inputs = tf.keras.Input((1,))
    model = Noting(inputs, tf.keras.layers.Dense(1)(inputs))
    model.compile(tf.keras.optimizers.SGD(1e-3), "mse")
    model.optimizer.build(model.trainable_variables)
    rows = tf.range(8.0)[:, None]
    data = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(1).repeat()
    stock = hvd.elastic
    state = stock.KerasState(model, batch=0, epoch=0)
    callbacks = [
        stock.UpdateEpochStateCallback(state),
        stock.UpdateBatchStateCallback(state),
        stock.CommitStateCallback(state, batches_per_commit=1),
        Lost(5),
    ]
    while state.epoch < 1:
        try:
            model.fit(data, steps_per_epoch=8, epochs=1 - state.epoch, callbacks=callbacks, verbose=0)
        except HorovodInternalError:
            state.restore()
    return trained


def main() -> None:
    hvd.init()
    seen: dict[str, Any] = {name: {kind: check(make) for kind, make in EACH.items()} for name, check in CHECKS.items()}
    seen["synced at"] = {kind: synced_at(OfTensorFlow(make).state) for kind, make in EACH.items() if "unmod" in kind}
    seen["trained by Horovod's callbacks"] = trained_by_horovods_callbacks()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
