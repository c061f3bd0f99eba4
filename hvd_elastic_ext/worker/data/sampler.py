"""Dealing out the samples of an epoch among ranks that come and go."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.comms.horovod import StockSampler

Indices = NDArray[np.int64]

_CHUNK: Final = 4096
_WORD: Final = 0xFFFFFFFF


def shuffled(count: int, *, seed: int, epoch: int) -> Indices:
    """Return 0 … ``count`` - 1 in the order of an epoch, the same on every machine and with every version.

    A Fisher-Yates shuffle by NumPy's ``RandomState``, whose stream NumPy has
    frozen for good, seeded with the words of ``seed`` and ``epoch``. No global
    generator is read or changed.
    """
    words = [part >> shift & _WORD for part in (seed, epoch) for shift in (0, 32)]
    return np.random.RandomState(words).permutation(count).astype(np.int64, copy=False)


def share(remaining: Indices, *, rank: int, size: int, drop_last: bool) -> Indices:
    """Deal ``remaining`` out among ``size`` ranks in turn and return what ``rank`` gets: equally many for each.

    What does not divide is padded by going through ``remaining`` again, as
    often as it takes, or with ``drop_last`` left out at the end. After k
    samples on every rank, exactly the first k * size have been consumed.
    """
    count = samples_each(len(remaining), size=size, drop_last=drop_last)
    if count == 0:
        return remaining[:0]
    hand = remaining[rank::size][:count]
    if len(hand) < count:  # one short: its turn in the last round comes after the end
        hand = np.append(hand, remaining[(rank + (count - 1) * size) % len(remaining)])
    return hand


def samples_each(remaining: int, *, size: int, drop_last: bool) -> int:
    """How many samples every rank gets."""
    return remaining // size if drop_last else -(-remaining // size)


class ElasticSampler(StockSampler):  # type: ignore[misc]
    """Horovod's elastic sampler, exact through resizes and roll-backs.

    Pass it to the State, call ``record_batch`` after each batch and
    ``set_epoch`` with the next number after each epoch. Without ``set_epoch`` the
    next loop goes through the same epoch again, in the same order.

    ``dataset``: anything with a length that stays the same. ``shuffle``: deal in
    an order drawn from ``seed`` and the epoch. ``drop_last``: leave out the
    samples that do not divide among the ranks, instead of repeating some.
    All four must be the same on every rank.

    Progress is one number, ``processed_num``: how much of the epoch's order all
    ranks together have consumed. Samples that a ``DataLoader`` fetched ahead do
    not count until they are recorded.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        # The stock class's own __init__ would set the same attributes, and keep a list of all indices.
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.rank, self.num_replicas = 0, 1
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        """Only for progress that an older Horovod recorded: what was consumed before ``processed_num`` counted."""
        self._order: Indices | None = None
        self._batch = 0
        """The largest batch recorded of this epoch: fewer samples than that may be what a loader leaves out."""
        self._again = False
        """The epoch was begun once more and nothing of that is recorded: ``processed_num`` is that of the last pass."""
        self._looped = False
        """A loop has begun since progress was loaded: one that comes now is the next, not the same entered again."""
        self._run_out = False
        """That loop's samples have all been asked for."""
        self._warned = False
        self.reset()

    def world(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks to deal to."""
        return current_world.current()

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``. For the epoch that is under way already this changes nothing: progress in it is kept.

        So it may stand before an epoch's loop or after it, and neither repeats
        samples when the training function is entered again in the middle.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self.processed_num = self._batch = 0
            self.processed_indices = set()
            self._order = None
            self._again = False
        self.deal()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has consumed ``batch_size`` more samples. ``batch_idx`` is not used; Horovod has it."""
        self._batch = max(self._batch, batch_size)
        self.record(batch_size * self.num_replicas)

    def record(self, samples: int) -> None:
        """All ranks together have consumed the next ``samples`` of the epoch's order."""
        self.processed_num = self._consumed + samples
        self._again = False

    def state_dict(self) -> dict[str, Any]:
        """Progress, under Horovod's keys; the same on every rank that has recorded the same.

        Horovod's sampler ignores ``batch_size``, the largest batch recorded of this epoch.
        """
        state: dict[str, Any] = {"epoch": self.epoch, "processed_num": self._consumed}
        if self._batch:
            state["batch_size"] = self._batch
        if self.processed_indices:
            state["processed_indices"] = sorted(self.processed_indices)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over progress and deal what is left. Accepts what Horovod's own sampler has saved.

        Older ones kept the ``processed_indices`` themselves: they are left out of this epoch.
        """
        epoch, processed = int(state_dict["epoch"]), set(state_dict.get("processed_indices", ()))
        if (epoch, processed) != (self.epoch, self.processed_indices):
            self._order = None
        self.epoch = epoch
        self.processed_num = int(state_dict.get("processed_num", 0))
        self.processed_indices = processed
        self._batch = int(state_dict.get("batch_size", 0))
        self._again = False
        self.reset()

    def reset(self) -> None:
        """Assign the samples not yet processed, for a training function that is entered again."""
        self._looped = False
        self.deal()

    def deal(self) -> None:
        """Assign the samples not yet processed among the ranks of the present world."""
        place = self.world()
        if place != (self.rank, self.num_replicas):
            self._looped = False  # a loop that began in another world did not come to its end
        self.rank, self.num_replicas = place
        left = max(0, len(self.dataset) - len(self.processed_indices) - self._consumed)
        self.num_samples = samples_each(left, size=self.num_replicas, drop_last=self.drop_last)
        self.total_size = self.num_samples * self.num_replicas

    def begin_loop(self, *, nothing_left: bool) -> None:
        """A loop begins, after :meth:`deal`. With ``nothing_left`` to deal, the epoch may be begun once more.

        A loop that is entered again, after a resize or a roll-back, with nothing left
        ends at once: only the script's lines after the loop were still to come. The
        loop after that one is another pass, and ``set_epoch`` was not called between
        them: it gets the same samples in the same order, as from Horovod's sampler.
        """
        again = nothing_left and self._looped and bool(self._consumed or self.processed_indices)
        self._looped, self._run_out = True, False
        if again:
            self._again = True
            if self.processed_indices:
                self.processed_indices, self._order = set(), None
            self.deal()
            self._warn()

    def _warn(self) -> None:
        if self.rank == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                f"ElasticSampler: epoch {self.epoch} has been consumed and is dealt again, in the same order; "
                f"call set_epoch({self.epoch + 1}) after the loop for the next epoch",
                stacklevel=4,
            )

    @property
    def _consumed(self) -> int:
        """How much of the epoch's order is consumed in the present pass over it."""
        return 0 if self._again else self.processed_num

    @property
    def remaining_indices(self) -> Indices:
        """What no rank has consumed yet, in the order in which it will be dealt."""
        return self.order()[self._consumed :]

    def order(self) -> Indices:
        """Return the whole epoch's order, made when it is first needed. Not to be changed."""
        if self._order is None:
            count = len(self.dataset)
            order = shuffled(count, seed=self.seed, epoch=self.epoch) if self.shuffle else np.arange(count)
            if self.processed_indices:
                order = order[~np.isin(order, sorted(self.processed_indices))]
            self._order = order
        return self._order

    def __iter__(self) -> Iterator[int]:
        """Assign again, from what is recorded by now and for the world as it is now."""
        self.deal()
        left_out = self._run_out and self.num_samples < self._batch  # by a loader with drop_last=True
        self.begin_loop(nothing_left=left_out or self.num_samples == 0)
        self.indices = share(self.remaining_indices, rank=self.rank, size=self.num_replicas, drop_last=self.drop_last)
        return self._numbers(self.indices)

    def __len__(self) -> int:
        """How many samples this rank got when they were last dealt; 0 when nothing is left."""
        if tuple(self.world()) != (self.rank, self.num_replicas):
            self.reset()
        return int(self.num_samples)

    def _numbers(self, indices: Indices) -> Iterator[int]:
        """Python's own integers, in pieces: datasets index lists and dictionaries with them."""
        for start in range(0, len(indices), _CHUNK):
            yield from indices[start : start + _CHUNK].tolist()
        self._run_out |= self.indices is indices  # not those of a loop that was left before
