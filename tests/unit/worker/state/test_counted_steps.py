"""An optimizer that counts its steps itself, as Keras' do: they are seen at commits and checks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.worker.comms import AloneComms, Finished
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepCount, StepTimer
from hvd_elastic_ext.worker.state import journal
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.keeper import Keeper, WorkerSettings
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.made_commits import buffer_over


class Number:
    """As a variable is."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value

    def assign(self, value: int) -> None:
        self.value = value


class Optimizer:
    """It has no hooks, and torch does not count what it writes. ``passes``: of a step, as Horovod adds them up."""

    def __init__(self, passes: int = 1) -> None:
        self.iterations = Number()
        self.weight = torch.zeros(3)
        if passes > 1:
            self._agg_helper = SimpleNamespace(counter=Number(), backward_passes_per_step=passes)

    def step(self) -> None:
        """One step, or one pass of it."""
        self.iterations.value += 1
        helper = getattr(self, "_agg_helper", None)
        if helper is not None:
            helper.counter.value = (helper.counter.value + 1) % helper.backward_passes_per_step
        if helper is None or not helper.counter.value:
            self.weight.numpy()[:] += 1


class OptimizerPart(Part):
    takes_views = True
    counts_writes = False
    firm = True

    def __init__(self, value: Optimizer) -> None:
        self.value = value

    def capture(self) -> Any:
        return {"iterations": int(self.value.iterations), "weight": self.value.weight}

    def restore(self, tree: Any) -> None:
        self.value.iterations.assign(tree["iterations"])
        self.value.weight.numpy()[:] = tree["weight"].numpy()

    def optimizers(self, name: str) -> dict[str, Any]:
        return {name: self.value}


class Kept:
    """A State of such an optimizer and a number. ``lines``: what it has written to the journal, with the steps."""

    def __init__(self, comms: Any = None, memory: Sequence[int] | None = None, *, passes: int = 1) -> None:
        self.optimizer, self.status, self.lines = Optimizer(passes), Status(), list[tuple[str, int, Any]]()
        self.owner = SimpleNamespace(optimizer=self.optimizer, epoch=0)
        parts = {"optimizer": OptimizerPart(self.optimizer)}
        clock = SystemClock()
        self.keeper = Keeper(
            Inventory(self.owner, parts, names=["epoch"], part_for=lambda value: None),
            buffer=buffer_over(memory), comms=AloneComms() if comms is None else comms, clock=clock, status=self.status,
            reporter=journal.Reporter(self._record, clock, sample=0.0, host=""), settings=WorkerSettings(), program="",
        )  # fmt: skip

    def _record(self, event: str, *, step: int, **fields: Any) -> None:
        self.lines.append((event, step, fields.get("steps_lost")))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.step()

    def commit(self) -> bool:
        self.keeper.commit_called()
        self.keeper.save()
        return self.keeper.hosts_changed()

    @property
    def committed_step(self) -> int:
        record = self.keeper._buffer.record
        assert record is not None
        return record.step


class Blocking(LockstepComms):
    """A library whose operations block."""

    rides_along = False

    def start_max(self, number: int, *, name: str) -> Any:
        return Finished(super().start_max(number, name=name).wait())


def blocking(comms: LockstepComms) -> LockstepComms:
    comms.__class__ = Blocking
    return comms


def test_the_steps_since_the_last_look_are_counted_at_once_and_reported_as_one() -> None:
    kept = Kept()
    kept.keeper.sync()
    kept.steps(3)
    kept.commit()
    kept.steps(2)
    kept.commit()
    assert (kept.committed_step, kept.status.step) == (5, 5)
    assert kept.status.stepped is not None
    assert kept.status.stepped[0] == 5
    assert [step for event, step, _ in kept.lines if event == "stepped"] == [3, 5]


def test_a_look_without_a_step_reports_none() -> None:
    counted: list[int] = []
    steps, optimizer = StepCount(lambda: pytest.fail("no hook"), counted=counted.append), Optimizer()
    steps.watch(optimizer)
    steps.look()
    optimizer.step()
    steps.look()
    steps.look()
    optimizer.step()
    steps.look(tell=False)
    assert (counted, steps.done) == ([1], 2)


def test_a_roll_back_takes_back_the_steps_that_nobody_has_looked_at_and_later_ones_count_again() -> None:
    kept = Kept()
    kept.keeper.sync()
    kept.steps(2)
    kept.commit()
    for _ in range(3):
        kept.steps(4)
        kept.keeper.restore(world_lost=False)
        assert (kept.status.step, kept.committed_step, int(kept.optimizer.iterations)) == (2, 2, 2)
        assert kept.optimizer.weight.tolist() == [2.0] * 3
    assert [lost for event, _, lost in kept.lines if event == "rolled_back"] == [4, 4, 4]
    kept.steps(1)
    kept.commit()
    assert kept.committed_step == 3


