"""Assigns the samples of an epoch to ranks whose number changes."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.data.rounds import Deal, Key, Progress, Reached, Round
from hvd_elastic_ext.worker.data.shares import MeasuredShares
from hvd_elastic_ext.worker.stock import ElasticSampler as StockSampler

if TYPE_CHECKING:
    from hvd_elastic_ext.worker.replay.recorder import Recorder

Indices = NDArray[np.int64]

_CHUNK: Final = 4096
_WORD: Final = 0xFFFFFFFF
_SWITCHES: Final = (bool, int, np.bool_, type(None))


def shuffled(count: int, *, seed: int, epoch: int) -> Indices:
    """Return 0 … ``count`` - 1 in the order of an epoch, the same on every machine and in every version.

    A Fisher-Yates shuffle by NumPy's ``RandomState``, whose stream is frozen, seeded with the words of ``seed`` and
    ``epoch``. No global generator is read or changed.
    """
    words = [part >> shift & _WORD for part in (seed, epoch) for shift in (0, 32)]
    return np.random.RandomState(words).permutation(count).astype(np.int64, copy=False)


def share(remaining: Indices, *, rank: int, size: int, drop_last: bool) -> Indices:
    """Assign ``remaining`` to ``size`` ranks in turn and return the part of ``rank``: equally many for each.

    If the samples do not divide evenly, some from the start of ``remaining`` are repeated; with ``drop_last``, the last
    ones are left out. After k samples on every rank, exactly the first k * size are consumed.
    """
    count = samples_each(len(remaining), size=size, drop_last=drop_last)
    if count == 0:
        return remaining[:0]
    part = remaining[rank::size][:count]
    if len(part) < count:  # one short: this rank's place in the last round is past the end
        part = np.append(part, remaining[(rank + (count - 1) * size) % len(remaining)])
    return part


def samples_each(remaining: int, *, size: int, drop_last: bool) -> int:
    """Return the number of samples per rank."""
    return remaining // size if drop_last else -(-remaining // size)


def _check(dataset: object, unknown: Iterable[str], *, seed: object, **switches: object) -> None:
    """Raise :class:`UsageError` for a dataset without a length, a seed that is not a whole number, other switches, and
    arguments of ``unknown`` names."""
    for name in unknown:
        if name == "shares":
            raise UsageError(
                "ElasticSampler has no shares: its batches have no weights; give them to "
                'elastic.GlobalBatches(sampler, total, shares="measured")'
            )
        options = ("seed", *switches)
        near = difflib.get_close_matches(name.lower(), options, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(options)}"
        raise UsageError(f"ElasticSampler: {name} is not an option; {hint}")
    if isinstance(dataset, type):
        raise UsageError(f"ElasticSampler was given the class {dataset.__name__}; give a dataset made of it")
    try:
        len(dataset)  # type: ignore[arg-type]
    except TypeError:
        numbers = f"; range({dataset}) has {dataset} samples" if isinstance(dataset, int) else ""
        raise UsageError(
            f"ElasticSampler was given a value of type {type(dataset).__name__}, which has no length; give a dataset "
            f"(elastic.ElasticStream takes data that can only be read in order){numbers}"
        ) from None
    if not hasattr(seed, "__index__"):
        raise UsageError(f"ElasticSampler: seed is {_shown(seed)}; give a whole number, the same on every rank")
    for name, value in switches.items():
        if not (isinstance(value, _SWITCHES) and value in (None, False, True)):
            raise UsageError(f"ElasticSampler: {name} is {_shown(value)}; give True or False")


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float) else f"a value of type {type(value).__name__}"


class ElasticSampler(StockSampler):  # type: ignore[misc]
    """Horovod's elastic sampler, exact through resizes and roll-backs.

    Pass it to the State, call ``record_batch`` after each batch and ``set_epoch`` with the next number after each
    epoch. Without ``set_epoch`` the next loop repeats the epoch in the same order.

    ``dataset``: anything with a fixed length. ``shuffle``: use an order drawn from ``seed`` and the epoch.
    ``drop_last``: leave out the samples that do not divide among the ranks, instead of repeating some. All four must be
    equal on every rank.

    Progress is one number, ``processed_num``: how much of the epoch's order all ranks have consumed together. Samples
    that a ``DataLoader`` fetched ahead do not count until they are recorded.
    """

    def __init__(
        self, dataset: Any, shuffle: bool = True, seed: int = 0, drop_last: bool = False, **unknown: NoReturn
    ) -> None:
        _check(dataset, unknown, seed=seed, shuffle=shuffle, drop_last=drop_last)
        # Do not call the stock __init__: it sets the same attributes, but also keeps a list of all indices.
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.rank, self.num_replicas = 0, 1
        self.processed_num = 0
        self.shares: MeasuredShares | None = None
        """Of the :class:`GlobalBatches` over this sampler; None: equal ones."""
        self.recorder: Recorder | None = None
        """Of the State with this sampler, under ``run --replay``."""
        self.processed_indices: set[int] = set()
        """Samples consumed before ``processed_num`` counted: by an older Horovod, or by ranks that train alone and were
        ahead of the others at an average."""
        self.round: Round | None = None
        """Where ranks train alone between two averages (:mod:`rounds`), what this one has taken since the last; else
        None."""
        self._order: Indices | None = None
        self._batch = 0
        """The largest recorded batch of this epoch: a loader may leave out fewer samples than that."""
        self._again = False
        """The epoch has restarted, and nothing of it is recorded: ``processed_num`` is still that of the last pass."""
        self._looped = False
        """A loop has begun since progress was loaded, so the next one is not the same loop entered again."""
        self._run_out = False
        """That loop has requested all its samples."""
        self._whole = False
        """A loader has given a batch that was smaller than the others, so it leaves out nothing."""
        self._warned = False
        self._kept = False
        """A State has asked for the progress. Another sampler, such as one for validation, may record nothing."""
        self._recorded = False
        """Progress was recorded at least once."""
        self._reminded = False
        self.reset()

    def world(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks."""
        return current_world.current()

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``. For the present epoch this changes nothing, and keeps its progress.

        So a script may call it before or after an epoch's loop. In both cases, no sample is repeated when the training
        function is entered again in the middle of the epoch.
        """
        if epoch != self.epoch:
            self._remind()
            if self.round is not None and epoch < self.epoch:
                self.round.known = {}  # of another training
            self._run_out = False
            self.epoch = epoch
            self.processed_num = self._batch = 0
            self.processed_indices = set()
            self._order = None
            self._again = self._looped = False
            if self.round is not None:
                self.round.fold()
                self.round.passes = 0
                self._know(Progress(0, ()))
        self.assign()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has consumed ``batch_size`` more samples. ``batch_idx`` is not used.

        Between two averages (``elastic.LocalSGD``): that this rank has.
        """
        self._batch = max(self._batch, batch_size)
        if self.round is None:
            self.record(batch_size * self.num_replicas)
            return
        deal = self._deal()  # also if nothing iterates over this sampler
        self.round.take(batch_size)
        self._whole |= batch_size < self._batch and deal.left == 0
        self._recorded = True

    def record(self, samples: int) -> None:
        """Record that all ranks together have consumed the next ``samples`` of the epoch's order."""
        self.processed_num = self._consumed + samples
        self._again, self._recorded = False, True

    def state_dict(self) -> dict[str, Any]:
        """Return the progress, with Horovod's keys. It is equal on every rank that has recorded the same.

        Horovod's sampler ignores ``batch_size``, the largest recorded batch of this epoch.
        """
        self._kept = True
        state: dict[str, Any] = {"epoch": self.epoch, "processed_num": self._consumed}
        if self._batch:
            state["batch_size"] = self._batch
        if self.processed_indices:
            state["processed_indices"] = sorted(self.processed_indices)
        if self.round is not None and self.round.passes:
            state["passes"] = self.round.passes
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the progress, also from Horovod's own sampler, and assign the rest.

        Older ones have ``processed_indices``; these samples are left out of this epoch.
        """
        epoch, processed = int(state_dict["epoch"]), set(state_dict.get("processed_indices", ()))
        number, passes = int(state_dict.get("processed_num", 0)), int(state_dict.get("passes", 0))
        if self.round is not None:  # it may be from before this world, whose ranks have told what they know
            own, order = Progress(number, tuple(sorted(processed))), self._whole_order(epoch)
            number, besides = self.round.averaged_of((epoch, passes), own, order)
            processed = set(besides)
        same_epoch = (epoch, processed) == (self.epoch, self.processed_indices)
        if not same_epoch:
            self._order = None
        if self.round is not None:
            if same_epoch and (number, passes) == (self._consumed, self.round.passes):
                self.round.go_back()
            else:
                self.round.forget()
            self.round.passes = passes
        self.epoch = epoch
        self.processed_num = number
        self.processed_indices = processed
        self._batch = int(state_dict.get("batch_size", 0))
        self._again = False
        self._enter()

    def reset(self) -> None:
        """Assign the rest. Called before the training function is entered again."""
        if self.round is not None:
            self.round.fold()
        self._enter()

    def _enter(self) -> None:
        self._looped = False
        if self.shares is not None:
            self.shares.begin_world()
        self.assign()

    def assign(self) -> None:
        """Assign the rest to the ranks of the present world."""
        place = self.world()
        if place != (self.rank, self.num_replicas):
            self._looped = False  # the loop of the earlier world did not end
            if self.round is not None:
                self.round.fold()
        self.rank, self.num_replicas = place
        if self.round is not None:
            self.num_samples = self._deal().left
        else:
            left = max(0, len(self.dataset) - len(self.processed_indices) - self._consumed)
            self.num_samples = samples_each(left, size=self.num_replicas, drop_last=self.drop_last)
        self.total_size = self.num_samples * self.num_replicas

    def begin_loop(self, *, nothing_left: bool) -> None:
        """Note the start of a loop, after :meth:`assign`. With ``nothing_left``, the epoch may restart.

        If a loop is entered again after a resize or a roll-back, and nothing is left, it ends at once: the script only
        has to run the lines after the loop. The next loop, without ``set_epoch`` in between, is another pass: it gets
        the same samples in the same order, as with Horovod's sampler.
        """
        again = nothing_left and self._looped and bool(self._consumed or self.processed_indices)
        self._looped, self._run_out = True, False
        if again:
            self._again = True
            if self.processed_indices:
                self.processed_indices, self._order = set(), None
            if self.round is not None:
                self.round.fold()
                self.round.passes += 1
                self._know(Progress(0, ()))
            self.assign()
            self._warn()

    def _warn(self) -> None:
        if self.rank == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                f"ElasticSampler: epoch {self.epoch} is complete and starts again in the same order; "
                f"call set_epoch({self.epoch + 1}) after the loop for the next epoch",
                stacklevel=4,
            )

    def _remind(self) -> None:
        """Warn once if a pass through the epoch has ended and nothing of it was recorded."""
        recorded = self._recorded or self.processed_num or self.processed_indices
        ended = self._looped and self._run_out and self.num_samples > 0
        if self._kept and ended and not recorded and not self._reminded and self.rank == 0:
            self._reminded = True
            warnings.warn(
                f"ElasticSampler: nothing of epoch {self.epoch} was recorded, so after a resize or a failure all of an "
                "epoch is done again; after each batch, before state.commit(), add: "
                "sampler.record_batch(batch_idx, batch_size)",
                stacklevel=3,
            )

    @property
    def _consumed(self) -> int:
        """How much of the epoch's order the present pass has consumed."""
        return 0 if self._again else self.processed_num

    @property
    def remaining_indices(self) -> Indices:
        """The samples that no rank has consumed, in order."""
        return self.order()[self._consumed :]

    def order(self) -> Indices:
        """Return the whole epoch's order, which is made at the first use. Callers must not change it."""
        if self._order is None:
            order = self._whole_order(self.epoch)()
            if self.processed_indices:
                order = order[~np.isin(order, sorted(self.processed_indices))]
            self._order = order
        return self._order

    def _whole_order(self, epoch: int) -> Callable[[], Indices]:
        """What makes the order of a whole epoch."""
        count = len(self.dataset)
        return lambda: shuffled(count, seed=self.seed, epoch=epoch) if self.shuffle else np.arange(count)

    def __iter__(self) -> Iterator[int]:
        """Assign the rest again, by the recorded progress and the present world. Iterate over this rank's part."""
        self._remind()
        self.assign()
        left_out = self._run_out and self.num_samples < self._batch  # a loader with drop_last=True leaves them out
        self.begin_loop(nothing_left=left_out or self.num_samples == 0)
        if self.round is not None:
            self.indices = self._deal().own[self._deal().taken :]
        else:
            self.indices = share(
                self.remaining_indices, rank=self.rank, size=self.num_replicas, drop_last=self.drop_last
            )
        return self._numbers(self.indices)

    def __len__(self) -> int:
        """The samples of this rank in the last assignment; 0 when nothing is left."""
        if tuple(self.world()) != (self.rank, self.num_replicas):
            self.reset()
        return int(self.num_samples)

    def _numbers(self, indices: Indices) -> Iterator[int]:
        """Yield Python integers, because datasets use them as indices of lists and dictionaries."""
        for start in range(0, len(indices), _CHUNK):
            yield from indices[start : start + _CHUNK].tolist()
        self._run_out |= self.indices is indices  # false if a later loop has begun

    # --- rounds of ranks that train alone

    @property
    def key(self) -> Key:
        """The epoch that this rank is in, and its pass through it."""
        assert self.round is not None
        return self.epoch, self.round.passes

    @property
    def whole(self) -> bool:
        """Whether what is left of a part is trained with, also if it is less than a batch: as far as is known."""
        return self._whole

    @property
    def at_end(self) -> bool:
        """Whether this rank has taken of its part of the epoch what it can: nothing is left, or less than a batch."""
        deal = None if self.round is None else self.round.deal
        return deal is not None and deal.left < (1 if self._whole else max(1, self._batch))

    @property
    def reached(self) -> Reached:
        """How far this rank is."""
        empty = self.round is not None and self.round.deal is not None and self.round.deal.left == 0
        return Reached(self.key, self.at_end, empty, self._whole)

    @property
    def used_up(self) -> bool:
        """Whether it has come to that end since the last average."""
        deal = None if self.round is None else self.round.deal
        return deal is not None and deal.taken > deal.settled and self.at_end

    @property
    def passes_by(self) -> bool:
        """Whether nothing is left for this rank in a new world, since others have trained with the rest of the epoch,
        and that is not averaged. It would go on to the next epoch, and if they are lost, nobody trains with the rest.
        """
        return self.round is not None and self.at_end and len(self.round.held_of(self.epoch)) > 0

    @property
    def contributed(self) -> int:
        """How many samples this rank has consumed since the last average."""
        return 0 if self.round is None else self.round.samples

    @property
    def taken(self) -> int:
        """How many samples of the present deal this rank has consumed."""
        return 0 if self.round is None or self.round.deal is None else self.round.deal.taken

    def averaged(self, keys: Sequence[Key], taken: Sequence[int]) -> None:
        """Note an average of all ranks, each of which has consumed ``taken`` samples of its part of the epoch ``keys``.

        All that they have taken is consumed now. While a rank is in another epoch than the others, what was taken since
        the last average still is left out of the next deals.
        """
        round_ = self.round
        assert round_ is not None
        round_.samples = 0
        deal = self._deal()
        deal.settled = deal.taken
        first, besides = deal.progress(keys, taken)
        self.processed_num, self._again = first, False
        if (found := set(besides.tolist())) != self.processed_indices:
            self.processed_indices, self._order = found, None
        if len(set(keys)) == 1:
            deal.averaged = deal.taken
            round_.mine, round_.held = {}, {}
            round_.known = {key: found for key, found in round_.known.items() if key > self.key}

    @property
    def _progress(self) -> Progress:
        """What is averaged of the present pass, as far as this rank knows."""
        return Progress(self._consumed, tuple(sorted(self.processed_indices)))

    def rows(self) -> Indices:
        """What the ranks of a new world must know from this one, as in :meth:`Round.rows`."""
        assert self.round is not None
        self.round.fold()
        return self.round.rows(self.key, self._progress)

    def enter_world(self, rows: Indices, keys: Sequence[Key], *, whole: bool) -> None:
        """Deal the rest of the epoch to the ranks of a new world.

        ``rows``: the :meth:`rows` of all. ``keys``: where they are. ``whole``: whether one of them knows that loaders
        leave out nothing. A rank that was in another epoch at an average did not learn what was averaged of this one:
        now it does.
        """
        assert self.round is not None
        self.round.fold()
        self.round.learn(rows, key=self.key)
        self._know(self._progress)
        self.round.keys, self._whole = tuple(keys), whole
        self._looped = self._run_out = False  # the loop of the earlier world did not end
        self.assign()

    def _know(self, own: Progress) -> None:
        """Take what is averaged of the present epoch from ``own`` and from what the ranks of this world have told."""
        assert self.round is not None
        number, besides = self.round.averaged_of(self.key, own, self._whole_order(self.epoch))
        if (number, set(besides)) != (self._consumed, self.processed_indices):
            self.processed_num, self.processed_indices, self._order = number, set(besides), None
            self._again = False

    def _deal(self) -> Deal:
        """The present deal of a round. It is made from the progress that all ranks know."""
        round_ = self.round
        assert round_ is not None
        if round_.deal is None:
            remaining = self.remaining_indices
            held = np.isin(remaining, round_.held_of(self.epoch))  # a rank may also hold one that came twice
            pool = remaining[~held]
            members = round_.members(self.rank, self.num_replicas, key=self.key)
            own = share(pool, rank=members.index(self.rank), size=len(members), drop_last=self.drop_last)
            besides = np.union1d(np.array(sorted(self.processed_indices), dtype=np.int64), remaining[held])
            round_.deal = Deal(self.key, pool, own, self._consumed, besides, members)
        return round_.deal
