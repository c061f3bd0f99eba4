"""Streams under torch's own loaders, with real processes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from hvd_elastic_ext.core.errors import UsageError
from tests.unit.worker.shards import Files, PlacedStream, Record, as_loaded, records_of

# Machines with few cores are welcome to run these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_loader_processes_of_a_loader_that_does_not_know_the_stream_are_refused() -> None:
    running: Any = iter(DataLoader(PlacedStream((0, 1), Files([5])), num_workers=1))
    try:
        with pytest.raises(UsageError, match=r"stream\.loader"):
            next(running)
    finally:
        running._shutdown_workers()


@pytest.mark.parametrize("workers", [0, 2])
def test_real_loader_processes_deliver_as_dealt_and_what_they_fetched_ahead_is_not_consumed(workers: int) -> None:
    files = Files([7, 0, 12, 5, 9])
    stream = PlacedStream((1, 2), files)
    ahead = {"prefetch_factor": 4} if workers else {}
    loader = stream.loader(batch_size=2, num_workers=workers, **ahead)
    steps = list(as_loaded(stream.assign(workers), 1, 2))
    assert len(loader) == len(steps)
    running = iter(loader)
    consumed: list[list[int]] = []
    for number in range(4):
        batch = next(running)
        consumed.append(torch.stack(batch, 1).tolist())
        stream.record_batch(number, len(batch[0]))
    assert consumed == [[list(record) for record in batch] for batch in steps[:4]]
    commit = stream.state_dict()
    stream.record_batch(4, len(next(running)[0]))

    stream.load_state_dict(commit)
    stream.place = (0, 1)  # the other rank is lost: all that is left comes here
    rest = [tuple(record) for batch in loader for record in torch.stack(batch, 1).tolist()]
    other = [
        record for batch in list(as_loaded(PlacedStream((0, 2), files).assign(workers), 0, 2))[:4] for record in batch
    ]
    done = [tuple(record) for batch in consumed for record in batch]
    assert Counter(rest + other + done) == Counter(files.all())
    assert len(loader) == len(list(as_loaded(stream.assigned(workers), 0, 2)))
    del running


class InNoWorldThere(PlacedStream):
    def world(self) -> tuple[int, int]:
        assert get_worker_info() is None, "a loader process that was started empty is in no world"
        return super().world()


def test_loader_processes_that_start_empty_read_what_was_dealt_to_their_rank() -> None:
    stream = InNoWorldThere((2, 3), Files([9, 6]), shuffle=False)
    loader = stream.loader(batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert [torch.stack(batch, 1).tolist() for batch in loader] == [[[1, 1], [1, 2]], [[1, 3], [1, 4]], [[1, 5]]]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("records", "batch"), [(1, 4), (17, 4), (26, 5)])
def test_torch_delivers_in_the_order_that_is_counted_on(records: int, batch: int, drop_last: bool) -> None:
    stream = PlacedStream((0, 1), Files([records]))
    loader = stream.loader(batch_size=batch, num_workers=3, drop_last=drop_last)
    expected = [part for part in as_loaded(stream.assign(3), 0, batch) if len(part) == batch or not drop_last]
    assert len(loader) == len(expected)
    consumed: list[Record] = []
    for number, part in enumerate(loader):
        consumed += [(shard, index) for shard, index in torch.stack(part, 1).tolist()]
        stream.record_batch(number, len(part[0]))
        left = {record for worker in range(3) for record in records_of(stream, worker)}
        assert left == {(0, index) for index in range(records)} - set(consumed), "what is left is what did not come"
    assert consumed == [record for part in expected for record in part]
