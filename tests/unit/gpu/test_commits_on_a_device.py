"""Commits of state that is on a CUDA device: exact, in pinned memory, without a copy on the device."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn, optim

from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.worker.commits import layout
from hvd_elastic_ext.worker.commits.buffer import Commit, CommitBuffer, Contents
from hvd_elastic_ext.worker.commits.copying import MAX_STAGING_BYTES, PLAIN, SMALL, stagings
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, ParameterNames, part_for
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.unit.worker.made_commits import buffer_over, identity, raw

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
LONG = 2_000_000_000
"""Cycles that a device is kept busy for: about a second."""


class Trained:
    """A model, its optimizer on the device, and their State."""

    def __init__(self, *, width: int = 64, seed: int = 1, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(), nn.Linear(width, 2))
        self.net.to(DEVICE, dtype)
        self.optimizer = optim.Adam(self.net.parameters(), lr=0.01, **options)
        self.owner = SimpleNamespace(net=self.net, optimizer=self.optimizer, best=torch.ones(3, device=DEVICE), batch=0)
        self.width, self.dtype = width, dtype
        names = ParameterNames()
        parts = {name: part for name in ("net", "optimizer") if (part := part_for(getattr(self.owner, name), names))}
        self.inventory = Inventory(
            self.owner, parts, names=["best", "batch"], part_for=lambda value: part_for(value, names)
        )
        names.models = lambda: self.inventory.values_of(ModelPart)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.net(torch.rand(8, self.width, device=DEVICE, dtype=self.dtype)).pow(2).sum().backward()
        self.optimizer.step()
        self.owner.best.add_(1)
        self.owner.batch += 1

    def commit(self, buffer: CommitBuffer, number: int = 1) -> Commit:
        written = self.inventory.write()
        buffer.take(Contents(written.tree, written.tensors, written.firm), identity(number), step=number)
        last = buffer.last()
        assert last is not None
        return last

    def put_back(self, commit: Commit) -> bool:
        """Roll back; whether everything was copied in place."""
        with commit.copying() as copy_to:
            found = self.inventory.put_back(commit.tree, commit.layout, views=commit.views, copy_to=copy_to)
        return found is not None

    def told(self) -> str:
        return fingerprint(self.inventory.live())

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.inventory.write().tensors)


@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"fused": True}, {"amsgrad": True}], ids=str)
def test_a_roll_back_is_exact_and_can_be_repeated(options: dict[str, Any]) -> None:
    job, buffer = Trained(**options), buffer_over(None)
    job.step()
    commit = job.commit(buffer)
    expected = job.told()
    for _ in range(2):
        job.step()
        job.optimizer.param_groups[0]["lr"] *= 2
        assert job.told() != expected
        assert job.put_back(commit)
        assert job.told() == expected
    assert {parameter.device.type for parameter in job.net.parameters()} == {DEVICE}
    assert job.owner.best.device.type == DEVICE


def test_a_commit_holds_what_is_still_being_computed() -> None:
    weight = torch.zeros(1 << 20, device=DEVICE)
    buffer = buffer_over(None)
    for number in range(1, 4):
        torch.cuda._sleep(LONG // 10)
        weight.add_(1)
        buffer.take(Contents(b"", [weight], [True]), identity(number), step=number)
        last = buffer.last()
        assert bool((last.views[0] == number).all())


def test_a_commit_waits_for_no_stream_but_the_current_one() -> None:
    weight, buffer = torch.zeros(1 << 20, device=DEVICE), buffer_over(None)
    for number in (1, 2):  # both sides are there and pinned: pinning waits for the device
        buffer.take(Contents(b"", [weight], [True]), identity(number), step=number)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(LONG)
        done = other.record_event()
    buffer.take(Contents(b"", [weight], [True]), identity(3), step=3)
    assert not done.query()
    other.synchronize()


STAGED = sorted(PLAIN - {torch.bool}, key=str)


def many(seed: int = 1) -> list[torch.Tensor]:
    """Small tensors of random bytes, not a number among them, of every type and form; a large one, some on the host."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(), (5,), (33, 7), (0,), (2, 3, 4, 5), (1,), (256,), (8, 8)]
    made = []
    for dtype in [*STAGED, torch.complex64, torch.float32]:
        for number, shape in enumerate(shapes * 4):
            size = torch.empty(shape, dtype=dtype).nbytes
            data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
            tensor = data.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
            made.append(tensor if number % 5 == 4 else tensor.to(DEVICE))
    made += [torch.rand(9, generator=generator).to(DEVICE) > 0.5 for _ in range(8)]
    made += [torch.rand(64, generator=generator).to(DEVICE)[::2] for _ in range(8)]
    made += [torch.rand(4, 6, generator=generator).to(DEVICE).t() for _ in range(8)]
    made += [torch.rand(1, 3, 4, 4, device=DEVICE).contiguous(memory_format=torch.channels_last) for _ in range(8)]
    made += [torch.rand(1, device=DEVICE).expand(3, 4), torch.rand(1 << 20, device=DEVICE)]
    return made


