"""What a step does so that it can be done again, without processes."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.recorded_steps import Head
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.ddp import ElasticDDP
from hvd_elastic_ext.worker.replay import history
from hvd_elastic_ext.worker.replay.history import History
from hvd_elastic_ext.worker.replay.notes import Deal, Run, World
from hvd_elastic_ext.worker.replay.recorder import Recorder
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.placed_samplers import PlacedSampler


class Job:
    """One rank: a State, as a recorder sees it, and a loop."""

    def __init__(self, *, rate: float = 0.1) -> None:
        self.data = TensorDataset(torch.arange(24), torch.randn(24, 3, generator=torch.Generator().manual_seed(1)))
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 1))
        self.optimizer = wrap(torch.optim.SGD(self.net.parameters(), lr=rate), comms=AloneComms())
        self.sampler = PlacedSampler((0, 1), 24)
        self.count = 0
        self.generator = torch.Generator().manual_seed(4)
        self.ends: list[tuple[int, int]] = []
        self.recorder = Recorder(self, replayed=lambda *end: self.ends.append(end))
        self.optimizer.register_step_post_hook(self._stepped)
        self.rates: list[float] = []
        self.batches = GlobalBatches(self.sampler, 4)

    def optimizers(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer}

    def models(self) -> dict[str, nn.Module]:
        return {"net": self.net}

    def samplers(self) -> dict[str, Any]:
        return {"sampler": self.sampler}

    def generators(self) -> Sequence[torch.Generator]:
        return [self.generator]

    def steps(self) -> int:
        return self.count

    def _stepped(self, *_: Any) -> None:
        self.count += 1
        self.recorder.stepped()

    def enter(self, comms: Any = None, *, generation: int = 1) -> None:
        self.recorder.enter(comms or AloneComms(), generation=generation, root=0)

    def step(self, loop: Any) -> list[Any]:
        """Do the next step of a loop; the samples of each micro-batch."""
        taken = []
        for (places, inputs), weight in next(loop):
            taken.append(places.tolist())
            (self.net(inputs).mean() * weight).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return taken

    def loop(self) -> Any:
        return self.batches.steps(DataLoader(self.data, batch_sampler=self.batches))

    def lost(self) -> list[Deal]:
        return self.recorder.lost(self.sampler, 99)

    def train(self, steps: int) -> list[Any]:
        """Do steps; what each has drawn."""
        drawn = []
        loop = self.loop()
        for _ in range(steps):
            step = next(loop)
            drawn.append([])
            for (places, inputs), weight in step:
                own = torch.rand(1, generator=self.generator).item()
                drawn[-1].append((places.tolist(), random.random(), np.random.rand(), torch.rand(1).item(), own))
                (self.net(inputs).mean() * weight).backward()
            self.optimizer.step()
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.zero_grad()
        return drawn

    def weights(self) -> list[torch.Tensor]:
        return [value.clone() for value in self.net.state_dict().values()]


def former(size: int, *, total: int = 4, source: str = "sampler") -> World:
    """The world in which the job has lost steps."""
    return World(1, size, source=source, total=total)


def lost(job: Job, *steps: Run, places: dict[int, int]) -> None:
    """Let the job have lost steps that other worlds did."""
    job.recorder._left = tuple(steps)
    job.recorder._places.update(places)


def test_steps_since_the_commit_are_done_again_after_a_loss_and_those_before_it_are_not() -> None:
    job = Job()
    job.enter()
    job.train(2)
    job.recorder.committed(1)
    progress, own = job.sampler.state_dict(), job.generator.get_state()
    first = job.train(3)
    job.recorder.rolled_back(world_lost=True)
    job.sampler.load_state_dict(progress)
    job.generator.set_state(own)
    job.count = 2
    random.seed(99)  # a rank that comes to them otherwise
    torch.manual_seed(99)
    job.enter(generation=2)
    assert len(job.lost()) == 3
    assert job.train(3) == first
    job.recorder.settle()
    assert job.ends == [(3, 1)]
    assert job.lost() == []


def test_a_second_loss_in_the_middle_leaves_all_steps_to_be_done_again_as_the_worlds_had_done_them() -> None:
    job = Job()
    job.enter()
    lost(job, Run(former(2), (0.1,), 3), places={1: 1})
    job.enter(generation=2)
    assert [deal.parts for deal in job.lost()] == [(1, 0)] * 3
    job.train(4)  # three of them, and one of its own
    job.recorder.rolled_back(world_lost=True)
    job.enter(generation=3)
    deals = job.lost()
    assert [(deal.run.world.size, deal.parts) for deal in deals] == [(2, (1, 0))] * 3 + [(1, (0,))]
    job.sampler.load_state_dict({"epoch": 0, "processed_num": 0})
    job.train(2)
    job.recorder.rolled_back(world_lost=True)
    job.enter(generation=4)
    assert [deal.run.world.size for deal in job.lost()] == [2, 2, 2, 1]


def test_a_commit_in_the_middle_leaves_only_the_rest() -> None:
    job = Job()
    job.enter()
    lost(job, Run(former(2), (0.1,), 3), places={1: 0})
    job.enter(generation=2)
    job.train(2)
    job.recorder.committed(1)
    job.recorder.rolled_back(world_lost=True)
    job.enter(generation=3)
    assert [deal.run.world.size for deal in job.lost()] == [2]


def test_a_step_that_one_survivor_alone_has_done_is_done_again_by_all() -> None:
    def rank(comms: LockstepComms) -> Any:
        job = Job()
        job.recorder._left = (Run(former(3), (0.1,), 4 + comms.rank()),)
        job.recorder._places = {1: 2 - 2 * comms.rank()}
        job.enter(comms, generation=2)
        return [deal.parts for deal in job.lost()], job.recorder._seed

    (first, second), _ = in_lockstep(2, rank)
    assert first == ([(2, 1)] * 5, torch.Generator().manual_seed(3).initial_seed())
    assert second == ([(0,)] * 5, first[1])


def test_buffers_and_generators_end_as_after_the_survivors_own_part() -> None:
    jobs = []
    for size in (1, 2):
        job = Job()
        job.enter()
        jobs.append(job)
        if size == 2:
            job.batches.total = 8  # rank 0 takes every second sample of it
            lost(job, Run(former(2, total=8), (0.1,)), places={1: 0})
            job.enter(generation=2)
            own = [[0, 2, 4, 6]]
        else:
            own = [[0, 1, 2, 3]]
        order = job.sampler.order()
        drawn = job.train(1)[0]
        assert drawn[0][0] == [int(order[place]) for place in own[0]]
        job.after = random.random(), np.random.rand(), torch.rand(1).item(), job.generator.get_state().tolist()
        job.drawn = drawn
    alone, both = jobs
    assert len(both.drawn) == 2
    assert both.drawn[0][1:] == alone.drawn[0][1:], "rank 0 of step 0 has one seed"
    assert both.drawn[1][1:4] != both.drawn[0][1:4]
    assert both.drawn[1][4] == both.drawn[0][4], "a generator of the State is the same on all ranks"
    assert both.after == alone.after
    assert both.net[1].num_batches_tracked.item() == 1


def test_a_lost_step_has_the_rate_that_it_had_and_what_follows_the_step_finds_the_present_one() -> None:
    job = Job(rate=0.1)
    job.enter()
    used = []
    job.optimizer.register_step_pre_hook(lambda *_: used.append(job.optimizer.param_groups[0]["lr"]))
    lost(job, Run(former(2), (0.25,)), places={1: 0})
    job.enter(generation=2)
    job.train(2)
    assert used == [0.25, 0.1]
    assert job.rates == [0.1, 0.1]


def test_the_passes_for_a_step_are_the_users_again_after_the_lost_ones_and_after_a_loss() -> None:
    job = Job()
    job.enter()
    job.optimizer.set_backward_passes_per_step(2)
    lost(job, Run(former(2), (0.1,), 2), places={1: 0})
    job.enter(generation=2)
    job.train(2)
    job.recorder.settle()
    assert job.optimizer.backward_passes_per_step == 2
    lost(job, Run(former(2), (0.1,), 2), places={1: 0})
    job.enter(generation=2)
    loop = job.batches.steps(DataLoader(job.data, batch_sampler=job.batches))
    for (_, inputs), weight in next(loop):
        (job.net(inputs).mean() * weight).backward()
    assert job.optimizer.backward_passes_per_step > 1000
    job.recorder.rolled_back(world_lost=True)
    assert job.optimizer.backward_passes_per_step == 2


def test_a_step_of_which_the_recorder_does_not_know_the_samples_is_refused() -> None:
    job = Job()
    job.optimizer.step()  # before training
    job.enter()
    with pytest.raises(UsageError, match="elsewhere than"):
        job.optimizer.step()
    job.recorder.ended()
    job.optimizer.step()


def test_what_cannot_be_done_again_is_refused_before_training() -> None:
    job = Job()
    job.net = nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4))
    with pytest.raises(UsageError, match="1 is a SyncBatchNorm"):
        job.enter()
    job = Job()
    job.net = ElasticDDP(job.net)
    with pytest.raises(UsageError, match="DDP averages in each backward pass"):
        job.enter()
    job = Job()
    job.optimizer = torch.optim.SGD(job.net.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"state.optimizer \(SGD\) does not average"):
        job.enter()
    job = Job()
    job.optimizers = lambda: {"optimizer": object()}
    with pytest.raises(UsageError, match="is not an optimizer of torch"):
        job.enter()
    job = Job()
    job.optimizer = torch.optim.SGD(job.net.parameters(), lr=0.1)
    job.optimizer.set_backward_passes_per_step = lambda passes: None  # Horovod's optimizer for Adasum has no op
    with pytest.raises(UsageError, match=r"another op than hvd\.Average"):
        job.enter()


def test_a_state_without_an_optimizer_is_not_recorded() -> None:
    job = Job()
    job.optimizers = dict
    job.enter()
    assert job.sampler.recorder is None
    assert [len(list(step)) for step in job.loop()] == [1] * 6


def passes_of(parts: tuple[int, ...], most: int) -> tuple[list[Any], Job]:
    """The passes of the rank with these parts in a lost step of three ranks, with at most one sample in each."""
    job = Job()
    job.net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    job.optimizer = wrap(torch.optim.SGD(job.net.parameters(), lr=0.1), comms=AloneComms())
    job.batches = GlobalBatches(job.sampler, 6, 1)
    job.enter()
    job.recorder._left = (Run(World(1, 3, source="sampler", total=6, largest=1), (0.1,)),)
    job.recorder._parts = {1: (parts, most)}
    job.gradients = []
    job.optimizer.register_step_pre_hook(lambda *_: job.gradients.extend(p.grad.clone() for p in job.net.parameters()))
    return job.step(job.loop()), job


def test_all_ranks_make_equally_many_passes_of_a_lost_step() -> None:
    both, _ = passes_of((0, 2), 2)
    one, padded = passes_of((1,), 2)
    none, idle = passes_of((), 2)
    assert len(both) == len(one) == len(none) == 4
    assert one[2:] == one[:2], "samples that it has anyway"
    _, alone = passes_of((1,), 1)
    assert all(map(torch.equal, padded.gradients, alone.gradients)), "what has weight 0 changes no bit"
    assert not any(map(torch.any, idle.gradients))


def test_ranks_that_agree_on_lost_steps_know_the_most_passes_of_any_of_them() -> None:
    def rank(comms: LockstepComms) -> Any:
        job = Job()
        job.recorder._left = (Run(former(3), (0.1,)),)
        job.recorder._places = {1: comms.rank()}
        job.enter(comms, generation=2)
        return [(deal.parts, deal.most, deal.padding) for deal in job.lost()]

    assert in_lockstep(2, rank)[0] == [[((0, 2), 2, 0)], [((1,), 2, 1)]]


def test_an_optimizer_that_steps_within_the_loop_over_micro_batches_is_refused_at_the_first_step() -> None:
    job = Job()
    job.enter()
    (_, inputs), weight = next(iter(next(job.loop())))
    (job.net(inputs).mean() * weight).backward()
    with pytest.raises(UsageError, match=r"call optimizer\.step\(\) after the loop"):
        job.optimizer.step()


def test_a_second_optimizer_that_steps_within_the_loop_is_refused_too() -> None:
    job = Job()
    other = wrap(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.01), comms=AloneComms())
    job.optimizers = lambda: {"optimizer": job.optimizer, "other": other}
    job.enter()
    job.train(1)
    other.step()
    next(iter(next(job.loop())))
    with pytest.raises(UsageError, match=r"call optimizer\.step\(\) after the loop"):
        other.step()


@pytest.mark.parametrize("largest", [None, 2])
def test_a_script_that_asks_for_the_next_micro_batch_before_it_has_used_one_is_refused_at_the_first_step(
    largest: int | None,
) -> None:
    job = Job()
    job.batches.largest = largest
    job.enter()
    with torch.no_grad():
        list(next(job.loop()))  # an evaluation, without a step
    for (_, inputs), weight in list(next(job.loop())):
        (job.net(inputs).mean() * weight).backward()
    with pytest.raises(UsageError, match="before you ask for the next"):
        job.optimizer.step()


def test_a_script_may_leave_out_a_backward_pass_once_it_has_shown_that_it_takes_micro_batches_in_order() -> None:
    job = Job()
    job.enter()
    loop = job.loop()
    job.step(loop)
    for _ in next(loop):
        pass  # such as a loss that is not finite
    job.optimizer.step()


class Handles:
    """An optimizer's bookkeeping as Horovod has it: a hook has noted a pass that starts no reduction yet."""

    def __init__(self, job: Job) -> None:
        self.job = job
        job.optimizer._allreduce_delay = {}
        job.optimizer._handles = {}
        for parameter in job.net.parameters():
            parameter.register_post_accumulate_grad_hook(self.passed)

    def passed(self, parameter: torch.Tensor) -> None:
        self.job.optimizer._handles[parameter] = (None, None)

    def zero_grad(self) -> None:
        assert not self.job.optimizer._handles, "zero_grad() was called after backward() but before step()"


