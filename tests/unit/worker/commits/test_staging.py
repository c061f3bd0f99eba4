"""Small tensors that are copied together. A device is played by the host; tests/unit/gpu have a real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.format.tensor_places import ALIGNMENT
from hvd_elastic_ext.worker.commits import copying
from hvd_elastic_ext.worker.commits.buffer import Contents
from hvd_elastic_ext.worker.commits.copying import (
    FEWEST,
    MAX_STAGING_BYTES,
    PIECE,
    PLAIN,
    SMALL,
    Piece,
    Plan,
    Staging,
    pieces,
    stagings,
)
from hvd_elastic_ext.worker.commits.layout import Layout, plan
from tests.unit.worker.made_commits import buffer_over, contents, identity, memory_files, raw, seen

ONE, TWO, HOST = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")


def kinds() -> st.SearchStrategy[tuple[int, torch.dtype, torch.device | None, bool]]:
    sizes = st.sampled_from([0, 1, 3, 100, 3000, SMALL // 4, SMALL])
    dtypes = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.complex64])
    return st.tuples(sizes, dtypes, st.sampled_from([ONE, ONE, ONE, TWO, None]), st.booleans())


@given(st.lists(kinds(), max_size=40))
def test_a_piece_holds_small_plain_tensors_of_one_device_and_none_of_another_one(rows: list[Any]) -> None:
    tensors = [torch.empty(size, dtype=dtype) for size, dtype, _, _ in rows]
    devices, firm = [device for *_, device, _ in rows], [firm for *_, firm in rows]
    layout = plan(tensors, firm)
    found = pieces(layout, devices)
    staged = {number for some in found.values() for piece in some for number in piece.numbers}
    for device, some in found.items():
        ends = [0, *(piece.here + piece.length for piece in some)]
        assert all(end <= piece.here and piece.here % ALIGNMENT == 0 for end, piece in zip(ends, some, strict=False))
        assert ends[-1] <= MAX_STAGING_BYTES
        for piece in some:
            assert FEWEST <= len(piece.numbers) == len(set(piece.numbers))
            assert list(piece.numbers) == sorted(piece.numbers)
            assert piece.length <= PIECE
            for number in piece.numbers:
                place = layout.places[number]
                assert devices[number] == device
                assert place.dtype in PLAIN
                assert 0 < place.length <= SMALL
            covered = range(piece.there, piece.there + piece.length)
            inside = {number for number, place in enumerate(layout.places) if place.offset in covered and place.length}
            assert inside & staged == set(piece.numbers)
            assert len({firm[number] for number in piece.numbers}) == 1


def test_tensors_beyond_the_limit_are_not_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MAX_STAGING_BYTES", 2048)
    monkeypatch.setattr(copying, "PIECE", 1024)
    layout = plan([torch.ones(16)] * 64, [True] * 64)
    assert [(piece.here, piece.length) for piece in pieces(layout, [ONE] * 64)[ONE]] == [(0, 1024), (1024, 1024)]


def mixed() -> tuple[list[torch.Tensor], list[bool], Layout, list[Piece]]:
    """Tensors of which every third one is on the host, and one is large; the others lie in two pieces."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator) for shape in [(), (5,), (2, 3), (4,), (1, 2, 3, 2), (7,)] * 4]
    tensors = [tensor.to(dtype) for tensor, dtype in zip(tensors, [torch.float32, torch.bfloat16] * 12, strict=True)]
    tensors[4] = tensors[4].contiguous(memory_format=torch.channels_last)
    tensors[12] = torch.randn(SMALL, generator=generator)
    firm = [True] * len(tensors)
    layout = plan(tensors, firm)
    devices = [None if number % 3 == 2 else ONE for number in range(len(tensors))]
    (found,) = pieces(layout, devices).values()
    assert [piece.numbers for piece in found] == [
        tuple(n for n in some if n % 3 != 2) for some in (range(12), range(13, 24))
    ]
    return tensors, firm, layout, found


