"""A State whose ranks train alone between two averages: losses, notices, newcomers and the end of training."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import StateError, UsageError
from hvd_elastic_ext.worker.commits.buffer import Beside, CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.stream import ElasticStream
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.ddp import ddp
from hvd_elastic_ext.worker.optim.local_sgd import LocalSGD
from hvd_elastic_ext.worker.parts import choose, torch_parts
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.journal import Reporter
from hvd_elastic_ext.worker.state.keeper import Keeper, WorkerSettings
from hvd_elastic_ext.worker.stock import ElasticSampler as StockSampler
from hvd_elastic_ext.worker.stock import HorovodInternalError, HostsUpdatedInterrupt
from tests.unit.worker.alone_together import Process, a_world, dies, diloco, local_sgd
from tests.unit.worker.made_commits import memory_files

KINDS = pytest.mark.parametrize("make", [local_sgd, diloco], ids=["LocalSGD", "DiLoCo"])


def finish(process, **options):
    process.train(**options)
    process._finish_rounds()


def averaged_by(process):
    """What it had trained with when it last averaged, or entered with the averages of others."""
    return process.taken[: process.at_averages[-1]]


@KINDS
def test_ranks_are_equal_at_an_average_and_differ_between_two(make):
    processes = [Process(make(4), seed=seed) for seed in range(3)]
    seen = a_world(processes, lambda process: [process.train(3), process.weights, process.train(1), process.weights])
    assert len({tuple(between) for _, between, _, _ in seen}) == 3
    assert len({tuple(after) for _, _, _, after in seen}) == 1
    assert [process.commits for process in processes] == [1, 1, 1], "nothing but the average is committed"


@KINDS
def test_nobody_rolls_back_for_a_rank_that_is_lost_between_two_averages(make):
    """The survivors keep their weights and their place, and the next average is of two."""
    processes = [Process(make(4)) for _ in range(3)]

    def loses_one(process):
        process.train(6)
        if process is processes[1]:
            return dies(process)
        return process.train(4)

    ends = a_world(processes, loses_one)
    survivors = [processes[0], processes[2]]
    assert [type(end) for end in ends] == [HorovodInternalError, type(None), HorovodInternalError]
    assert [process.step for process in survivors] == [8, 8]
    before = [process.weights for process in survivors]
    kept = a_world(survivors, lambda process: (process.weights, process.step, process.train(1), process.weights))
    assert [weights for weights, *_ in kept] == before, "a sync changes nothing of what they have"
    assert [step for _, step, *_ in kept] == [8, 8]
    assert kept[0][3] == kept[1][3], "after the next step both have the average of both"
    events = [fields for event, fields in survivors[0].lines if event == "averaged"]
    assert [len(fields["weights"]) for fields in events] == [3, 2]
    assert not [event for event, _ in survivors[0].lines if event == "rolled_back"]


def test_an_average_after_a_loss_is_weighted_by_the_samples_of_each():
    processes = [Process(local_sgd(100)) for _ in range(2)]

    def uneven(process):
        process.train(9 if process is processes[0] else 3)
        mine = process.weights
        process._keeper.inbox.put()  # a notice: an average at once
        with pytest.raises(HostsUpdatedInterrupt):
            process.commit()
        return mine, process.weights

    (first, after), (second, _) = a_world(processes, uneven)
    wanted = [0.75 * one + 0.25 * other for one, other in zip(first, second, strict=True)]
    torch.testing.assert_close(after, wanted, rtol=1e-12, atol=1e-12)


@KINDS
def test_a_notice_to_one_rank_forces_an_early_average_at_which_all_stop(make):
    processes = [Process(make(16)) for _ in range(2)]

    def noticed(process):
        if process is processes[1]:
            process.train(5, before_step=lambda: process.step == 4 and process._keeper.inbox.put())
        process.train(40)

    ends = a_world(processes, noticed)
    assert [type(end) for end in ends] == [HostsUpdatedInterrupt] * 2
    assert processes[1].step == processes[0].step == 16, "steps count as the rank with most of them"
    assert len(processes[1].taken) == 10, "it came to the average at its next check"
    assert processes[0].weights == processes[1].weights


@KINDS
def test_a_newcomer_enters_at_an_average_with_the_outer_state_and_the_others_go_on(make):
    processes = [Process(make(4)) for _ in range(2)]

    def until_notice(process):
        process.train(6)
        process._keeper.inbox.put()
        process.train(9)

    assert [type(end) for end in a_world(processes, until_notice)] == [HostsUpdatedInterrupt] * 2
    newcomer, before = Process(make(4), seed=9), [process.weights for process in processes]
    seen = a_world(
        [*processes, newcomer],
        lambda process: (process.weights, process.step, len(process.inner.state), process.train(4), process.weights),
    )
    assert [weights for weights, *_ in seen] == [before[0]] * 3
    assert [step for _, step, *_ in seen] == [7] * 3
    assert [state for _, _, state, *_ in seen] == [2, 2, 0], "the optimizer's state of a rank is not sent"
    assert seen[0][4] == seen[1][4] == seen[2][4], "four steps later all average"


@KINDS
def test_a_process_that_joins_within_a_round_begins_with_the_last_average_and_comes_to_the_next_with_the_others(make):
    processes = [Process(make(8)) for _ in range(3)]

    def loses_one(process):
        process.train(8)
        outer = process.weights
        process.train(5)
        if process is processes[2]:
            dies(process)
        else:
            process.comms.max(0, name="a collective of the script")
        return outer

    outer = a_world(processes, loses_one)[2]
    newcomer = Process(make(8), seed=9)
    mine = processes[0].weights
    seen = a_world([*processes[:2], newcomer], lambda process: (process.weights, process.train(3), process.weights))
    assert seen[0][0] == mine
    assert seen[2][0] == outer
    assert seen[0][2] == seen[1][2] == seen[2][2], "three steps later all average"


@KINDS
def test_the_next_process_of_a_slot_begins_with_the_moments_of_its_last_average_and_the_weights_of_the_newest(make):
    with memory_files() as memory:
        processes, at_average = [Process(make(4)), Process(make(4), memory=memory)], []

        def loses_one(process):
            process.train(4)
            if process is processes[1]:
                at_average.extend(process.moments)
                process.train(2)
                return dies(process)
            return process.train(9)

        a_world(processes, loses_one)
        a_world(processes[:1], lambda process: [process._keeper.inbox.put(), process.train(1)])  # a notice: an average
        newest = processes[0].weights
        successor = Process(make(4), seed=9, memory=memory)
        mine, theirs = a_world(
            [successor, processes[0]], lambda process: (process.weights, process.moments, process.step)
        )
    assert mine[0] == theirs[0] == newest
    assert mine[1] == at_average != []
    assert mine[1] != theirs[1], "the moments of a rank are not sent"
    assert mine[2] == theirs[2]


def test_moments_that_came_with_an_average_of_others_are_there_for_a_second_successor():
    with memory_files() as memory:
        processes, at_average = [Process(local_sgd(4)), Process(local_sgd(4), memory=memory)], []

        def loses_one(process):
            process.train(4)
            if process is processes[1]:
                at_average.extend(process.moments)
                return dies(process)
            return process.train(9)

        a_world(processes, loses_one)
        a_world(processes[:1], lambda process: [process._keeper.inbox.put(), process.train(1)])  # a notice: an average
        for seed in (8, 9):  # the first one is killed before it averages
            successor = Process(local_sgd(4), seed=seed, memory=memory)
            seen = a_world([processes[0], successor], lambda process: process.moments)
            assert seen[1] == at_average != []


def test_an_inner_optimizer_whose_state_cannot_be_stored_averages_all_the_same(caplog):
    processes = [Process(local_sgd(2)) for _ in range(2)]

    def with_objects(process):
        process.train(1)
        for entry in process.inner.state.values():
            entry["projector"] = object()
        process.train(4)
        process.restore()
        return process.commits

    assert a_world(processes, with_objects) == [2, 2]
    told = [line for line in caplog.messages if "begins with a fresh inner optimizer" in line]
    assert len(told) == 2, "once by each"


def test_moments_that_cannot_be_read_cost_no_commit(caplog, monkeypatch):
    with memory_files() as memory:
        processes = [Process(local_sgd(2)), Process(local_sgd(2), memory=memory)]
        a_world(processes, lambda process: process.train(3))
        newest = processes[0]._keeper._identity()
        monkeypatch.setattr(CommitBuffer, "beside", lambda buffer: Beside(b"[", []))
        successor = Process(local_sgd(2), seed=9, memory=memory)
        [end] = a_world([successor], lambda process: process._keeper._identity())
    assert end[1:] == newest[1:]
    assert any("does not fit, and is left out" in line for line in caplog.messages)


@KINDS
def test_an_average_that_only_some_have_reaches_the_others_by_the_sync(make):
    """One rank has committed the average when another is lost: the third gets it, with its own samples in it."""
    processes = [Process(make(2)) for _ in range(3)]

    def loses_one_late(process):
        process.train(3)
        if process is processes[2]:
            process._keeper.seal = lambda: dies(process)  # it has done all operations of the average
        if process is processes[1]:
            process.averaging.apply = is_lost
        process.train(1)

    def is_lost(means):
        raise HorovodInternalError("lost in the last operation")

    a_world(processes, loses_one_late)
    assert [process.commits for process in processes[:2]] == [2, 1]
    ahead, behind = processes[:2]
    del behind.averaging.apply
    wanted, taken = ahead.weights, Counter(processes[1].taken)
    seen = a_world([behind, ahead], lambda process: (process.weights, process.step, list(process.sampler)))
    assert [weights for weights, *_ in seen] == [wanted] * 2
    assert [step for _, step, _ in seen] == [4, 4]
    assert not {sample for _, sample in taken} & {sample for *_, left in seen for sample in left}


@KINDS
def test_each_sample_of_an_epoch_is_averaged_once_though_a_rank_is_lost_in_a_round(make):
    processes = [Process(make(4), count=95) for _ in range(3)]

    def loses_one(process):
        process.train(7)
        if process is processes[1]:
            return dies(process)
        return process.train()

    a_world(processes, loses_one)
    survivors = [processes[2], processes[0]]
    a_world(survivors, finish)
    counted = Counter(averaged_by(processes[1]) + survivors[0].taken + survivors[1].taken)
    assert set(counted) == {(0, sample) for sample in range(95)}
    assert sum(counted.values()) <= 96, "padded by one at most"
    assert survivors[0].weights == survivors[1].weights


@KINDS
def test_ranks_that_finish_after_different_numbers_of_steps_end_with_the_same_weights(make):
    processes = [Process(make(4)) for _ in range(3)]
    steps = {id(process): steps for process, steps in zip(processes, (4, 9, 14), strict=True)}

    def uneven(process):
        process.train(steps[id(process)])
        process._finish_rounds()
        process._returned()
        return process.weights

    ends = a_world(processes, uneven)
    assert ends[0] == ends[1] == ends[2]
    assert [process.step for process in processes] == [14] * 3


def test_a_rank_that_is_lost_while_the_others_finish_leaves_an_average_of_those():
    processes = [Process(local_sgd(4)) for _ in range(3)]

    def loses_one(process):
        process.train(6)
        if process is processes[0]:
            return dies(process)
        return process._finish_rounds()

    assert [type(end) for end in a_world(processes, loses_one)[1:]] == [HorovodInternalError] * 2
    before = [process.weights for process in processes[1:]]
    ends = a_world(processes[1:], lambda process: (process.train(0), process._finish_rounds(), process.weights))
    wanted = [sum(pair) / 2 for pair in zip(*before, strict=True)]
    torch.testing.assert_close([end[2] for end in ends], [wanted] * 2, rtol=1e-12, atol=1e-12)


def test_an_epoch_ends_with_an_average_whatever_the_number_of_steps():
    processes = [Process(local_sgd(100), count=24) for _ in range(2)]
    a_world(processes, lambda process: process.train(epochs=2))
    assert [process.at_averages for process in processes] == [[0, 12, 24]] * 2
    assert processes[0].weights == processes[1].weights


def test_a_process_that_goes_back_by_itself_gets_the_last_average():
    (process,) = processes = [Process(local_sgd(4))]

    def goes_back(process):
        process.train(4)
        outer = process.weights, process.moments
        process.train(2)
        process.restore()
        return outer == (process.weights, process.moments), process.step

    assert a_world(processes, goes_back) == [(True, 4)]
    assert len(list(process.sampler)) == 96 - 8


def test_only_an_average_counts_as_a_commit_for_the_launcher_which_names_commits_in_advance() -> None:
    processes, calls = [Process(local_sgd(4))], []
    processes[0]._keeper.schedule.due = lambda: calls.append(processes[0].step) or True
    a_world(processes, lambda process: process.train(11))
    assert calls == [4, 8]


def test_fingerprints_are_those_of_the_last_average():
    processes = [Process(local_sgd(4)) for _ in range(2)]
    seen = a_world(processes, lambda process: [process.train(6), process.fingerprint(), process.weights])
    assert seen[0][1] == seen[1][1]
    assert seen[0][2] != seen[1][2]


def test_ranks_that_are_apart_after_a_loss_leave_an_epoch_together_and_meet_behind_its_loop():
    """One of them is further than the other, and would be in the script's own collective when that one averages."""
    processes = [Process(local_sgd(5), count=68) for _ in range(3)]

    def loses_one(process):
        if process is processes[2]:
            process.train(5)
            return dies(process)
        return process.train(9 if process is processes[0] else 6)

    def two_epochs(process):
        for epoch in range(2):
            process.train(epochs=epoch + 1)
            process.comms.max(0, name="a collective of the script")
        process._finish_rounds()

    a_world(processes, loses_one)
    a_world(processes[:2], two_epochs)
    assert processes[0].weights == processes[1].weights
    counted = Counter(averaged_by(processes[2]) + processes[0].taken + processes[1].taken)
    assert set(counted) == {(epoch, sample) for epoch in range(2) for sample in range(68)}