def test_a_script_may_drop_gradients_before_each_micro_batch_under_horovod() -> None:
    job = Job()
    job.enter()
    lost(job, Run(former(2), (0.1,)), places={1: 0})
    job.enter(generation=2)
    handles, passes = Handles(job), 0
    for (_, inputs), weight in next(job.loop()):
        handles.zero_grad()
        (job.net(inputs).mean() * weight).backward()
        passes += 1
    assert passes == 2
    assert job.optimizer._handles, "the step is under way until the optimizer steps"


def test_lost_steps_after_those_of_another_sampler_are_done_again_by_the_loop_that_is_under_way() -> None:
    job = Job()
    other = PlacedSampler((0, 1), 24)
    job.samplers = lambda: {"sampler": job.sampler, "other": other}
    job.enter()
    train, check = former(2), former(2, source="other")
    runs = Run(train, (0.1,), 2), Run(check, (0.1,)), Run(train, (0.3,), 2)
    lost(job, *runs, places={1: 0})
    job.enter(generation=2)
    used = []
    job.optimizer.register_step_pre_hook(lambda *_: used.append(job.optimizer.param_groups[0]["lr"]))
    batches, loop = GlobalBatches(other, 4), job.loop()
    order = job.sampler.order()

    def samples(number: int) -> list[int]:
        return sorted(int(place) for place in order[4 * number : 4 * number + 4])

    for number in range(5):
        if number == 2:
            with torch.no_grad():
                list(next(batches.steps(DataLoader(job.data, batch_sampler=batches))))
        taken = job.step(loop)
        assert sorted(itertools.chain(*taken)) == samples(number), "none comes twice"
        assert len(taken) == (2 if number < 4 else 1), number
    assert used == [0.1, 0.1, 0.3, 0.3, 0.1]
    assert job.ends == [(5, 2)]


