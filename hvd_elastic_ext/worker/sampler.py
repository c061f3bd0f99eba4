"""Dealing out the samples of an epoch among ranks that come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from hvd_elastic_ext.worker.comms.horovod import StockSampler, horovod_comms


def share(remaining: Sequence[int], *, rank: int, size: int, drop_last: bool) -> list[int]:
    """Deal ``remaining`` out among ``size`` ranks and return what ``rank`` gets: equally many for each.

    What does not divide is padded by going through ``remaining`` again, as
    often as it takes, or with ``drop_last`` left out at the end.
    """
    count = samples_each(len(remaining), size=size, drop_last=drop_last)
    return [remaining[(rank + turn * size) % len(remaining)] for turn in range(count)]


def samples_each(remaining: int, *, size: int, drop_last: bool) -> int:
    """How many samples every rank gets."""
    return remaining // size if drop_last else -(-remaining // size)


class ElasticSampler(StockSampler):  # type: ignore[misc]
    """Horovod's elastic sampler, which also survives the end of an epoch and any world size.

    Pass it to the State, call ``record_batch`` after each batch and
    ``set_epoch`` at the end of each epoch.

    ``dataset``: anything with a length that stays the same. ``shuffle``: deal in
    an order drawn from ``seed`` and the epoch. ``drop_last``: leave out the
    samples that do not divide among the ranks, instead of repeating some.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        self.drop_last = drop_last
        super().__init__(dataset, shuffle=shuffle, seed=seed)

    def world(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks to deal to."""
        comms = horovod_comms()
        return comms.rank(), comms.size()

    def reset(self) -> None:
        """Deal the samples not yet processed among the ranks of the present world."""
        self.rank, self.num_replicas = self.world()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)  # noqa: S311 - the same on every rank, not secret
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = samples_each(len(self.remaining_indices), size=self.num_replicas, drop_last=self.drop_last)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        self.indices = share(self.remaining_indices, rank=self.rank, size=self.num_replicas, drop_last=self.drop_last)
        return iter(self.indices)