@KINDS
def test_what_a_script_changes_between_two_calls_reaches_the_newcomers_of_the_second(make):
    processes = [Process(make(4), count=24) for _ in range(2)]
    a_world(processes, lambda process: finish(process, epochs=2))
    ends = []
    for process in processes:
        ends.append(process.epoch)
        process.epoch = 0
        with torch.no_grad():
            process.model.bias.fill_(3.0)
    newcomer = Process(make(4), count=24, seed=9)

    def again(process):
        begin = process.epoch, process.model.bias.item()
        finish(process, epochs=2)
        return begin, process.weights

    seen = a_world([*processes, newcomer], again)
    assert ends == [2, 2]
    assert [begin for begin, _ in seen] == [(0, 3.0)] * 3
    assert seen[0][1] == seen[1][1] == seen[2][1]
    assert [len(process.taken) for process in processes] == [24 + 16] * 2, "both epochs again, among three"


def test_a_call_around_another_one_with_the_same_state_goes_on_averaging():
    processes = [Process(local_sgd(4), count=96) for _ in range(2)]

    def nested(process):
        process.train(4)
        with process._training():
            process.train(4)
            process._finish_rounds()
        process.train(8)
        return process.weights

    first, second = a_world(processes, nested)
    assert first == second
    assert processes[0].commits == 5, "two averages, that of the end of the inner call, and two more"