def test_lost_steps_that_the_script_does_not_come_to_are_dropped_with_one_warning(caplog: Any) -> None:
    job = Job()
    other = PlacedSampler((0, 1), 24)
    job.samplers = lambda: {"sampler": job.sampler, "other": other}
    job.enter()
    lost(job, Run(former(2), (0.3,), 2), Run(former(2, source="other"), (0.3,), 3), places={1: 0})
    job.enter(generation=2)
    loop = job.loop()
    used = []
    job.optimizer.register_step_pre_hook(lambda *_: used.append(job.optimizer.param_groups[0]["lr"]))
    assert [len(job.step(loop)) for _ in range(4)] == [2, 2, 1, 1]
    assert used == [0.3, 0.3, 0.1, 0.1]
    [warning] = caplog.messages
    assert warning.startswith("run --replay: 3 lost steps are not done again")
    assert job.recorder.lost(other, 9) == []


def test_a_loop_that_was_planned_with_lost_steps_goes_on_without_them_when_another_loop_has_come_first() -> None:
    job = Job()
    other = PlacedSampler((0, 1), 24)
    job.samplers = lambda: {"sampler": job.sampler, "other": other}
    job.enter()
    lost(job, Run(former(2), (0.1,), 3), places={1: 0})
    job.enter(generation=2)
    loop, batches = job.loop(), GlobalBatches(other, 4)
    assert len(job.step(loop)) == 2
    with torch.no_grad():
        list(next(batches.steps(DataLoader(job.data, batch_sampler=batches))))
    assert [len(job.step(loop)) for _ in range(2)] == [1, 1]