def taken(buffer: CommitBuffer, tensors: list[torch.Tensor], number: int) -> Commit:
    buffer.take(Contents(b"", tensors, [n % 7 > 0 for n in range(len(tensors))]), identity(number), step=number)
    last = buffer.last()
    assert last is not None
    return last


def differing(tensors: Sequence[torch.Tensor], expected: Sequence[bytes]) -> list[int]:
    return [number for number, (tensor, bits) in enumerate(zip(tensors, expected, strict=True)) if raw(tensor) != bits]


def copied(commit: Commit, tensors: list[torch.Tensor], first: int) -> bool:
    with commit.copying() as copy_to:
        return copy_to(tensors, first)


def test_many_small_tensors_of_all_forms_are_committed_and_put_back_bit_by_bit() -> None:
    buffer, tensors = buffer_over(None), many()
    assert any(stagings(layout.plan(tensors, [True] * len(tensors)), tensors))
    for number in (1, 2, 3):
        live = many(number)
        commit = taken(buffer, live, number)
        assert [
            n for n, (view, tensor) in enumerate(zip(commit.views, live, strict=True)) if raw(view) != raw(tensor)
        ] == []
        for first, end in ((0, 300), (len(live) - 18, len(live) - 2)):  # dense ones, and turned ones
            own = live[first:end]
            expected = list(map(raw, own))
            torch.cuda._sleep(LONG // 100)
            for tensor in own:
                tensor.view(-1).view(torch.uint8).fill_(7) if tensor.is_contiguous() else tensor.fill_(7)
            assert copied(commit, own, first)
            assert differing(own, expected) == []


def test_many_small_tensors_still_being_computed_are_in_the_commit_and_a_roll_back_comes_after_them() -> None:
    live = [torch.zeros(100, device=DEVICE) for _ in range(500)]
    buffer = buffer_over(None)
    for number in range(1, 4):
        torch.cuda._sleep(LONG // 10)
        torch._foreach_add_(live, 1)
        commit = taken(buffer, live, number)
        assert all(bool((view == number).all()) for view in commit.views)
    torch.cuda._sleep(LONG // 10)
    torch._foreach_add_(live, 5)
    assert copied(commit, live, 0)
    torch._foreach_add_(live, 1)
    assert all(bool((tensor == 4).all()) for tensor in live)


def test_staging_memory_is_kept_and_limited() -> None:
    live = [torch.full((SMALL // 4,), float(n), device=DEVICE) for n in range(2 * MAX_STAGING_BYTES // SMALL)]
    buffer = buffer_over(None)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for number in (1, 2, 3):
        torch._foreach_add_(live, 1)
        commit = taken(buffer, live, number)
        assert all(bool((view == n + number).all()) for n, view in enumerate(commit.views))
        assert torch.cuda.memory_allocated() - before == MAX_STAGING_BYTES
    assert torch.cuda.max_memory_allocated() - before == MAX_STAGING_BYTES
    torch._foreach_zero_(live)
    assert copied(commit, live, 0)
    assert [float(tensor[-1]) for tensor in live] == [n + 3 for n in range(len(live))]
    taken(buffer, live[:1], 4)
    del commit
    assert torch.cuda.memory_allocated() == before


def test_without_memory_for_staging_tensors_are_copied_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    live, buffer = [torch.full((SMALL // 4,), float(n), device=DEVICE) for n in range(50)], buffer_over(None)
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        torch.cuda.empty_cache()
        commit = taken(buffer, live, 1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "slower" in caplog.text
    assert [float(view[0]) for view in commit.views] == list(range(50))
    assert float((live[3] * 2).mean()) == 6


def test_a_commit_in_inference_mode_serves_those_after_it() -> None:
    live, buffer = [torch.full((100,), float(n), device=DEVICE) for n in range(50)], buffer_over(None)
    with torch.inference_mode():
        taken(buffer, live, 1)
    torch._foreach_add_(live, 1)
    assert [float(view[0]) for view in taken(buffer, live, 2).views] == [n + 1 for n in range(50)]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_no_copy_of_the_model_is_made_on_the_device(order: torch.memory_format) -> None:
    job, buffer = Trained(width=4096), buffer_over(None)
    job.step()
    image = torch.ones(8, 64, 128, 128, device=DEVICE).contiguous(memory_format=order)
    job.owner.best = image
    size = job.bytes()
    for number in (1, 2, 3):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        written = job.inventory.write()
        buffer.take(Contents(written.tree, written.tensors, written.firm), identity(number), step=number)
        assert torch.cuda.max_memory_allocated() - before < 0.05 * size
    last = buffer.last()
    job.owner.best = torch.zeros(1, device=DEVICE)
    del image
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    texts = trees.decode(last.tree)
    for name, part in job.inventory.parts.items():
        part.restore(read(texts[name], lambda index, kind: last.views[index]))
    assert torch.cuda.max_memory_allocated() - before < 0.05 * size


def test_both_sides_are_pinned_and_stay_so_when_they_grow() -> None:
    buffer = buffer_over(None)
    for number, length in enumerate([1 << 10, 1 << 10, 1 << 20, 1 << 20, 1 << 10], start=1):
        buffer.take(Contents(b"", [torch.ones(length, device=DEVICE)], [True]), identity(number), step=number)
        last = buffer.last()
        assert last.views[0].is_pinned()
        assert last.views[0].device.type == "cpu"


def test_memory_that_takes_the_place_of_a_states_that_is_gone_gets_the_commits() -> None:
    for number in range(1, 9):
        weight = torch.full((1 << 18,), float(number), device=DEVICE)
        buffer = buffer_over(None)
        for commit in (1, 2, 3):
            buffer.take(Contents(b"", [weight + commit], [True]), identity(commit), step=commit)
            last = buffer.last()
            assert last.views[0].is_pinned()
            assert bool((last.views[0] == number + commit).all())
        del buffer, last


def test_memory_that_cannot_be_pinned_leaves_no_error_to_the_next_kernel(caplog: pytest.LogCaptureFixture) -> None:
    weight, buffer = torch.ones(1 << 18, device=DEVICE), buffer_over(None)
    refused = torch.cuda.cudart()
    for side in buffer._sides:
        side.reserve(1 << 21)
        mapping = side.bytes.untyped_storage()
        assert int(refused.cudaHostRegister(mapping.data_ptr(), mapping.nbytes(), 0)) == 0
    try:
        buffer.take(Contents(b"", [weight], [True]), identity(1), step=1)
        assert "not pinned" in caplog.text
        assert float((weight * 2).sum()) == 2 * (1 << 18)
        assert bool((buffer.last().views[0] == 1).all())
    finally:
        for side in buffer._sides:
            refused.cudaHostUnregister(side.bytes.untyped_storage().data_ptr())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_newcomer_gets_the_optimizers_state_on_its_device(dtype: torch.dtype) -> None:
    job, newcomer = Trained(dtype=dtype), Trained(dtype=dtype, seed=2)
    job.step()
    for entry in job.optimizer.state.values():  # kept finer than the parameters, as some optimizers do
        entry["exp_avg"] = entry["exp_avg"].float() + 1e-4
    newcomer.put_back(job.commit(buffer_over(None)))
    assert newcomer.told() == job.told()
    for entry in newcomer.optimizer.state.values():
        assert (entry["exp_avg"].device.type, entry["exp_avg"].dtype) == (DEVICE, torch.float32)


def test_random_numbers_of_the_device_are_rolled_back() -> None:
    job = Trained()
    job.step()
    states = rng.capture()
    first = [torch.rand(4, device=DEVICE), nn.functional.dropout(torch.ones(99, device=DEVICE))]
    torch.rand(1000, device=DEVICE)
    for _ in range(2):
        rng.restore(states)
        again = [torch.rand(4, device=DEVICE), nn.functional.dropout(torch.ones(99, device=DEVICE))]
        assert all(map(torch.equal, first, again))


def test_newcomers_draw_differently_on_the_device() -> None:
    torch.cuda.init()
    seen = []
    for rank in (0, 1, 0):
        rng.seed_newcomer(5, 2, rank)
        seen.append(torch.rand(4, device=DEVICE).tolist())
    assert seen[0] == seen[2] != seen[1]


def test_training_on_after_a_roll_back_comes_to_the_same_with_dropout_on_the_device() -> None:
    job, buffer = Trained(), buffer_over(None)
    job.step()
    commit, states = job.commit(buffer), rng.capture()
    job.step()
    expected = job.told()
    job.step()
    job.put_back(commit)
    rng.restore(states)
    job.step()
    assert job.told() == expected


def test_state_on_two_devices_and_the_host_is_committed_at_once() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a GPU: this is about two of them")
    tensors = [torch.full((1 << 16,), float(n), device=where) for n, where in enumerate(("cuda:0", "cpu", "cuda:1"))]
    buffer = buffer_over(None)
    buffer.take(Contents(b"", tensors, [True] * 3), identity(1), step=1)
    last = buffer.last()
    assert [float(view[0]) for view in last.views] == [0, 1, 2]
