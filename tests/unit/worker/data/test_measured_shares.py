"""Shares of a global batch by measured speed: the decision, the agreement of the ranks, and what follows for data."""

from __future__ import annotations

import gc
import itertools
import math
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.data import DataLoader

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.assignment import SharedAssignment
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches, micro_batches, passes
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.shares import FIRST, Limits, MeasuredShares, agree, bounds, decide, equal, pace, scaled
from hvd_elastic_ext.worker.data.stream import ElasticStream
from hvd_elastic_ext.worker.optim.step_waits import OwnTime
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepTimer
from tests.unit.worker.data.test_global_batches import averaged, backward, data, model
from tests.unit.worker.fake_gpu import Gpu, gpu
from tests.unit.worker.histories import HISTORIES, World
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.placed_samplers import PlacedSampler, enter
from tests.unit.worker.shards import LENGTHS, Files, PlacedStream, records

__all__ = ["gpu"]

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SPEEDS = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9)


# --- the decision


def step_s(seconds: Sequence[float], rows: Sequence[int]) -> float:
    return max(each * count for each, count in zip(seconds, rows, strict=True))


def test_a_rank_at_half_the_speed_gets_half_of_the_work_of_the_other() -> None:
    rows, why = decide([0.01, 0.02], (48, 48))
    assert rows == (64, 32)
    assert why == "the samples of a step are predicted to take 0.64 s instead of 0.96 s"


@given(seconds=SPEEDS, each=st.integers(1, 300), more=st.integers(0, 8))
def test_shares_add_up_and_stay_between_a_quarter_of_the_equal_one_and_four_times_that(
    seconds: list[float], each: int, more: int
) -> None:
    size = len(seconds)
    now = equal(each * size + more % size, size)
    rows, _ = decide(seconds, now)
    fair = sum(now) / size
    assert sum(rows) == sum(now)
    assert all(max(1, fair / 4) <= count <= max(4 * fair, math.ceil(fair)) for count in rows)
    assert rows == now or step_s(seconds, rows) < 0.95 * step_s(seconds, now)


@given(seconds=st.lists(st.floats(0.1, 5.0), min_size=2, max_size=3), total=st.integers(3, 24))
def test_no_other_shares_within_the_bounds_are_faster(seconds: list[float], total: int) -> None:
    size = len(seconds)
    fewest, most = bounds(total, size)
    rows, _ = decide(seconds, equal(total, size), Limits(gain=0.0))
    possible = itertools.product(range(fewest, most + 1), repeat=size)
    best = min(step_s(seconds, other) for other in possible if sum(other) == total)
    assert step_s(seconds, rows) == pytest.approx(best)


def test_shares_stay_while_others_would_hardly_be_faster_so_noise_changes_nothing() -> None:
    rows = (64, 32)
    assert decide([0.0100, 0.0208], rows)[0] == rows
    assert decide([0.0104, 0.0200], rows)[0] == rows
    assert decide([0.0100, 0.0100], rows)[0] == (48, 48), "the slow rank has recovered"


@pytest.mark.parametrize(
    ("seconds", "rows", "why"),
    [
        ([0.1, 0.0, 0.3], (4, 4, 4), "rank 1 has not been measured"),
        ([0.1, math.nan], (4, 4), "rank 1 has not been measured"),
        ([0.1, 0.3, 0.1], (1, 1, 0), "2 samples are too few for 3 ranks"),
    ],
)
def test_shares_stay_without_facts_or_without_samples_to_share(seconds: list[float], rows: Any, why: str) -> None:
    assert decide(seconds, rows) == (rows, why)


@given(rows=st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), total=st.integers(0, 200))
def test_the_same_shares_of_another_number_of_samples_are_off_by_less_than_one(rows: list[int], total: int) -> None:
    parts = scaled(tuple(rows), total)
    assert sum(parts) == total
    assert all(abs(part - total * each / sum(rows)) < 1 for part, each in zip(parts, rows, strict=True))


# --- the ranks agree