def test_lost_steps_with_global_batches_of_another_size_are_not_done_again(caplog: Any) -> None:
    for total, largest in ((8, None), (4, 2)):
        caplog.clear()
        job = Job()
        job.enter()
        lost(job, Run(World(1, 2, source="sampler", total=total, largest=largest), (0.3,), 3), places={1: 0})
        job.enter(generation=2)
        loop = job.loop()
        assert [len(job.step(loop)) for _ in range(2)] == [1, 1]
        assert len(caplog.messages) == 1


def test_each_of_several_global_batches_between_two_steps_of_an_optimizer_has_numbers_of_its_own() -> None:
    job = Job()
    job.enter()
    loop, drawn = job.loop(), []
    for _ in range(3):
        for (_, inputs), weight in next(loop):
            drawn.append(torch.rand(1).item())
            (job.net(inputs).mean() * weight).backward()
    assert len(set(drawn)) == 3


def test_a_sampler_can_be_pickled_and_its_copy_notes_nothing() -> None:
    job = Job()
    job.enter()
    assert job.sampler.recorder is job.recorder
    assert pickle.loads(pickle.dumps(job.sampler)).recorder is None


def test_buffers_that_a_loss_without_lost_steps_has_found_are_not_put_back_after_a_later_one() -> None:
    job = Job()
    job.enter()
    job.recorder.rolled_back(world_lost=True)
    job.enter(generation=2)
    job.train(2)
    buffers = [buffer.clone() for buffer in job.net.buffers()]
    job.recorder.rolled_back(world_lost=True)
    job.sampler.load_state_dict({"epoch": 0, "processed_num": 0})
    job.enter(generation=3)
    assert all(map(torch.equal, buffers, job.net.buffers()))


