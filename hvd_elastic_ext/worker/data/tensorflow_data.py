"""The elastic sampler for TensorFlow: batches of a ``tf.data.Dataset`` or of arrays, each sample once an epoch.

Progress is that of ``sampler.py``: how much of the epoch's order all ranks together have consumed. Each iteration makes
a pipeline for the rest, which TensorFlow runs in threads of its own. What that has read ahead is not consumed: a batch
counts when a loop gets it, or when Keras has trained with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import tensorflow as tf

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.data.sampler import ElasticSampler, samples_each, share

# --- arithmetic


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank takes of the rest of an epoch. Every rank takes equally many batches, each of the same size."""

    start: int
    """Samples of the epoch that are consumed."""
    left: int
    """Samples that the ranks take, without padding."""
    rank: int
    size: int
    batch_size: int

    @property
    def each(self) -> int:
        """Samples per rank, padding included."""
        return samples_each(self.left, size=self.size, drop_last=False)

    @property
    def batches(self) -> int:
        """Batches per rank; the last one may be smaller."""
        return -(-self.each // self.batch_size)

    @property
    def padding(self) -> int | None:
        """Which sample of the epoch is this rank's last one, if the samples do not divide and it is one short."""
        more = self.left % self.size
        return self.rank - more if more and self.rank >= more else None


def part_of(left: int, *, start: int, rank: int, size: int, batch_size: int, drop_remainder: bool) -> Part:
    """Return what ``rank`` takes of ``left`` samples; with ``drop_remainder`` only batches that are full everywhere."""
    if drop_remainder:
        left -= left % (size * batch_size)
    return Part(start, left, rank, size, batch_size)


# --- where the samples are


class _Arrays:
    """Arrays and tensors with a sample in each row, in a tuple or a dictionary."""

    def __init__(self, data: Any) -> None:
        try:
            with tf.device("/CPU:0"):
                self._tensors = tf.nest.map_structure(tf.convert_to_tensor, data)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"elastic.dataset was given {_shown(data)}, which TensorFlow cannot take: give a tf.data.Dataset, a "
                "function of the epoch that returns one, or arrays in a tuple or a dictionary"
            ) from error
        lengths = {int(tensor.shape[0]) if tensor.shape.rank else None for tensor in tf.nest.flatten(self._tensors)}
        length = lengths.pop() if len(lengths) == 1 else None
        if length is None:
            raise UsageError(
                "elastic.dataset: the arrays have no rows, or not equally many; give arrays or tensors with one row "
                "for each sample, in a tuple or a dictionary"
            )
        self.length = length

    def rest(self, part: Part, sampler: ElasticSampler, *, drop_remainder: bool) -> Any:
        """Return the pipeline of a rank's batches."""
        left = sampler.remaining_indices[: part.left]
        own = share(left, rank=part.rank, size=part.size, drop_last=False)
        indices = tf.data.Dataset.from_tensor_slices(own).batch(part.batch_size, drop_remainder)
        return indices.map(self._rows, num_parallel_calls=tf.data.AUTOTUNE)

    def _rows(self, indices: Any) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), self._tensors)


class _Pipelines:
    """A pipeline for each epoch, which gives the same samples in the same order on every rank."""

    def __init__(self, make: Callable[[int], Any], length: int | None) -> None:
        self._make = make
        first = self._of(0)
        shared = {id(each) for each in _chain(first) if getattr(each, "_reshuffle_each_iteration", False)}
        if any(id(each) in shared for each in _chain(self._of(0))):
            raise UsageError(
                "elastic.dataset: this shuffle has another order each time that a rank begins to read; give "
                "reshuffle_each_iteration=False, or a function of the epoch: "
                "elastic.dataset(lambda epoch: ds.shuffle(…, seed=epoch), …)"
            )
        self.length = int(first.cardinality()) if length is None else length
        if self.length == tf.data.INFINITE_CARDINALITY:
            raise UsageError("elastic.dataset: this dataset has no end; leave out repeat(): an epoch is one pass")
        if self.length == tf.data.UNKNOWN_CARDINALITY:
            self.length = int(first.reduce(tf.constant(0, tf.int64), lambda count, *sample: count + 1))

    def rest(self, part: Part, sampler: ElasticSampler, *, drop_remainder: bool) -> Any:
        """Return the pipeline of a rank's batches."""
        whole = self._of(sampler.epoch).apply(tf.data.experimental.assert_cardinality(self.length))
        rest = whole.skip(part.start)
        if drop_remainder:
            rest = rest.take(part.left)
        own = rest.shard(part.size, part.rank)
        if part.padding is not None:
            # From the start of the epoch: to read the start of the rest again may take as long as all before it.
            own = own.concatenate(whole.skip(part.padding % self.length).take(1))
        return own.batch(part.batch_size, drop_remainder)

    def _of(self, epoch: int) -> Any:
        pipeline = self._make(epoch)
        if not isinstance(pipeline, tf.data.Dataset):
            raise UsageError(
                f"elastic.dataset: the function of the epoch returned a {type(pipeline).__name__}; return a "
                "tf.data.Dataset"
            )
        for each in _chain(pipeline):
            _demand_same_order(each)
        return pipeline