def test_a_commit_after_training_meets_nobody_for_an_average():
    (process,) = processes = [Process(local_sgd(4), count=24)]
    a_world(processes, finish)
    averages = [event for event, _ in process.lines].count("averaged")
    for _ in range(5):  # more than every=4
        process.step_on([1, 2])
    assert [event for event, _ in process.lines].count("averaged") == averages > 0
    assert not process._keeper._difference(), "the present state is committed"


def test_a_loop_that_does_not_average_at_the_end_is_refused():
    process = Process(local_sgd(4))
    process.enter(AloneComms())
    with pytest.raises(UsageError, match=r"elastic\.run"):
        process.train(1)


def test_a_script_that_never_commits_is_told_once(caplog):
    (process,) = processes = [Process(local_sgd(2))]
    process.commit = int
    a_world(processes, lambda process: process.train(12))
    assert len([record for record in caplog.records if "no average" in record.message]) == 1


def test_a_sampler_of_a_synchronous_state_records_for_all_ranks_again():
    process = Process(local_sgd(2), count=8)
    names = torch_parts.ParameterNames()
    parts = {"sampler": choose.part_for(process.sampler, names)}
    inventory = Inventory(process, parts, names=[], part_for=lambda value: None)
    Keeper(
        inventory, buffer=CommitBuffer(open_sides(None)), comms=AloneComms(), clock=SystemClock(),
        reporter=Reporter(lambda *_, **__: None, SystemClock(), sample=0.0, host=""), settings=WorkerSettings(),
        program="",
    )  # fmt: skip
    process.sampler.record_batch(0, 2)
    assert process.sampler.state_dict()["processed_num"] == 2