def test_a_process_that_continues_from_a_commit_counts_on_from_its_steps(memory: list[int]) -> None:
    before = Kept(memory=memory)
    before.keeper.sync()
    before.steps(7)
    before.commit()
    after = Kept(memory=memory)
    after.keeper.sync()
    assert int(after.optimizer.iterations) == 7
    after.steps(1)
    after.commit()
    assert after.committed_step == 8


def test_a_count_that_a_script_sets_back_or_forth_before_a_sync_is_not_steps() -> None:
    kept = Kept()
    kept.optimizer.iterations.assign(100)  # as a script does that loads its own checkpoint
    kept.keeper.sync()
    kept.steps(1)
    kept.commit()
    kept.optimizer.iterations.assign(0)
    kept.commit()
    kept.steps(2)
    kept.commit()
    assert kept.committed_step == 3


def test_the_newest_optimizer_is_the_one_that_is_counted() -> None:
    steps, one, other = StepCount(lambda: None), Optimizer(), Optimizer()
    one.iterations.assign(4)
    steps.watch(one)
    steps.watch(other)
    one.step()
    other.step()
    steps.look()
    assert steps.done == 1
    steps.watch(None)
    other.step()
    steps.look()
    assert (steps.done, steps.own_count) == (1, None)


# Several passes of a step, of which Horovod counts each


def test_passes_are_no_steps_and_those_that_were_dropped_count_for_none() -> None:
    kept = Kept(passes=4)
    kept.keeper.sync()
    seen = []
    for _ in range(9):
        kept.steps(1)
        kept.commit()
        seen.append(kept.committed_step)
    assert seen == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    kept.optimizer._agg_helper.counter.assign(0)  # as a sync does
    kept.steps(4)
    kept.commit()
    assert kept.committed_step == 3


def test_a_world_ends_only_after_all_passes_of_a_step() -> None:
    kept = Kept(passes=4)
    kept.keeper.sync()
    kept.steps(1)
    kept.keeper.inbox.put()
    answers = [kept.commit()]
    for _ in range(3):
        kept.steps(1)
        answers.append(kept.commit())
    assert answers == [False, False, False, True]


def test_a_script_that_never_checks_after_a_step_is_not_waited_for() -> None:
    kept = Kept(passes=2)
    kept.keeper.sync()
    kept.steps(1)
    kept.keeper.inbox.put()
    answers = [kept.commit()]
    kept.steps(2)
    answers.append(kept.commit())
    assert answers == [False, True]


# With other ranks, whose library blocks


def test_one_rank_alone_may_save_without_waiting_for_the_others() -> None:
    saved = threading.Event()

    def rank_main(comms: LockstepComms) -> int:
        kept = Kept(blocking(comms))
        kept.keeper.sync()
        kept.steps(1)
        if comms.rank() == 0:
            kept.keeper.save()
            saved.set()
        assert saved.wait(10), "rank 0 waits for rank 1"
        kept.keeper.hosts_changed()
        return kept.keeper._steps.done

    assert in_lockstep(2, rank_main)[0] == [1, 1]


def test_a_notice_of_one_rank_takes_effect_at_the_next_check_of_all() -> None:
    def rank_main(comms: LockstepComms) -> list[bool]:
        kept = Kept(blocking(comms))
        kept.keeper.sync()
        answers = []
        for number in range(3):
            kept.steps(1)
            if number == 1 and comms.rank() == 1:
                kept.keeper.inbox.put()
            answers.append(kept.commit())
            if answers[-1]:
                break
        return answers

    assert in_lockstep(2, rank_main)[0] == [[False, True]] * 2


def test_ranks_still_agree_if_one_of_them_skips_steps() -> None:
    """As a loss scaler does that has met an infinity."""

    def rank_main(comms: LockstepComms) -> int:
        kept = Kept(blocking(comms))
        kept.keeper.sync()
        checks = 0
        while checks < 90 and not kept.commit():  # up to sixteen short steps share a reduction
            checks += 1
            kept.steps(int(comms.rank() == 0 or checks % 3 == 0))
            if checks == 50 and comms.rank() == 1:
                kept.keeper.inbox.put()
        return checks

    first, second = in_lockstep(2, rank_main)[0]
    assert first == second < 90


# Times


def test_the_first_step_that_is_found_in_a_world_ends_its_pause() -> None:
    now, reports = [0.0], []
    timer = StepTimer(Status(), lambda: now[0], report=lambda what, **fields: reports.append((what, fields)))
    timer._status.fresh = True
    timer.counted(1)
    for at in (1.0, 2.0):
        now[0] = at
        timer.counted(4)
    timer._status.fresh = True
    now[0] = 12.0
    timer.counted(2)
    assert reports == [("first_step", {"pause_s": None}), ("first_step", {"pause_s": 9.75})]