def test_each_optimizer_gets_its_own_rates_back_after_its_own_step_and_keeps_one_that_the_script_has_set() -> None:
    job = Job()
    extra = nn.Linear(2, 1)
    other = wrap(torch.optim.SGD(extra.parameters(), lr=0.01), comms=AloneComms())
    job.optimizers = lambda: {"optimizer": job.optimizer, "other": other}
    job.enter()
    lost(job, Run(former(2), (0.3, 0.4)), places={1: 0})
    job.enter(generation=2)
    used = []
    for optimizer in (job.optimizer, other):
        optimizer.register_step_pre_hook(lambda which, *_: used.append(which.param_groups[0]["lr"]))
    for (_, inputs), weight in next(job.loop()):
        (job.net(inputs).mean() * weight).backward()
    other.step()
    assert other.param_groups[0]["lr"] == 0.01
    assert job.optimizer.param_groups[0]["lr"] == 0.3
    job.optimizer.step()
    assert used == [0.4, 0.3]
    assert job.optimizer.param_groups[0]["lr"] == 0.1

    lost(job, Run(former(2), (0.3, 0.4)), places={1: 0})
    job.recorder._parts[1] = ((0, 1), 2)
    for (_, inputs), weight in next(job.loop()):
        (job.net(inputs).mean() * weight).backward()
    job.optimizer.param_groups[0]["lr"] = 0.7
    job.optimizer.step()
    assert job.optimizer.param_groups[0]["lr"] == 0.7