class Took:
    """A measurement that is known before."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def end(self) -> None: ...

    def seconds(self) -> float | None:
        return self._seconds


def do_steps(shares: MeasuredShares, count: int, *, seconds: float | None, rows: int, total: int = 96) -> None:
    for _ in range(count):
        shares.stepped(Took(seconds), rows, total=total)  # type: ignore[arg-type]


def agree_on(shares: MeasuredShares, comms: LockstepComms) -> Any:
    """A commit with one sampler in the State. What has changed."""
    return agree({"sampler": shares}, comms).get("sampler")  # type: ignore[arg-type]


def test_all_ranks_change_to_the_same_shares_at_the_same_commit_and_send_nothing_in_between() -> None:
    def rank_main(comms: LockstepComms) -> list[Any]:
        shares, seen = MeasuredShares(), []
        for _ in range(3 * FIRST):
            rows = shares.rows(96, 2)
            do_steps(shares, 1, seconds=(0.01, 0.02)[comms.rank()] * rows[comms.rank()], rows=rows[comms.rank()])
            changed = agree_on(shares, comms)
            seen.append((shares.rows(96, 2), None if changed is None else (changed["rows"], changed["rows_before"])))
        return seen

    (first, second), fabric = in_lockstep(2, rank_main)
    assert first == second
    assert [rows for rows, _ in first] == [(48, 48)] * (FIRST - 1) + [(64, 32)] * (2 * FIRST + 1)
    assert [change for _, change in first if change] == [([64, 32], [48, 48])]
    assert len(fabric.log) == 2, "after 8 steps, and 8 steps after the change"


def test_while_nothing_changes_the_ranks_compare_ever_more_rarely() -> None:
    def rank_main(comms: LockstepComms) -> None:
        shares = MeasuredShares()
        shares.rows(8, 2)
        for _ in range(1000):
            do_steps(shares, 1, seconds=1.0, rows=4)
            agree_on(shares, comms)

    _, fabric = in_lockstep(2, rank_main)
    assert len(fabric.log) == 17, "after 8, 16, 32, and then every 64 more steps"


def test_one_rank_without_a_measurement_leaves_the_shares_as_they_are_on_all() -> None:
    def rank_main(comms: LockstepComms) -> Any:
        shares = MeasuredShares()
        shares.rows(96, 2)
        do_steps(shares, FIRST, seconds=(0.5, None)[comms.rank()], rows=48)
        return agree_on(shares, comms), shares.rows(96, 2)

    seen, _ = in_lockstep(2, rank_main)
    assert seen == [(None, (48, 48))] * 2


def test_a_slow_step_now_and_then_does_not_count() -> None:
    def rank_main(comms: LockstepComms) -> Any:
        shares = MeasuredShares()
        shares.rows(96, 2)
        for number in range(FIRST):
            do_steps(shares, 1, seconds=(0.5, 30.0 if number < 3 else 0.5)[comms.rank()], rows=48)
        agree_on(shares, comms)
        return shares.rows(96, 2)

    assert in_lockstep(2, rank_main)[0] == [(48, 48)] * 2


def test_a_world_begins_with_equal_shares_and_the_launcher_is_told_of_others() -> None:
    shares, status = MeasuredShares(), standby.current().link.status
    shares._seconds = (1.0, 2.0)
    shares.report(shares.rows(96, 2), 1)
    assert status.share == (32, 96)
    shares.begin_world()
    assert (status.share, shares.rows(96, 2)) == (None, (48, 48))
    shares.report(shares.rows(96, 1), 0)
    assert status.share is None, "a rank that is alone has no share"


def test_all_samplers_of_a_state_follow_one_measured_speed_with_one_sum() -> None:
    def rank_main(comms: LockstepComms) -> Any:
        images, texts, unused = (MeasuredShares() for _ in range(3))
        for _ in range(FIRST):
            do_steps(images, 1, seconds=(0.5, 1.0)[comms.rank()], rows=48)
        for _ in range(2 * FIRST):  # a text takes ten times as long as an image
            do_steps(texts, 1, seconds=(0.5, 1.0)[comms.rank()], rows=5, total=10)
        state = {"images": images, "texts": texts, "unused": unused}
        changed = agree(state, comms)  # type: ignore[arg-type]
        rows = [each.rows(total, 2) for each, total in ((images, 96), (texts, 10), (unused, 30))]
        return {name: (fields["rows"], fields["sample_s"]) for name, fields in changed.items()}, rows

    (first, second), fabric = in_lockstep(2, rank_main)
    assert first == second
    assert first[0] == {
        "images": ([64, 32], pytest.approx([0.5 / 48, 1 / 48])),
        "texts": ([7, 3], pytest.approx([0.1, 0.2])),
    }
    assert first[1] == [(64, 32), (7, 3), (20, 10)]
    assert len(fabric.log) == 1


def test_a_sampler_that_was_not_used_lately_follows_the_speed_of_those_that_were() -> None:
    def rank_main(comms: LockstepComms) -> Any:
        images, texts = MeasuredShares(), MeasuredShares()
        state = {"images": images, "texts": texts}
        for each, slow in ((images, 1.0), (texts, 2.0), (texts, 1.0)):
            rows = each.rows(96, 2)[comms.rank()]
            do_steps(each, FIRST, seconds=rows * (1.0, slow)[comms.rank()], rows=rows)
            agree(state, comms)  # type: ignore[arg-type]
            do_steps(each, FIRST, seconds=rows * (1.0, slow)[comms.rank()], rows=rows)
            agree(state, comms)  # type: ignore[arg-type]
        return images.rows(96, 2), texts.rows(96, 2)

    assert in_lockstep(2, rank_main)[0] == [((48, 48), (48, 48))] * 2


@pytest.mark.parametrize(("slow", "rows"), [(1.01, (48, 48)), (1.04, (48, 48)), (2.0, (64, 32))])
def test_a_sampler_that_is_first_used_later_follows_a_speed_and_no_noise(slow: float, rows: Any) -> None:
    def rank_main(comms: LockstepComms) -> Any:
        images, unused = MeasuredShares(), MeasuredShares()
        do_steps(images, FIRST, seconds=(1.0, slow)[comms.rank()], rows=48)
        agree({"images": images, "unused": unused}, comms)  # type: ignore[arg-type]
        return unused.rows(96, 2), unused.rows(960, 2)

    assert in_lockstep(2, rank_main)[0] == [(rows, (10 * rows[0], 10 * rows[1]))] * 2


@given(
    seconds=st.lists(st.tuples(*[st.floats(1e-6, 1e3)] * 3), min_size=1, max_size=4),
    samples=st.lists(st.integers(1, 1000), min_size=4, max_size=4),
)
def test_one_speed_is_in_the_mean_1_and_the_same_as_that_of_a_sampler_that_is_alone(
    seconds: list[tuple[float, ...]], samples: list[int]
) -> None:
    found = pace(seconds, samples[: len(seconds)])
    assert sum(found) == pytest.approx(3)
    alone = pace(seconds[:1], samples[:1])
    assert alone == pytest.approx([each / sum(seconds[0]) * 3 for each in seconds[0]])
    assert (
        pace([*seconds, (1.0, 0.0, 1.0)], samples[: len(seconds) + 1] if len(seconds) < 4 else [*samples, 9]) == found
    )


def test_nothing_is_known_of_a_speed_that_no_sampler_has_measured_on_all_ranks() -> None:
    assert pace([(1.0, 0.0), (math.inf, 1.0)], [5, 5]) == ()


def test_shares_go_to_loader_processes_without_what_was_measured() -> None:
    shares = MeasuredShares()
    do_steps(shares, 1, seconds=1.0, rows=4)
    assert list(pickle.loads(pickle.dumps(shares))._measured) == []


# --- a rank's own time


def test_a_rank_s_own_time_is_without_its_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    timer = StepTimer(Status(), lambda: now[0])
    monkeypatch.setattr(standby.current(), "step_timer", timer)
    measured = OwnTime.begin()
    now[0] += 2.0
    with timer.waiting():
        now[0] += 5.0
    now[0] += 1.0
    measured.end()
    now[0] += 50.0
    with timer.waiting():
        now[0] += 5.0
    assert measured.seconds() == 3.0


def test_a_rank_s_own_time_is_unknown_if_a_wait_within_it_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    timer = StepTimer(Status(), lambda: now[0])
    monkeypatch.setattr(standby.current(), "step_timer", timer)
    timer._measured_at = 100.0
    measured = OwnTime.begin()
    assert not timer.measures(), "so short a time after the last one"
    measured.end()
    assert measured.seconds() is None


def test_on_a_gpu_the_device_measures_what_the_host_only_queues(gpu: Gpu) -> None:
    gpu.work(30.0)  # of the step before
    measured = OwnTime.begin()
    gpu.work(2.0)
    measured.end()
    gpu.work(40.0)
    assert measured.seconds() == 2.0
    assert measured.seconds() == 2.0, "asked again"


def test_on_a_gpu_a_rank_s_own_time_is_without_the_waits_of_the_device(gpu: Gpu) -> None:
    gpu.work(30.0)
    measured = OwnTime.begin()
    gpu.work(2.0)
    with gpu.timer.waiting():
        gpu.wait(7.0)
    gpu.work(0.5)
    with gpu.timer.waiting():
        gpu.wait(9.0)
    measured.end()
    assert measured.seconds() == 2.5


def test_on_a_gpu_a_rank_s_own_time_is_with_what_the_device_waits_for_its_host(gpu: Gpu) -> None:
    measured = OwnTime.begin()
    gpu.now += 3.0  # the loader
    gpu.work(2.0)
    measured.end()
    assert measured.seconds() == 5.0


def test_on_a_gpu_the_host_waits_for_each_stream_whose_events_it_asks_for_times(gpu: Gpu) -> None:
    measured = OwnTime.begin()
    gpu.work(2.0)
    with gpu.timer.waiting():
        gpu.wait(7.0)
    measured.end()
    *others, last = measured._events
    waited = []
    for event in (*others, last):
        event.synchronize = lambda event=event: waited.append(event)
    gpu.known_to = last.at
    assert measured.seconds() == 2.0
    assert waited == [*others, last]


def test_on_a_gpu_the_steps_of_two_samplers_may_be_measured_at_once(gpu: Gpu) -> None:
    first = OwnTime.begin()
    gpu.work(2.0)
    second = OwnTime.begin()
    with gpu.timer.waiting():
        gpu.wait(7.0)
    gpu.work(1.0)
    first.end()
    gpu.work(4.0)
    second.end()
    assert [first.seconds(), second.seconds()] == [3.0, 5.0]


def test_on_a_gpu_a_rank_s_own_time_is_unknown_with_a_wait_that_failed_within_it(gpu: Gpu) -> None:
    measured = OwnTime.begin()
    gpu.timer.mark()  # DDP's wait begins; a pass that raises does not come to its end
    measured.end()
    assert measured.seconds() is None


def test_a_step_that_is_left_before_its_end_is_measured_no_longer(gpu: Gpu) -> None:
    left = OwnTime.begin()
    del left
    gc.collect()
    before = gpu.made
    with gpu.timer.waiting():
        pass
    assert gpu.made == before


def test_without_an_agent_waits_are_measured_once_shares_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby.current(), "step_timer", None)
    OwnTime.begin()
    made = standby.current().step_timer
    OwnTime.begin()
    assert made is not None
    assert standby.current().step_timer is made


# --- global batches


class Chosen:
    """``Comms`` of a rank among ``size``, of which each takes the seconds a sample that a test has chosen."""

    def __init__(self, rank: int, seconds: Sequence[float]) -> None:
        self._rank, self._seconds = rank, seconds

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return len(self._seconds)

    def sum(self, given: torch.Tensor, *, name: str) -> None:
        given.copy_(torch.tensor(self._seconds, dtype=torch.float64).expand_as(given))


def change(shared: Sequence[Any], seconds: Sequence[float]) -> None:
    """A commit of all ranks of a world, which takes these seconds for a sample, by rank."""
    for rank, each in enumerate(shared):
        each.shares.every = 0
        each.shares.steps, each.shares.samples = 1, 1
        agree({"sampler": each.shares}, Chosen(rank, seconds))  # type: ignore[arg-type]


@settings(max_examples=30)
@given(
    count=st.integers(1, 40),
    total=st.integers(1, 20),
    seconds=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6),
    largest=st.none() | st.integers(1, 7),
)
def test_the_averaged_gradient_is_that_of_one_process_whatever_the_shares(
    count: int, total: int, seconds: list[float], largest: int | None
) -> None:
    size, gradients, samples = len(seconds), [], data(count)
    for rank in range(size):
        sampler = PlacedSampler((rank, size), count, seed=1)
        batches = GlobalBatches(sampler, total, largest, shares="measured")
        batches.shares._seconds = tuple(seconds)
        net = model()
        step = next(batches.steps(DataLoader(samples, batch_sampler=batches)))
        backward(net, step)
        assert step.passes <= batches.passes
        gradients.append([parameter.grad for parameter in net.parameters()])
    inputs, labels = samples[PlacedSampler((0, 1), count, seed=1).order()[:total]]
    alone = model()
    F.cross_entropy(alone(inputs), labels).backward()
    for ours, theirs in zip(averaged(gradients), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad)


@given(total=st.integers(1, 60), seconds=SPEEDS, largest=st.none() | st.integers(1, 9))
def test_all_ranks_make_as_many_passes_and_none_takes_more_than_it_can(
    total: int, seconds: list[float], largest: int | None
) -> None:
    size = len(seconds)
    rows, _ = decide(seconds, equal(total, size))
    parts = [micro_batches(total, rank=rank, size=size, largest=largest, rows=rows) for rank in range(size)]
    assert {len(each) for each in parts} == {passes(total, size=size, largest=largest, most=max(rows))}
    assert all(len(micro.places) <= (largest or total) for each in parts for micro in each)
    counted = Counter(place for each in parts for micro in each if micro.weight for place in micro.places)
    assert counted == Counter(range(total))


class AsLoaded:
    """A loader that delivers the indices themselves."""

    def __init__(self, batches: GlobalBatches) -> None:
        self.batch_sampler = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)


SPEED = st.lists(st.floats(0.1, 5.0), min_size=9, max_size=9)


@given(
    count=st.integers(1, 300),
    total=st.integers(1, 40),
    largest=st.none() | st.integers(1, 40),
    history=HISTORIES,
    speeds=st.lists(SPEED, min_size=1, max_size=5),
    drop_last=st.booleans(),
)
def test_global_batches_are_the_same_ones_though_shares_change_at_commits_through_any_losses_and_resizes(
    count: int, total: int, largest: int | None, history: list[World], speeds: list[list[float]], drop_last: bool
) -> None:
    speed = itertools.cycle(speeds)
    progress: dict[str, Any] = {"epoch": 0, "processed_num": 0}
    committed: list[list[int]] = []
    for world in [*history, World(size=3, batches=count + 1, commit_every=1, end="resize")]:
        live = list(committed)
        samplers = [PlacedSampler((rank, world.size), count, drop_last=drop_last) for rank in range(world.size)]
        for sampler in samplers:
            sampler.load_state_dict(progress)
        batches = [GlobalBatches(sampler, total, largest, shares="measured") for sampler in samplers]
        running = [each.steps(AsLoaded(each)) for each in batches]
        for number in itertools.count():
            parts = [next(each, None) for each in running]
            assert len({part is None for part in parts}) == 1, "all ranks do the same steps"
            if number == world.batches or parts[0] is None:
                break
            live.append([index for part in parts for indices, weight in part if weight for index in indices])
            if (number + 1) % world.commit_every == 0:
                progress, committed = samplers[0].state_dict(), list(live)
                change(batches, next(speed)[: world.size])
        if world.end == "resize":
            progress, committed = samplers[0].state_dict(), live
    order = PlacedSampler((0, 1), count).order().tolist()
    whole = count - count % total if drop_last else count
    assert [Counter(each) for each in committed] == [
        Counter(order[start : start + total]) for start in range(0, whole, total)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_loader_fetched_ahead_for_earlier_shares_is_dropped_and_not_consumed(workers: int) -> None:
    places = [(0, 2), (1, 2)]
    samplers = [PlacedSampler(place, 60, shuffle=False) for place in places]
    batches = [GlobalBatches(sampler, 12, shares="measured") for sampler in samplers]
    options = {"num_workers": workers, **({"prefetch_factor": 4} if workers else {})}
    loaders = [DataLoader(range(60), batch_sampler=each, **options) for each in batches]
    seen = []
    for number, parts in enumerate(zip(*map(GlobalBatches.steps, batches, loaders), strict=True)):
        seen.append([batch.tolist() for part in parts for batch, _ in part])
        if number == 1:
            change(batches, [1.0, 2.0])
    assert [list(map(len, each)) for each in seen] == [[6, 6], [6, 6], [8, 4], [8, 4], [8, 4]]
    assert [sorted(a + b) for a, b in seen] == [list(range(start, start + 12)) for start in range(0, 60, 12)]
    assert {sampler.state_dict()["processed_num"] for sampler in samplers} == {60}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_commit_before_the_batches_of_a_step_changes_the_next_step_only(workers: int) -> None:
    batches = [GlobalBatches(PlacedSampler((rank, 2), 24), 12, shares="measured") for rank in range(2)]
    loaders = [DataLoader(range(24), batch_sampler=each, num_workers=workers) for each in batches]
    seen = []
    for steps in zip(*map(GlobalBatches.steps, batches, loaders), strict=True):
        change(batches, [1.0, 2.0])
        seen.append([(len(batch), round(weight, 3)) for step in steps for batch, weight in step])
    assert seen == [[(6, 1.0), (6, 1.0)], [(8, 1.333), (4, 0.667)]]


def test_passes_leave_room_for_the_largest_share_and_a_step_makes_no_more_than_it_needs() -> None:
    sampler = PlacedSampler((0, 2), 64)
    assert GlobalBatches(sampler, 64, 16).passes == 2
    batches = GlobalBatches(sampler, 64, 16, shares="measured")
    assert batches.passes == 4, "56 of 64 at most, 16 at a time"
    assert next(batches.steps(AsLoaded(batches))).passes == 2


def test_all_batches_over_one_sampler_follow_its_speed_and_new_ones_do_not_begin_equal_again() -> None:
    samplers = [PlacedSampler((rank, 2), 60, shuffle=False) for rank in range(2)]
    few = [GlobalBatches(sampler, 12, shares="measured") for sampler in samplers]
    many = [GlobalBatches(sampler, 24, shares="measured") for sampler in samplers]

    def lengths_of(batches: Sequence[GlobalBatches], count: int) -> list[list[int]]:
        running = [each.steps(AsLoaded(each)) for each in batches]
        found = []
        for _ in range(count):
            steps = [next(each) for each in running]
            found.append([len(indices) for step in steps for indices, _ in step])
        for each in running:
            next(each)  # the step before is done
        return found

    assert lengths_of(few, 1) == [[6, 6]]
    change(few, [1.0, 2.0])
    assert lengths_of(few, 1) == [[8, 4]]
    assert lengths_of(many, 1) == [[16, 8]]
    again = [GlobalBatches(sampler, 6, shares="measured") for sampler in samplers]
    assert lengths_of(again, 1) == [[4, 2]]
    change(again, [2.0, 1.0])
    assert [each.shares.rows(24, 2) for each in many] == [(8, 16)] * 2
    samplers[0].load_state_dict(samplers[0].state_dict())
    assert many[0].shares.rows(24, 2) == (12, 12), "a new world"


def test_other_batches_over_the_same_sampler_with_equal_shares_do_not_end_the_measuring() -> None:
    sampler = PlacedSampler((0, 2), 64)
    batches = GlobalBatches(sampler, 64, shares="measured")
    assert GlobalBatches(sampler, 32).shares is None
    assert sampler.shares is batches.shares


def test_shares_are_refused_where_batches_have_no_weights_in_one_line_that_says_what_does() -> None:
    with pytest.raises(UsageError) as error:
        ElasticSampler(range(4), shares="measured")  # type: ignore[arg-type]
    assert 'elastic.GlobalBatches(sampler, total, shares="measured")' in str(error.value)
    assert "\n" not in str(error.value)
    for make in (
        lambda: GlobalBatches(PlacedSampler((0, 1), 4), 4, shares="fast"),
        lambda: ElasticStream(["a"], lambda shard, start: [], shares="fast"),
    ):
        with pytest.raises(UsageError, match='shares is \'fast\'; give "equal" or "measured"'):
            make()


# --- streams


@given(
    lengths=LENGTHS,
    rows=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    workers=st.integers(1, 3),
    drop_last=st.booleans(),
    done=st.integers(0, 60),
)
def test_an_assignment_by_shares_gives_every_record_to_one_rank_and_knows_the_rest(
    lengths: list[int], rows: list[int], workers: int, drop_last: bool, done: int
) -> None:
    files = Files(lengths)
    stream = PlacedStream((0, len(rows)), files, lengths=lengths, shuffle=False)
    assignment = SharedAssignment(stream._whole_epoch(), tuple(rows), workers, drop_last)
    consumed = assignment.consume(assignment.nothing_consumed(), done)
    by_rank = [list(steps_of(assignment, rank)) for rank in range(len(rows))]
    assert {len(each) for each in by_rank} == {assignment.steps}
    taken = [record for step in list(zip(*by_rank, strict=True))[:done] for part in step for record in part]
    rest = records(assignment.remaining(consumed))
    assert Counter([*taken, *rest]) == Counter(files.all())
    assert assignment.left(consumed) == len(rest)


def steps_of(assignment: SharedAssignment, rank: int) -> Iterator[list[tuple[int, int]]]:
    """What a rank's loader delivers step by step, without what must not count."""
    lanes = [records(assignment.ranges_of(rank, worker)) for worker in range(assignment.workers)]
    for step in range(assignment.steps):
        lane, count = lanes[step % assignment.workers], assignment.rows_in(step)[rank]
        assert len(lane) >= max(1, count), "a batch has a record at least"
        yield lane[:count]
        del lane[: assignment.rows[rank]]
    assert not any(lanes)


