"""Lost steps of a stream are read again as the world that did them had read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hvd_elastic_ext.worker.replay import notes
from hvd_elastic_ext.worker.replay.notes import Deal, Runs
from hvd_elastic_ext.worker.replay.single import Samples
from tests.unit.worker.shards import Files, PlacedStream

# Machines with few cores are welcome to run these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Recorded:
    """A recorder of one rank's stream that only notes which steps there were, and has some to be done again."""

    def __init__(
        self, place: tuple[int, int], left: Runs = (), parts: tuple[int, ...] = (), *, most: int = 1, others: int = 0
    ) -> None:
        self.place, self.left, self.parts, self.most = place, left, parts, most
        self.others = others
        """Whether steps of another sampler come first."""
        self.done: list[notes.Run] = []
        self.samples: list[Sequence[Sequence[str]]] = []
        """Of each part of the steps that are done again."""

    def settle(self) -> None:
        pass

    def lost(self, source: object, most: int) -> list[Deal]:
        runs = [] if self.others else list(notes.each(self.left))[:most]
        return [Deal(run, self.place[1], self.parts, self.most) for run in runs]

    def world(self, source: object, *, rows: Any, lanes: notes.Lanes) -> notes.World:
        return notes.World(1, self.place[1], rows, "stream", lanes)

    def step(self, world: notes.World, *, at: int) -> None:
        notes.add(self.done, notes.Run(world, (), 1, at))

    def again(self, deal: Deal, starts: Any, *, samples: Samples) -> None:
        assert list(starts) == list(range(len(self.parts) + (len(self.parts) < self.most)))
        self.samples.append(samples())
        self.left = notes.without_first(self.left)


def steps_of(stream: PlacedStream, workers: int) -> list[list[tuple[Any, float]]]:
    """The batches and weights of all steps of an epoch."""
    found = []
    for step in stream.steps(stream.loader(batch_size=3, num_workers=workers)):
        found.append([(torch.stack(batch, 1).tolist(), weight) for batch, weight in step])
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_each_part_of_a_lost_step_is_read_as_it_was_and_the_rest_of_the_epoch_follows(workers: int) -> None:
    files = Files([7, 0, 12, 5, 9])  # 33 records: 3 steps of 9, and one of 6
    first, runs = {}, ()
    for rank in range(3):
        stream = PlacedStream((rank, 3), files, shares="measured")
        stream.recorder = recorder = Recorded((rank, 3))
        first[rank] = steps_of(stream, workers)
        runs = tuple(recorder.done)
    assert notes.count(runs) == len(first[0]) == 4
    assert len(runs) == 1
    assert notes.decode(notes.encode(runs)) == runs

    lost = notes.without_first(runs)  # the commit was after the first step
    lost = (notes.Run(lost[0].world, (), 2, lost[0].at),)  # and the loss before the last one
    again = {}
    dealt = notes.deal([2, 0], 3)
    for rank, parts in enumerate(dealt):
        stream = PlacedStream((rank, 2), files, shares="measured")
        stream.recorder = Recorded((rank, 2), lost, parts, most=2)
        again[rank] = steps_of(stream, workers)
        for number, part in enumerate(parts):
            for step in (1, 2):
                [(batch, weight)] = first[part][step]
                assert again[rank][step - 1][number] == (batch, pytest.approx(weight * 2 / 3))
                assert stream.recorder.samples[step - 1][number] == [f"{shard}:{record}" for shard, record in batch]
        for step in (0, 1):
            assert len(again[rank][step]) == 2, "all ranks make equally many passes"
            assert [weight for _, weight in again[rank][step][len(parts) :]] == [0.0] * (2 - len(parts))
    rest = [
        record for rank in again for step in again[rank][2:] for batch, weight in step if weight for record in batch
    ]
    wanted = [record for rank in first for batch, weight in first[rank][3] if weight for record in batch]
    assert sorted(rest) == sorted(wanted)


def test_steps_of_another_epoch_wait_for_it() -> None:
    files = Files([6])
    stream = PlacedStream((0, 1), files, shares="measured")
    stream.recorder = recorder = Recorded((0, 1))
    steps_of(stream, 0)
    left = tuple(recorder.done)
    later = PlacedStream((0, 1), files, shares="measured")
    later.set_epoch(1)
    later.recorder = Recorded((0, 1), left, (0,))
    assert len(steps_of(later, 0)) == 2
    assert notes.count(later.recorder.left) == 2


def test_lost_steps_after_those_of_another_sampler_are_read_again_by_the_loop_that_is_under_way() -> None:
    files = Files([20])
    first = PlacedStream((0, 1), files, shares="measured")
    first.recorder = recorder = Recorded((0, 1))
    wanted = steps_of(first, 0)
    left = tuple(recorder.done)
    left = (notes.Run(left[0].world, (), 2, 1),)  # the second and the third step
    stream = PlacedStream((0, 1), files, shares="measured")
    stream.recorder = recorder = Recorded((0, 1), left, (0,), others=1)
    found = []
    for step in stream.steps(stream.loader(batch_size=3)):
        found.append([(torch.stack(batch, 1).tolist(), weight) for batch, weight in step])
        recorder.others = 0  # they are done after the first step
    assert found == wanted
    assert recorder.left == ()
