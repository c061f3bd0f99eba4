"""Data of TensorFlow: each sample exactly once per epoch, through any losses and resizes, in loops and in ``fit``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.sampler import share, shuffled
from tests.support.tensorflow import load, needs_tensorflow
from tests.unit.worker.histories import Committed, World
from tests.unit.worker.placed_samplers import enter

pytestmark = [
    needs_tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of TensorFlow's and Keras's own imports
]


# Each pipeline takes TensorFlow some 20 ms.
HISTORIES = st.lists(
    st.builds(
        World,
        size=st.integers(1, 4),
        batches=st.integers(0, 12),
        commit_every=st.integers(1, 5),
        end=st.sampled_from(["loss", "resize"]),
    ),
    min_size=2,
    max_size=4,
)


@pytest.fixture(scope="module")
def tf() -> Any:
    """TensorFlow takes seconds to import: only here, and not where tests are collected."""
    return load()


@pytest.fixture(scope="module")
def dataset(tf: Any) -> Callable[..., Any]:
    from hvd_elastic_ext.worker.data.tensorflow_data import dataset

    return dataset


def placed(data: Any, place: tuple[int, int] = (0, 1)) -> Any:
    """The same, in a world of which it is told."""
    data.place = place
    data.world = lambda: data.place
    return data


class Trained:
    """What is asked of a model of Keras: how many batches this call of ``fit`` has trained with."""

    def __init__(self) -> None:
        self._train_counter = self
        self.batches = 0

    def numpy(self) -> int:
        return self.batches


def looped(data: Any) -> Iterator[tuple[int, list[int]]]:
    """Epoch and samples of each batch, in loops."""
    while True:
        epoch = data.epoch
        for batch in data:
            yield epoch, batch.numpy().tolist()


def fitted(data: Any) -> Iterator[tuple[int, list[int]]]:
    """The same as in ``fit``, where TensorFlow has read the whole epoch before the first batch is trained."""
    model = Trained()
    passed = data.for_fit(model)
    while True:
        ahead = [batch.numpy().tolist() for batch in passed]
        assert len(ahead) == int(passed.cardinality()) > 0
        epoch = data.epoch
        for batch in ahead:
            model.batches += 1
            yield epoch, batch


def live_through(world: World, job: list[Any], last: Committed, *, take: Callable[..., Any]) -> Committed:
    """Run one world to its end; return what the job continues from."""
    consumed, hands = list(last.consumed), [take(data) for data in job]
    for number in range(world.batches + 1):
        if number == world.batches and world.end == "resize":
            break
        taken = [next(hand) for hand in hands]
        if number == world.batches:
            break  # under way when the world is lost: everybody who lives on rolls back
        assert len({(epoch, len(samples)) for epoch, samples in taken}) == 1, "ranks do the same"
        consumed += [(epoch, sample) for epoch, samples in taken for sample in samples]
        if (number + 1) % world.commit_every == 0:
            last = Committed(job[0].state_dict(), list(consumed))
    assert len({str(data.state_dict()) for data in job}) == 1
    return last if world.end == "loss" else Committed(job[0].state_dict(), consumed)


@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "pipeline"])
@pytest.mark.parametrize("take", [looped, fitted])
@settings(max_examples=settings.default.max_examples // 12)
@given(count=st.integers(20, 60), history=HISTORIES, batch=st.integers(1, 4), drop_remainder=st.booleans())
def test_each_sample_is_consumed_once_an_epoch_through_any_losses_and_resizes(
    tf: Any,
    dataset: Callable[..., Any],
    take: Callable[..., Any],
    arrays: bool,
    count: int,
    history: list[World],
    batch: int,
    drop_remainder: bool,
) -> None:
    def of_epoch(epoch: int) -> Any:
        return tf.data.Dataset.range(count).shuffle(16, seed=epoch)

    given, options = (np.arange(count), {"shuffle": 5}) if arrays else (of_epoch, {})

    def make() -> Any:
        return placed(dataset(given, batch, drop_remainder=drop_remainder, **options))

    state, job = Committed(make().state_dict(), []), None
    final = World(size=history[-1].size, batches=-(-count // batch // history[-1].size), commit_every=1, end="resize")
    for world in [*history, final]:
        job = enter(world, state.progress, make, job=job)
        state = live_through(world, job, state, take=take)

    largest = max(world.size for world in history)
    times: dict[int, Counter[int]] = defaultdict(Counter)
    for epoch, sample in state.consumed:
        times[epoch][sample] += 1
    done = [epoch for epoch in times if epoch < state.progress["epoch"]]
    assert done or state.progress["processed_num"] >= count - largest * batch, "an epoch was trained"
    for epoch, samples in times.items():
        order = shuffled(count, seed=5, epoch=epoch).tolist() if arrays else list(of_epoch(epoch).as_numpy_iterator())
        assert set(samples) == set(order[: len(samples)]), "in order, and without a gap"
        extra = samples.total() - len(samples)
        if drop_remainder:
            assert extra == 0
            assert epoch not in done or count - len(samples) < largest * batch
        else:
            assert extra < largest, "padding is less than one round"
            assert epoch not in done or len(samples) == count


@settings(max_examples=settings.default.max_examples // 6)
@given(
    count=st.integers(1, 40),
    consumed=st.integers(0, 30),
    size=st.integers(1, 6),
    batch=st.integers(1, 5),
)
def test_a_pipeline_is_dealt_as_the_sampler_deals_except_for_the_padding(
    tf: Any, dataset: Callable[..., Any], count: int, consumed: int, size: int, batch: int
) -> None:
    consumed = min(consumed, count)
    left = np.arange(consumed, count)
    for rank in range(size):
        data = placed(dataset(tf.data.Dataset.range(count), batch), (rank, size))
        data.load_state_dict({"epoch": 0, "processed_num": consumed})
        expected = share(left, rank=rank, size=size, drop_last=False).tolist()
        taken = [batch.numpy().tolist() for batch in data]
        assert [len(each) for each in taken[:-1]] == [batch] * (len(taken) - 1)
        own = [sample for part in taken for sample in part]
        assert len(own) == len(expected)
        short = bool(len(left) % size) and rank >= len(left) % size
        assert own[: len(own) - short] == expected[: len(own) - short]
        assert set(own) <= set(range(count))


def test_rows_of_arrays_are_in_the_order_of_the_sampler_and_stay_together(dataset: Callable[..., Any]) -> None:
    data = placed(dataset((np.arange(30), {"twice": np.arange(30) * 2.0}), 4, shuffle=7))
    for epoch in range(2):
        batches = [(x.numpy(), y["twice"].numpy()) for x, y in data]
        assert np.concatenate([x for x, _ in batches]).tolist() == shuffled(30, seed=7, epoch=epoch).tolist()
        assert all((x * 2 == twice).all() for x, twice in batches)


def test_a_function_of_the_epoch_gives_each_epoch_its_order_also_to_a_rank_that_comes_later(
    tf: Any, dataset: Callable[..., Any]
) -> None:
    asked = []

    def of_epoch(epoch: int) -> Any:
        asked.append(epoch)
        return tf.data.Dataset.range(50).shuffle(50, seed=epoch)

    first, later = placed(dataset(of_epoch, 5)), placed(dataset(of_epoch, 5))
    orders = [[number for batch in first for number in batch.numpy().tolist()] for _ in range(2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(50))
    assert set(asked) == {0, 1}
    later.load_state_dict({"epoch": 1, "processed_num": 20})
    assert [number for batch in later for number in batch.numpy().tolist()] == orders[1][20:]


def test_an_epoch_that_ends_at_a_commit_is_over_in_a_loop_and_the_next_one_begins_in_fit(
    tf: Any, dataset: Callable[..., Any]
) -> None:
    at_the_end = {"epoch": 3, "processed_num": 12}
    data = placed(dataset(tf.data.Dataset.range(12), 4), (0, 3))
    data.load_state_dict(at_the_end)
    assert (data.epoch, len(data)) == (3, 0)
    assert list(data) == []  # the script runs the lines after its loop
    assert (data.epoch, len(data)) == (4, 1)
    data.load_state_dict(at_the_end)
    passed = data.for_fit(Trained())  # Keras fails where an epoch has no batch
    assert (data.epoch, int(passed.cardinality())) == (4, 1)


def test_an_iteration_from_before_a_roll_back_does_not_go_on(tf: Any, dataset: Callable[..., Any]) -> None:
    data = placed(dataset(tf.data.Dataset.range(8), 4))
    for taken in (1, 2):
        progress, batches = data.state_dict(), iter(data)
        for _ in range(taken):
            next(batches)
        data.load_state_dict(progress)
        with pytest.raises(UsageError, match="this iteration is over"):
            next(batches)
        assert data.state_dict() == progress


def test_batches_that_fit_trains_with_after_a_roll_back_or_for_other_data_do_not_count(
    tf: Any, dataset: Callable[..., Any]
) -> None:
    data, model = placed(dataset(tf.data.Dataset.range(40), 2)), Trained()
    iter(data.for_fit(model))
    model.batches = 3
    assert data.state_dict()["processed_num"] == 6
    data.load_state_dict({"epoch": 0, "processed_num": 2})
    model.batches = 5
    assert data.state_dict()["processed_num"] == 2
    iter(data.for_fit(model))
    model.batches = 6
    assert data.state_dict()["processed_num"] == 4
    model.batches = 0  # as fit does first; it has other data
    assert data.state_dict()["processed_num"] == 4
    model.batches = 9
    assert data.state_dict()["processed_num"] == 4


def test_a_dataset_of_unknown_length_is_counted_and_one_of_another_length_is_an_error(
    tf: Any, dataset: Callable[..., Any]
) -> None:
    odd = tf.data.Dataset.range(20).filter(lambda number: number % 2 == 1)
    data = placed(dataset(odd, 4))
    assert len(data) == 3
    assert [batch.numpy().tolist() for batch in data] == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19]]
    assert len(placed(dataset(odd, 4, length=10))) == 3
    for length in (9, 11):
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"expected to contain {length} elements"):
            list(placed(dataset(odd, 4, length=length)))


def test_what_is_for_fit_is_not_made_into_another_dataset(tf: Any, dataset: Callable[..., Any]) -> None:
    passed = placed(dataset(tf.data.Dataset.range(8), 4)).for_fit(Trained())
    with pytest.raises(UsageError, match="map and the like go before"):
        passed.map(lambda number: number)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (lambda tf: tf.data.Dataset.range(9).shuffle(3), {}, "a shuffle without a seed"),
        (lambda tf: tf.data.Dataset.range(9).shuffle(3, seed=1).map(lambda n: n), {}, "reshuffle_each_iteration=False"),
        (
            lambda tf: (lambda shuffled: lambda epoch: shuffled)(tf.data.Dataset.range(9).shuffle(3, seed=1)),
            {},
            "reshuffle_each_iteration=False",
        ),
        (
            lambda tf: tf.data.Dataset.range(9).map(lambda n: n, num_parallel_calls=2, deterministic=False),
            {},
            "deterministic=False",
        ),
        (lambda tf: tf.data.Dataset.range(9).repeat(), {}, "no end"),
        (lambda tf: tf.data.Dataset.range(0), {}, "no samples"),
        (lambda tf: tf.data.Dataset.range(9), {"shuffle": 1}, "shuffle is for arrays"),
        (lambda tf: lambda epoch: [epoch], {}, "returned a list"),
        (lambda tf: (np.arange(3), np.arange(4)), {}, "not equally many"),
        (lambda tf: 3, {}, "not equally many"),
        (lambda tf: object(), {}, "a value of type object"),
        (lambda tf: np.arange(3), {"batch_size": 0}, "batch_size is 0"),
        (lambda tf: np.arange(3), {"shuffle": True}, "shuffle is True; give a whole number"),
        (lambda tf: np.arange(3), {"shares": "measured"}, 'elastic.GlobalBatches(sampler, total, shares="measured")'),
        (lambda tf: np.arange(3), {"lenght": 3}, "lenght is not an option"),
    ],
)
def test_what_cannot_be_exact_is_refused_in_one_line(
    tf: Any, dataset: Callable[..., Any], given: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    tf.random.set_seed(None)  # a test before may have set one for all shuffles
    with pytest.raises(UsageError) as refused:
        dataset(given(tf), **{"batch_size": 2, **options})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_world_in_which_no_epoch_has_a_full_batch_is_refused(tf: Any, dataset: Callable[..., Any]) -> None:
    data = placed(dataset(tf.data.Dataset.range(9), 5, drop_remainder=True), (1, 2))
    with pytest.raises(UsageError, match="9 samples are less than one batch of 5 on each of 2 ranks"):
        list(data)
    with pytest.raises(UsageError, match="9 samples are less than one batch of 5 on each of 2 ranks"):
        data.for_fit(Trained())
    data.place = (0, 1)
    assert [batch.shape[0] for batch in data] == [5]


class Interrupted(Exception):
    """Stands for what a callback of Keras raises."""


@pytest.mark.parametrize("at_once", [1, 3], ids=["one batch a call", "three batches a call"])
def test_keras_trains_with_each_sample_once_an_epoch_wherever_callbacks_commit_and_worlds_end(
    tf: Any, dataset: Callable[..., Any], at_once: int
) -> None:
    trained: list[tuple[int, int]] = []

    class Model(tf.keras.Model):
        def train_step(self, samples: Any) -> Any:
            tf.numpy_function(lambda given: trained.extend((data.epoch, int(n)) for n in given), [samples], [])
            rows = tf.cast(samples, tf.float32)[:, None]
            return super().train_step((rows, rows))

    inputs = tf.keras.Input((1,))
    model = Model(inputs, tf.keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", steps_per_execution=at_once)
    data = placed(dataset(tf.data.Dataset.range(41), 3))
    last = Committed(data.state_dict(), [])
    begun: list[int] = []

    class Callbacks(tf.keras.callbacks.Callback):
        """Commits after each call, and ends the world after some."""

        def __init__(self, calls: int) -> None:
            super().__init__()
            self.calls = calls

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            begun.append(epoch)
            assert epoch == data.epoch

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            nonlocal last
            self.calls -= 1
            if self.calls:
                last = Committed(data.state_dict(), list(trained))
                return
            raise Interrupted  # the last call is not committed

    for calls in (4, 3, 9, 99):
        trained[:] = last.consumed
        data.load_state_dict(last.progress)
        try:
            passed = data.for_fit(model)
            model.fit(passed, epochs=3, initial_epoch=data.epoch, verbose=0, callbacks=[Callbacks(calls)])
        except Interrupted:
            continue
    assert Counter(trained) == Counter((epoch, sample) for epoch in range(3) for sample in range(41))
    assert begun[-1] == 2
    data.for_fit(model)
    assert data.epoch == 3