@given(
    lengths=LENGTHS,
    history=HISTORIES,
    batch=st.integers(1, 16),
    speeds=st.lists(SPEED, min_size=1, max_size=5),
    drop_last=st.booleans(),
)
def test_each_record_of_a_stream_is_consumed_once_though_shares_change_through_any_losses_and_resizes(
    lengths: list[int], history: list[World], batch: int, speeds: list[list[float]], drop_last: bool
) -> None:
    files, speed, job = Files(lengths), itertools.cycle(speeds), None
    options = {"shares": "measured", "drop_last": drop_last}
    final = World(size=history[-1].size, batches=10_000, commit_every=1, end="resize")
    progress, committed = PlacedStream((0, 1), files, **options).state_dict(), []
    for world in [*history, final]:
        job = enter(world, progress, lambda: PlacedStream((0, 1), files, **options), job=job)
        live = list(committed)
        running = [stream.steps(stream.loader(batch_size=batch, collate_fn=list)) for stream in job]
        for number in itertools.count():
            steps = [next(each, None) for each in running]
            assert len({step is None for step in steps}) == 1, "all ranks do the same steps"
            if number == world.batches or steps[0] is None:
                break
            parts = [pair for step in steps for pair in step]
            assert sum(weight for _, weight in parts) == pytest.approx(world.size)
            live += [record for taken, weight in parts if weight for record in taken]
            said = [stream.state_dict() for stream in job]
            assert all(state == said[0] for state in said), "every rank says the same, without asking the others"
            if (number + 1) % world.commit_every == 0:
                progress, committed = said[0], list(live)
                change(job, next(speed)[: world.size])
        if world.end == "resize":
            progress, committed = job[0].state_dict(), live
    times = Counter(committed)
    assert set(times.values()) <= {1}
    left_out = len(files.all()) - len(times)
    assert left_out == job[0].backlog
    assert left_out < (batch * final.size if drop_last else 1)


