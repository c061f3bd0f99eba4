"""Dealing out the records of shards: the elastic sampler's twin for data that can only be read in order."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.data.assignment import Assignment, Consumed, Range, Ranges, joined
from hvd_elastic_ext.worker.data.sampler import shuffled

_UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class Leases:
    """What one rank was given: read to the end, begun, not begun."""

    finished: Ranges
    in_flight: Ranges
    waiting: Ranges


class ElasticStream(IterableDataset[Any]):
    """Records of ``shards``, each consumed once an epoch, through resizes and roll-backs.

    ``open_shard(shard, start)`` returns an iterable of a shard's records from
    number ``start`` on; one that takes only the shard is asked for all of them
    and the first ``start`` are dropped. ``lengths`` are the numbers of records,
    if you know them, or ``count(shard)`` finds one out; without either a shard
    is read through once to count. ``shuffle`` reads the shards in an order
    drawn from ``seed`` and the epoch, the records of a shard in their own
    order. ``drop_last`` leaves out the records that do not divide among the
    ranks, instead of repeating some.

    Pass it to the State, iterate over :meth:`loader` (or, without loader
    processes, over any ``DataLoader``), call ``record_batch`` after each batch
    and ``set_epoch`` with the next number after each epoch.

    Raises :class:`Permanent` while reading if a shard's length is not what it was.
    """

    def __init__(
        self,
        shards: Sequence[str],
        open_shard: Callable[..., Iterable[Any]],
        *,
        lengths: Sequence[int] | None = None,
        count: Callable[[str], int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if lengths is not None and len(lengths) != len(shards):
            raise UsageError(f"ElasticStream: {len(shards)} shards, but {len(lengths)} lengths; give one for each")
        self.shards = tuple(shards)
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._open = open_shard if takes_start(open_shard) else _Skipping(open_shard)
        self._count = count or self._read_through
        self._lengths: tuple[int | None, ...] = tuple(lengths) if lengths is not None else (None,) * len(shards)
        self._fingerprint = fingerprint(self.shards)
        self._counted: dict[int, int] = {}
        self._left: Ranges | None = None
        """What was left when last dealt; None: the whole epoch."""
        self._deal: Assignment | None = None
        self._taken = Consumed(())
        self._rank = 0
        self._loading = False

    def world(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks to deal to."""
        return current_world.current()

    def loader(self, batch_size: int | None = 1, num_workers: int = 0, **options: Any) -> StreamLoader:
        """Return a ``DataLoader`` over what is left whenever it is iterated; ``options`` are those of torch."""
        return StreamLoader(self, batch_size=batch_size, num_workers=num_workers, **options)

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``. For the epoch that is under way already this changes nothing."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._left = None
            self._deal = None

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has consumed one more batch, of ``batch_size`` records. ``batch_idx`` is not used.

        Call it once for each batch, in the order in which they came.
        """
        if self._deal is None:
            raise UsageError("ElasticStream.record_batch: nothing has been dealt yet; iterate over a loader first")
        self._taken = self._deal.take(self._taken, batch_size)

    def reset(self) -> None:
        """Forget the present deal: the next iteration deals what is left to the world as it is then."""
        self._left, self._deal = self._remaining(), None

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the epoch, and the lengths found so far; the same on every rank.

        It does not depend on the number of ranks. The values are text: copied
        at no cost, and as good in JSON.
        """
        left = self._remaining()
        return {
            "epoch": self.epoch,
            "left": None if left is None else " ".join(f"{shard}:{start}-{stop}" for shard, start, stop in left),
            "lengths": _as_text(self._lengths),
            "shards": self._fingerprint,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over progress. Raises :class:`Permanent` if it is that of other shards."""
        if state_dict["shards"] != self._fingerprint:
            raise Permanent(
                "ElasticStream: this progress was recorded over another list of shards; "
                "give the same names in the same order on every rank and in every run"
            )
        left = state_dict["left"]
        self.epoch = int(state_dict["epoch"])
        self._left = None if left is None else tuple(map(_range, left.split()))
        self._lengths = tuple(None if word == _UNKNOWN else int(word) for word in state_dict["lengths"].split())
        self._deal = None

    def measure(self) -> None:
        """Find out the lengths not known yet, each rank some of them. Every rank must call it at the same point.

        Best first thing in the training function. Without it each rank counts
        all of them for itself when it first iterates.
        """
        unknown = [number for number, length in enumerate(self._lengths) if length is None]
        comms = current_world.comms()
        if comms is None or not unknown:
            return self._measure_alone()
        rank, size = self.world()
        found = torch.zeros(len(unknown), dtype=torch.int64)
        for index in range(rank, len(unknown), size):
            found[index] = self._length(unknown[index])
        comms.sum(found, name="stream.lengths")
        learnt = dict(zip(unknown, found.tolist(), strict=True))
        self._lengths = tuple(learnt.get(number, length) for number, length in enumerate(self._lengths))
        return None

    def leases(self, rank: int | None = None) -> Leases:
        """What ``rank`` (this process's own, if not given) holds in the present deal, as every rank knows it."""
        deal = self._dealt()
        groups: tuple[list[Range], list[Range], list[Range]] = ([], [], [])
        for worker, taken in enumerate(self._taken.counts):
            hand = deal.hand(self._rank if rank is None else rank, worker)
            behind = 0
            for here in hand:
                length = here.stop - here.start
                groups[0 if taken >= behind + length else 1 if taken > behind else 2].append(here)
                behind += length
        return Leases(*map(joined, groups))

    def deal(self, workers: int) -> Assignment:
        """Assign what is left to the present world, for so many loader processes a rank; 0 reads in this process."""
        self._measure_alone()
        self._left = self._remaining()
        self._rank, size = self.world()
        ranges = self._whole_epoch() if self._left is None else self._left
        self._deal = Assignment(ranges, size, max(1, workers), self.drop_last)
        self._taken = self._deal.nothing_consumed()
        return self._deal

    def dealt(self, workers: int) -> Assignment:
        """Return the present deal; a new one if there is none that fits."""
        deal = self._deal
        fits = deal is not None and (deal.size, deal.workers) == (self.world()[1], max(1, workers))
        return deal if deal is not None and fits else self.deal(workers)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return self._read(self.deal(0).hand(self._rank, 0))
        if self._deal is None or not self._loading:
            raise UsageError("ElasticStream: a DataLoader with num_workers must be made by stream.loader(...)")
        # A loader process may be in no world; it reads what was dealt where it was made.
        return self._read(self._deal.hand(self._rank, worker.id))

    def __len__(self) -> int:
        """Records that this rank got when they were last dealt; 0 when nothing is left."""
        return self._dealt().each

    def _dealt(self) -> Assignment:
        return self.dealt(self._deal.workers if self._deal else 0)

    def _read(self, ranges: Ranges) -> Iterator[Any]:
        for here in ranges:
            yield from self._read_range(here)

    def _read_range(self, here: Range) -> Iterator[Any]:
        name, length = self.shards[here.shard], self._lengths[here.shard]
        records = iter(self._open(name, here.start))
        reached = here.start
        for record in islice(records, here.stop - here.start):
            reached += 1
            yield record
        if reached < here.stop:
            raise Permanent(f"shard {name!r} ended after {reached} of {length} records; {_KEEP}")
        if here.stop == length and next(records, _END) is not _END:
            raise Permanent(f"shard {name!r} has more than its {length} records; {_KEEP}")

    def _remaining(self) -> Ranges | None:
        if self._deal is None or not any(self._taken.counts):
            return self._left
        return self._deal.left(self._taken)

    def _whole_epoch(self) -> Ranges:
        count = len(self.shards)
        order = shuffled(count, seed=self.seed, epoch=self.epoch).tolist() if self.shuffle else range(count)
        return joined(Range(number, 0, self._lengths[number] or 0) for number in order)

    def _measure_alone(self) -> None:
        if None in self._lengths:
            self._lengths = tuple(self._length(number) for number in range(len(self.shards)))

    def _length(self, number: int) -> int:
        known = self._lengths[number]
        if known is None:
            # Counted by this process before, but forgotten by a roll-back: no need to read again.
            known = self._counted.get(number)
        if known is None:
            known = self._counted[number] = self._count(self.shards[number])
        return known

    def _read_through(self, shard: str) -> int:
        return sum(1 for _ in self._open(shard, 0))


class StreamLoader(DataLoader[Any]):
    """A ``DataLoader`` whose every iteration begins with what is left, dealt to the world as it is."""

    dataset: ElasticStream

    def __init__(self, stream: ElasticStream, **options: Any) -> None:
        for option, bad, why in _UNFIT:
            if options.get(option) == bad:
                raise UsageError(f"ElasticStream.loader: {option}={bad} does not work, {why}")
        super().__init__(stream, **options)

    def __iter__(self) -> Any:
        self.dataset.deal(self.num_workers)
        self.dataset._loading = True  # loader processes are copies of this one, made on the next line
        try:
            return super().__iter__()
        finally:
            self.dataset._loading = False

    def __len__(self) -> int:
        lengths = self.dataset.dealt(self.num_workers).lengths
        size = self.batch_size or 1
        return sum(length // size if self.drop_last else -(-length // size) for length in lengths)


_UNFIT: Final = (
    ("persistent_workers", True, "loader processes must start from the records that are left by then"),
    ("in_order", False, "which records were consumed is known by the order of the batches"),
)
_KEEP: Final = "shards must stay as they are while a job reads them"
_END: Final = object()


def takes_start(open_shard: Callable[..., Any]) -> bool:
    """True if ``open_shard`` has a second positional parameter that is required, or is called ``start``."""
    try:
        parameters = list(inspect.signature(open_shard).parameters.values())
    except ValueError:  # a builtin that does not say
        return True
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    return len(places) > 1 and (places[1].default is inspect.Parameter.empty or places[1].name == "start")


class _Skipping:
    """Gives ``open_shard`` a start. A class, so that spawned loader processes can receive it."""

    def __init__(self, open_shard: Callable[[str], Iterable[Any]]) -> None:
        self._open_shard = open_shard

    def __call__(self, shard: str, start: int) -> Iterator[Any]:
        return islice(self._open_shard(shard), start, None)


@functools.lru_cache(maxsize=8)
def _as_text(lengths: tuple[int | None, ...]) -> str:
    """The same for every commit of an epoch, so written once."""
    return " ".join(_UNKNOWN if length is None else str(length) for length in lengths)


def fingerprint(shards: Sequence[str]) -> str:
    """Hash the names and their order."""
    return hashlib.blake2b("\0".join(map(str, shards)).encode(), digest_size=16).hexdigest()


def _range(word: str) -> Range:
    shard, _, span = word.partition(":")
    start, _, stop = span.partition("-")
    return Range(int(shard), int(start), int(stop))