def _shown(data: object) -> str:
    return f"a value of type {type(data).__name__}"


def _chain(pipeline: Any) -> Iterator[Any]:
    """Yield a dataset and those that it is made from."""
    yield pipeline
    for each in pipeline._inputs():
        yield from _chain(each)


def _demand_same_order(pipeline: Any) -> None:
    if hasattr(pipeline, "_reshuffle_each_iteration"):
        seeds = [tf.get_static_value(seed) for seed in (pipeline._seed, pipeline._seed2)]
        if not any(seed is None or seed for seed in seeds):
            raise UsageError(
                "elastic.dataset: a shuffle without a seed has another order on every rank; give it one: "
                "shuffle(…, seed=…), list_files(…, seed=…)"
            )
    if getattr(pipeline, "_deterministic", None) == "false":
        raise UsageError(
            "elastic.dataset: a step of this dataset has deterministic=False, so its order is another one on every "
            "rank; leave that out"
        )


# --- the dataset


class _Sampler(ElasticSampler):
    """The progress, and the order of arrays."""

    def __init__(self, length: int, world: Callable[[], tuple[int, int]], *, seed: int | None) -> None:
        self._world = world
        super().__init__(range(length), shuffle=seed is not None, seed=seed or 0)

    def world(self) -> tuple[int, int]:
        return self._world()