def test_a_mean_of_weights_that_the_script_keeps_is_averaged_too_and_frozen_weights_are_not_sent():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    inner = torch.optim.SGD([*net[0].parameters(), *net[1].parameters()], lr=0.1)  # the last layer is frozen
    mean = copy.deepcopy(net)
    averaging = LocalSGD(inner, every=2)
    a_state(model=net, optimizer=inner, averaging=averaging, norm=net[1], head=net[2], ema=mean)
    sent = [id(tensor) for tensor in averaging.buffers()]
    floating = [net[1].running_mean, net[1].running_var]
    of_mean = [*mean.parameters(), mean[1].running_mean, mean[1].running_var]
    assert sorted(sent) == sorted(
        map(id, [*floating, net[1].num_batches_tracked, *of_mean, mean[1].num_batches_tracked])
    )
    means = averaging.collect(AloneComms(), share=1.0)
    with torch.no_grad():
        mean[0].weight.add_(1.0)
    averaging.apply(means)
    assert torch.equal(mean[0].weight, net[0].weight)


def test_a_part_of_a_state_that_averages_cannot_be_replaced():
    state = a_state()
    (model, inner), names = (state.parts[name].value for name in ("model", "optimizer")), state.names
    for name, value in (
        ("optimizer", torch.optim.SGD(model.parameters(), lr=0.1)),
        ("averaging", LocalSGD(inner, every=3)),
        ("model", nn.Linear(2, 1)),
    ):
        with pytest.raises(UsageError, match="cannot be replaced") as refused:
            state.assigning(name, value)
        assert "\n" not in str(refused.value)
    assert not state.assigning("model", model)
    assert state.names == names