def test_callbacks_between_two_worlds_may_step_and_what_follows_training_too() -> None:
    job = Job()
    job.enter()
    job.train(1)
    job.recorder.rolled_back(world_lost=True)
    job.optimizer.step()
    job.enter(generation=2)
    with pytest.raises(UsageError, match="elsewhere than"):
        job.optimizer.step()
    job.recorder.left()  # as hosts have changed
    job.optimizer.step()
    job.recorder.ended()
    assert job.sampler.recorder is None
    job.train(1)
    assert job.recorder._done == []


def noted(job: Job, generation: int) -> tuple[History, Head]:
    """What a commit of the present moment takes along."""
    text = job.recorder.notes(generation)
    assert text is not None
    return history.decode(text)


def test_a_commit_takes_the_notes_of_the_steps_that_led_to_it_and_none_of_those_that_were_lost() -> None:
    job = Job()
    assert job.recorder.notes(1) is None  # no world has agreed on a seed
    job.enter()
    job.train(2)
    assert noted(job, 1)[0].at == 2  # before the commit is made
    job.recorder.committed(1)
    job.train(3)
    assert (noted(job, 1)[0].at, noted(job, 1)[0].began, noted(job, 1)[1].step) == (5, 0, 5)
    job.recorder.rolled_back(world_lost=True)
    job.count = 2
    assert noted(job, 1)[0].at == 2
    job.enter(generation=2)
    job.train(1)
    job.recorder.committed(2)
    kept, head = noted(job, 2)
    assert (kept.at, head.worlds) == (3, ((1, 0), (2, 2)))
    assert [run.world.generation for piece in kept.pieces for run in piece.runs] == [1]  # done again, as it was


def test_a_process_that_goes_on_from_a_commit_goes_on_with_its_notes_and_seed_and_not_with_those_of_another() -> None:
    job = Job()
    job.enter()
    job.train(3)
    text, seed = job.recorder.notes(1), job.recorder._seed
    # A slot may hold an older part of its rank beside a newer commit, even one of another world after as many steps.
    for step, generation, known in ((3, 1, True), (2, 1, False), (3, 2, False)):
        later = Job()
        later.recorder.take_up(text, step=step, generation=generation)
        torch.manual_seed(99)
        later.count = 3
        later.enter(generation=5)
        later.train(1)
        kept, head = noted(later, 5)
        assert (kept.at, kept.began) == ((4, 0) if known else (1, 0))
        assert (head.seed == seed) is known
    unread = Job()
    unread.recorder.take_up("no notes", step=3, generation=1)
    unread.enter(generation=5)
    assert noted(unread, 5)[0].at == 0


def test_a_newcomer_counts_the_steps_as_the_others_and_notes_those_that_it_does() -> None:
    old, new = Job(), Job()
    old.enter()
    old.train(3)
    old.recorder.committed(1)

    def rank(comms: LockstepComms) -> None:
        job = (old, new)[comms.rank()]
        job.recorder.enter(comms, generation=2, root=0)

    in_lockstep(2, rank)
    assert [noted(job, 2)[1].at for job in (old, new)] == [3, 3]
    assert [noted(job, 2)[1].began for job in (old, new)] == [0, 3]