class ElasticDataset:
    """What :func:`dataset` returns: the batches of this rank, and how much of the epoch all ranks have consumed.

    Give it to a State as a value. In a loop, each iteration gives the rest of the epoch, and the next one is the next
    epoch. For ``model.fit`` there is :meth:`for_fit`.
    """

    def __init__(
        self, source: _Arrays | _Pipelines, *, batch_size: int, seed: int | None, drop_remainder: bool
    ) -> None:
        self.batch_size = batch_size
        self.drop_remainder = drop_remainder
        self._source = source
        self._sampler = _Sampler(source.length, lambda: self.world(), seed=seed)
        self._part: Part = self._rest()
        """The part that is being consumed."""
        self._counter: Any = None
        """Keras's count of the batches that it has trained with, while it trains with that part."""
        self._counted = 0
        """That count when it was last looked at."""
        self._iteration: object = None
        """The loop that consumes that part."""

    def world(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks."""
        return current_world.current()

    @property
    def epoch(self) -> int:
        """The number of the present epoch, from 0. When a loop over its batches has ended, this is the next one."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``. For the present epoch this changes nothing, and keeps its progress."""
        self._count()
        if epoch != self._sampler.epoch:
            self._drop()
        self._sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress: ``epoch``, and ``processed_num``, the samples that all ranks have consumed of it.

        It does not depend on the number of ranks, and is equal on each.
        """
        self._count()
        return self._sampler.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the progress. Loops and iterators of before have ended."""
        self._drop()
        self._sampler.load_state_dict(state_dict)

    def for_fit(self, model: Any) -> Any:
        """Return a ``tf.data.Dataset`` for ``model.fit``, which counts the batches that ``model`` has trained with.

        If nothing is left of the present epoch, the next one begins here, so use :attr:`epoch` after this:
        ``model.fit(state.data.for_fit(model), epochs=EPOCHS, initial_epoch=state.data.epoch)``. Leave out
        ``steps_per_epoch``. Raises :class:`UsageError` for anything but a model of tf.keras (Keras 2).
        """
        counter = getattr(model, "_train_counter", None)
        if counter is None:
            raise UsageError(
                "elastic.dataset: for_fit takes the model that is trained, of tf.keras (Keras 2), and not "
                f"{_shown(model)}"
            )
        return ForFit(self, counter)

    def __len__(self) -> int:
        """Batches of this rank in the rest of the epoch, in the present world."""
        self._count()
        return self._rest().batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank in the rest of the epoch, then begin the next epoch. A batch counts as
        consumed when it is yielded.

        Raises :class:`UsageError` if progress was loaded since the last batch, and one of TensorFlow's errors if there
        are more or fewer samples than before.
        """
        self._count()
        self._begin(self._rest())
        iteration = self._iteration = object()
        if self._part.batches:
            for batch in self._pipeline():
                self._demand_present(iteration)
                self._record(1)
                yield batch
            self._demand_present(iteration)
        self._demand_batches()
        self._sampler.set_epoch(self._sampler.epoch + 1)

    def _demand_present(self, iteration: object) -> None:
        """Refuse to go on in an old world, or after a roll-back: what is left is not what was left then."""
        if self._iteration is not iteration:
            raise UsageError(
                "elastic.dataset: this iteration is over, because the State was rolled back or synced, or another "
                "iteration has begun; begin a new one, and keep no iterator from before"
            )

    def _rest(self) -> Part:
        """What this rank takes of the rest of the epoch in the present world."""
        self._sampler.assign()
        consumed = self._sampler.processed_num
        return part_of(
            max(0, self._source.length - consumed), start=consumed, rank=self._sampler.rank,
            size=self._sampler.num_replicas, batch_size=self.batch_size, drop_remainder=self.drop_remainder,
        )  # fmt: skip

    def _next(self) -> Part:
        """The same; of the next epoch, if nothing is left. Keras fails where an epoch has no batch."""
        self._count()
        part = self._rest()
        if part.batches == 0:
            self._demand_batches()
            self.set_epoch(self._sampler.epoch + 1)
            part = self._rest()
        return part

    def _demand_batches(self) -> None:
        """Refuse a world in which no epoch has a batch: scripts that go by epochs would train nothing, or never end."""
        size = self.world()[1]
        if self.drop_remainder and self._source.length < size * self.batch_size:
            raise UsageError(
                f"elastic.dataset: {self._source.length} samples are less than one batch of {self.batch_size} on each "
                f"of {size} ranks; give a smaller batch_size, or drop_remainder=False"
            )

    def _pipeline(self) -> Any:
        """The batches of the present part, in TensorFlow."""
        options = tf.data.Options()
        options.deterministic = True
        rest = self._source.rest(self._part, self._sampler, drop_remainder=self.drop_remainder)
        return rest.prefetch(tf.data.AUTOTUNE).with_options(options)

    def _begin(self, part: Part, counter: Any = None) -> None:
        self._drop()
        self._part = part
        if counter is not None:
            self._counter, self._counted = counter, int(counter.numpy())

    def _drop(self) -> None:
        """Count no more batches of the present part."""
        self._counter = self._iteration = None

    def _count(self) -> None:
        """Record the batches that Keras has trained with since the last look."""
        if self._counter is None:
            return
        now = int(self._counter.numpy())
        trained, self._counted = now - self._counted, now
        if trained < 0:  # it counts from 0 in each call of fit, and this one has not begun an epoch of ours yet
            self._drop()
        elif trained:
            self._record(trained)

    def _record(self, batches: int) -> None:
        """Record batches of every rank, as full ones: after the last one of an epoch, which may be smaller, nothing is
        left either way."""
        self._sampler.record(batches * self.batch_size * self._part.size)


class ForFit(tf.data.Dataset):  # type: ignore[misc]
    """The batches as Keras wants them. Keras iterates over it once an epoch, and asks how many batches that has."""

    def __init__(self, data: ElasticDataset, counter: Any) -> None:
        data._begin(data._next())
        pipeline = data._pipeline()
        self._elastic, self._counter, self._spec = data, counter, pipeline.element_spec
        super().__init__(pipeline._variant_tensor)

    def __iter__(self) -> Any:
        self._elastic._begin(self._elastic._next(), self._counter)
        return iter(self._elastic._pipeline())

    def cardinality(self) -> Any:
        """Return the batches of the epoch, or of its rest."""
        return tf.constant(self._elastic._next().batches, tf.int64)

    @property
    def element_spec(self) -> Any:
        """The types and shapes of a batch."""
        return self._spec

    @property
    def _variant_tensor(self) -> Any:
        if sys._getframe(1).f_code.co_name == "cardinality":  # so Keras of 2.15 asks how many batches there are
            return tf.data.Dataset.range(self.cardinality())._variant_tensor
        # TensorFlow asks for it to make another dataset of this one, which would have the batches of now forever.
        raise UsageError(
            "elastic.dataset: what for_fit returns is for model.fit as it is; map and the like go before "
            "elastic.dataset, and weights into the samples: (x, y, weight)"
        )

    def _inputs(self) -> list[Any]:
        return []


def dataset(
    data: Any,
    batch_size: int,
    *,
    shuffle: int | None = None,
    length: int | None = None,
    drop_remainder: bool = False,
    **unknown: NoReturn,
) -> ElasticDataset:
    """Return the batches of ``data``, each sample once an epoch, through resizes and roll-backs.

    Give it to a State as a value: ``elastic.KerasState(model, data=elastic.dataset(ds, 32))``. All arguments must be
    equal on every rank.

    ``data``: a ``tf.data.Dataset`` of single samples, not of batches, which gives the same samples in the same order
    whenever it is read; or a function of the epoch that returns one, for another order in each:
    ``lambda epoch: ds.shuffle(10_000, seed=epoch)``; or arrays with a row for each sample, in a tuple or a dictionary.
    ``batch_size``: samples of a batch on each rank.
    ``shuffle``: for arrays: a seed, from which and from the epoch its order is drawn; by default the order of the rows.
    ``length``: samples of an epoch. Needed only where TensorFlow does not know it (``ds.cardinality()``): without it
    each process reads such a dataset once to count them. A dataset of another length is one of TensorFlow's errors when
    it is read.
    ``drop_remainder``: leave out the end of an epoch that is not a full batch on every rank. Otherwise the last batch
    may be smaller, and if its samples do not divide among the ranks, some come twice, fewer than there are ranks.

    Raises :class:`UsageError`, one line, for a mistake in these, and for a dataset whose order is not the same for all:
    a shuffle without a seed, a step with ``deterministic=False``.
    """
    for name in unknown:
        if name == "shares":
            raise UsageError(
                "elastic.dataset has no shares: its batches have no weights, and are equal on all ranks; shares by "
                'measured speed are for training with torch: elastic.GlobalBatches(sampler, total, shares="measured")'
            )
        raise UsageError(
            f"elastic.dataset: {name} is not an option; there are batch_size, shuffle, length, drop_remainder"
        )
    for name, number, least in (("batch_size", batch_size, 1), ("length", length, 1), ("shuffle", shuffle, None)):
        if number is not None and (isinstance(number, bool) or not hasattr(number, "__index__")):
            raise UsageError(f"elastic.dataset: {name} is {number!r}; give a whole number")
        if number is not None and least is not None and number < least:
            raise UsageError(f"elastic.dataset: {name} is {number}; it must be at least {least}")
    if isinstance(data, tf.data.Dataset) or callable(data):
        if shuffle is not None:
            raise UsageError(
                "elastic.dataset: shuffle is for arrays; a tf.data.Dataset shuffles itself: "
                "elastic.dataset(lambda epoch: ds.shuffle(…, seed=epoch), …)"
            )
        source: _Arrays | _Pipelines = _Pipelines(data if callable(data) else lambda epoch: data, length)
    else:
        source = _Arrays(data)
    if source.length == 0:
        raise UsageError("elastic.dataset: there are no samples")
    return ElasticDataset(source, batch_size=batch_size, seed=shuffle, drop_remainder=drop_remainder)