def a_state(**others):
    """What a State is made of, with an averaging of its optimizer."""
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"model": model, "optimizer": inner, "averaging": LocalSGD(inner, every=2), **others}
    names = torch_parts.ParameterNames()
    parts = {name: part for name, value in given.items() if (part := choose.part_for(value, names)) is not None}
    return Inventory(given, parts, names=[], part_for=lambda value: choose.part_for(value, names))


class User:
    """What the part of a mixin keeps: it has the empty name."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_what_cannot_be_averaged_is_refused_in_one_line():
    net = nn.Linear(2, 1)
    other = torch.optim.SGD(net.parameters(), lr=0.1)
    for others, says in (
        ({"optimizer": wrap(torch.optim.SGD(net.parameters(), lr=0.1), comms=AloneComms())}, "neither wrapped nor"),
        ({"second": other}, "state.second is not the optimizer"),
        ({"model": ddp(net)}, "averages gradients in each step"),
        ({"model": net}, "parameters that are in no model"),
        ({"stream": ElasticStream(["a"], lambda shard: [1], lengths=[1])}, "is an ElasticStream"),
        ({"sampler": StockSampler.__new__(StockSampler)}, "Horovod's sampler"),
        ({"": User()}, "needs elastic.TorchState"),
        ({"again": LocalSGD(other, every=2)}, "both average"),
    ):
        if isinstance(others.get("sampler"), StockSampler):
            others["sampler"].__dict__.update(state_dict=dict, load_state_dict=print)
        with pytest.raises(StateError, match=says) as refused:
            a_state(**others)
        assert "\n" not in str(refused.value)
    assert a_state(sampler=ElasticSampler(range(4))).parts["sampler"].value.round is not None