def test_real_loader_processes_read_a_stream_by_shares_that_change() -> None:
    files = Files([40, 9, 23])
    streams = [PlacedStream((rank, 2), files, shares="measured", shuffle=False) for rank in range(2)]
    loaders = [stream.loader(batch_size=6, num_workers=2, collate_fn=list) for stream in streams]
    assert [len(loader) for loader in loaders] == [6, 6]
    seen: list[Any] = []
    for number, steps in enumerate(zip(*map(ElasticStream.steps, streams, loaders), strict=True)):
        seen.append([(len(taken), weight, taken) for step in steps for taken, weight in step])
        if number == 1:
            change(streams, [1.0, 2.0])
    assert [[(count, round(weight, 3)) for count, weight, _ in step] for step in seen] == [
        *[[(6, 1.0), (6, 1.0)]] * 2,
        *[[(8, 1.333), (4, 0.667)]] * 4,
    ]
    assert Counter(record for step in seen for *_, taken in step for record in taken) == Counter(files.all())


def test_the_averaged_gradient_over_a_stream_is_that_of_one_process_with_all_records_of_the_step() -> None:
    net, files = model(), Files([30])
    inputs, labels = data(30).tensors
    streams = [PlacedStream((rank, 3), files, shares="measured") for rank in range(3)]
    running = [stream.steps(stream.loader(batch_size=3, collate_fn=list)) for stream in streams]
    for stream in streams:
        stream.shares._seconds = (1 / 5, 1 / 3, 1.0)
    for steps, count in zip(zip(*running, strict=True), (9, 9, 9, 3), strict=True):
        gradients, together = [], []
        for step in steps:
            [(taken, weight)] = step
            places = [index for _, index in taken]
            net.zero_grad()
            (F.cross_entropy(net(inputs[places]), labels[places]) * weight).backward()
            gradients.append([parameter.grad.clone() for parameter in net.parameters()])
            together += places if weight else []
        assert (len(together), steps[0].length) == (count, count)
        net.zero_grad()
        F.cross_entropy(net(inputs[together]), labels[together]).backward()
        for ours, alone in zip(averaged(gradients), net.parameters(), strict=True):
            torch.testing.assert_close(ours, alone.grad)


def test_a_stream_with_measured_shares_is_read_by_its_steps_only() -> None:
    files = Files([8])
    shared, plain = (PlacedStream((0, 1), files, shares=shares) for shares in ("measured", "equal"))
    attempts = {
        "iterate over stream.steps": lambda: next(iter(shared.loader(batch_size=2))),
        "iterate over stream.steps ": lambda: next(iter(DataLoader(shared))),
        "records itself": lambda: shared.record_batch(0, 1),
        "need batch_size=": lambda: shared.loader(batch_size=None),
        "not made by this stream": lambda: next(shared.steps(plain.loader())),
        'give shares="measured"': lambda: next(plain.steps(plain.loader())),
    }
    for line, attempt in attempts.items():
        with pytest.raises(UsageError) as error:
            attempt()
        assert line.strip() in str(error.value)
        assert "\n" not in str(error.value)
    steps = shared.steps(shared.loader(batch_size=2))
    next(steps)
    with pytest.raises(UsageError, match=r"ElasticStream.steps: a step was left before all of its 1 micro-batches"):
        next(steps)