def test_what_is_gathered_is_in_its_place_and_zero_is_between(played: list[str]) -> None:
    tensors, _, layout, found = mixed()
    data = torch.full((layout.length,), 0xAB, dtype=torch.uint8)
    made = Staging(layout, found, HOST)
    for _ in range(2):
        made.gather(tensors, data)
    expected = torch.full((layout.length,), 0xAB, dtype=torch.uint8)
    for piece in found:
        expected[piece.there : piece.there + piece.length] = 0
    views, wanted = layout.views(data), layout.views(expected)
    for number in made.numbers:
        assert raw(views[number]) == raw(tensors[number])
        wanted[number].copy_(tensors[number])
    assert torch.equal(data, expected)
    assert played == ["own waits for present", "own is done"] * 2


@pytest.mark.parametrize(("first", "end"), [(0, 24), (0, 10), (10, 24), (3, 4), (12, 13)])
def test_some_tensors_are_brought_back_and_no_others(first: int, end: int, played: list[str]) -> None:
    tensors, _, layout, found = mixed()
    data = torch.zeros(layout.length, dtype=torch.uint8)
    for view, tensor in zip(layout.views(data), tensors, strict=True):
        view.copy_(tensor)
    live = [torch.zeros_like(tensor) for tensor in tensors[first:end]]
    made = Staging(layout, found, HOST)
    made.scatter(data, live, first)
    for number, tensor in enumerate(live, start=first):
        assert torch.equal(tensor, tensors[number]) is (number in made.numbers)
    assert played == ["own waits for present", "own is done"]


def test_what_a_piece_covers_beside_its_tensors_is_written_after_it(
    played: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, firm, layout, found = mixed()
    monkeypatch.setattr(copying, "stagings", lambda layout, tensors: [Staging(layout, found, HOST)])
    made = Plan(tensors, firm)
    data = torch.zeros(layout.length, dtype=torch.uint8)
    views = layout.views(data)
    made.store(tensors, data, views, later=[])
    assert list(map(raw, views)) == list(map(raw, tensors))
    for first, end in ((0, 24), (5, 20)):
        live = [torch.zeros_like(tensor) for tensor in tensors]
        assert made.load(data, views, live[first:end], first, later=[])
        assert list(map(raw, live[first:end])) == list(map(raw, tensors[first:end]))
        assert not any(tensor.any() for tensor in (*live[:first], *live[end:]))
    assert not made.load(data, views, [torch.zeros(5)], 0, later=[])
    assert not made.load(data, views, tensors, 1, later=[])


def test_a_roll_back_waits_for_its_copies_whatever_happens(played: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, firm, _, found = mixed()
    monkeypatch.setattr(copying, "stagings", lambda layout, tensors: [Staging(layout, found, HOST)])
    buffer = buffer_over(None)
    buffer.take(Contents(b"", tensors, firm), identity(1), step=1)
    last = buffer.last()
    assert last is not None
    played.clear()
    live = [torch.zeros_like(tensor) for tensor in tensors]

    def interrupted() -> None:
        with last.copying() as copy_to:
            assert copy_to is not None
            assert copy_to(live[:20], 0)
            assert played == ["own waits for present", "present waits for own"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert played[2:] == ["own is done"]
    assert list(map(raw, live[:20])) == list(map(raw, tensors[:20]))


def test_a_commit_of_another_process_is_not_copied_in_place() -> None:
    with memory_files() as files:
        mine = buffer_over(files)
        mine.take(contents(1), identity(1), step=1)
        other = buffer_over(files)
        last = other.last()
        assert last is not None
        with last.copying() as copy_to:
            assert copy_to is None


def test_an_interruption_while_tensors_are_gathered_leaves_the_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = buffer_over(None)
    buffer.take(contents(1), identity(1), step=1)
    before = seen(buffer)

    class Breaks:
        numbers = frozenset({0})

        def gather(self, tensors: Any, data: torch.Tensor) -> None:
            data.fill_(0xAB)
            raise KeyboardInterrupt

    monkeypatch.setattr(copying, "stagings", lambda layout, tensors: [Breaks()])
    with pytest.raises(KeyboardInterrupt):
        buffer.take(contents(2, count=5), identity(2), step=2)
    assert seen(buffer) == before


def test_without_memory_on_the_device_tensors_are_copied_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: Any) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(copying, "Staging", full)
    there: Any = [SimpleNamespace(is_cuda=True, device=ONE)] * FEWEST
    assert stagings(plan([torch.ones(2)] * FEWEST, [True] * FEWEST), there) == []
    assert "slower" in caplog.text
