"""A script whose ranks step and average nothing is told. What the libraries count: tests/contract/comms."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.journal import check
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.sync.commit_interval import CommitSchedule
from hvd_elastic_ext.worker.sync.interrupts import Stopping
from hvd_elastic_ext.worker.sync.training_alone import FEW_STEPS, SECONDS, STEPS, TrainingAlone
from tests.support.clock import ManualClock

WORDS = "each of the 2 ranks trains alone"


class Comms(AloneComms):
    """A world whose library has counted ``begun`` collectives of the script."""

    def __init__(self, *, size: int = 2, rank: int = 0, begun: int | None = 0) -> None:
        self.world, self.place, self.begun = size, rank, begun
        self.asked = 0

    def size(self) -> int:
        return self.world

    def rank(self) -> int:
        return self.place

    def begun_by_script(self) -> int | None:
        self.asked += 1
        return self.begun


class Journal:
    """What was recorded."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def record(self, event: str, **fields: object) -> None:
        check(event, fields)
        self.lines.append((event, fields))


def train(
    comms: Comms, *, steps: int, each_s: float, begins: int = 0, clock: ManualClock | None = None, ends: bool = False
) -> Journal:
    clock, journal = clock or ManualClock(), Journal()
    alone = TrainingAlone(comms, clock, journal.record)
    for step in range(1, steps + 1):
        clock.advance(each_s)
        if begins and step % begins == 0:
            comms.begun += 1
        alone.stepped()
    if ends:
        alone.training_ended()
    return journal


def test_that_ranks_train_alone_is_in_the_journal_once_and_by_one_rank() -> None:
    assert train(Comms(size=4), steps=5 * STEPS, each_s=1.0).lines == [
        ("trains_alone", {"size": 4, "rank": 0, "reason": "nothing was averaged over the 4 ranks for 100 s"})
    ]
    assert train(Comms(size=4, rank=1), steps=5 * STEPS, each_s=1.0).lines == []


def test_a_state_writes_it_into_its_own_journal() -> None:
    clock, journal = ManualClock(), Journal()
    stopping = Stopping(Comms(), clock, CommitSchedule(), journal.record)
    stopping.enter()
    for _ in range(3 * STEPS):
        clock.advance(1.0)
        stopping.stepped()
    assert [event for event, _ in journal.lines] == ["trains_alone"]


def test_a_state_counts_steps_that_an_optimizer_has_counted_itself() -> None:
    clock, journal = ManualClock(), Journal()
    stopping = Stopping(Comms(), clock, CommitSchedule(), journal.record)
    stopping.counted(2 * STEPS)  # there is no world yet
    stopping.enter()
    for _ in range(3):
        clock.advance(SECONDS)
        stopping.counted(STEPS)
    assert [event for event, _ in journal.lines] == ["trains_alone"]


def test_many_steps_counted_at_once_are_looked_at_once() -> None:
    class Clock(ManualClock):
        asked = 0

        def mono(self) -> float:
            self.asked += 1
            return super().mono()

    clock = Clock()
    stopping = Stopping(Comms(), clock, CommitSchedule(), Journal().record)
    stopping.enter()
    stopping.counted(STEPS)
    asked = clock.asked
    stopping.counted(100 * STEPS)  # a script has loaded an optimizer; this may be the thread of the heartbeats
    assert clock.asked == asked + 1


def test_a_script_of_tensorflow_is_told_what_to_do_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stock, "FRAMEWORK", "tensorflow")
    train(Comms(), steps=5 * STEPS, each_s=1.0)
    assert "hvd.DistributedGradientTape" in caplog.text
    assert "elastic.wrap" not in caplog.text


def test_a_script_without_any_collective_is_told_once_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    train(Comms(), steps=STEPS, each_s=1.0)
    assert caplog.text == ""
    train(Comms(), steps=5 * STEPS, each_s=1.0)
    assert caplog.text.count(WORDS) == 1
    assert "hvd.DistributedOptimizer" in caplog.text
    assert "DistributedDataParallel" in caplog.text


def test_fast_steps_are_given_half_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    train(Comms(), steps=int(SECONDS / 0.01) - 1, each_s=0.01)
    assert caplog.text == ""
    train(Comms(), steps=int(SECONDS / 0.01) + 2, each_s=0.01)
    assert caplog.text.count(WORDS) == 1


@pytest.mark.parametrize("begins", [1, STEPS - 1], ids=["each step", "now and then, as in local SGD"])
def test_a_script_that_averages_is_told_nothing(begins: int, caplog: pytest.LogCaptureFixture) -> None:
    train(Comms(), steps=20 * STEPS, each_s=1.0, begins=begins)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "comms", [Comms(size=1), Comms(rank=1), Comms(begun=None)], ids=["one rank", "not rank 0", "cannot be counted"]
)
def test_without_a_sure_sign_and_on_other_ranks_nothing_is_said(comms: Comms, caplog: pytest.LogCaptureFixture) -> None:
    train(comms, steps=20 * STEPS, each_s=1.0)
    assert caplog.text == ""


def test_the_count_is_read_once_a_window_and_not_at_each_step() -> None:
    comms = Comms()
    train(comms, steps=10 * STEPS, each_s=1.0, begins=1)
    assert comms.asked <= 11


def test_steps_of_a_world_that_has_ended_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    stopping = Stopping(Comms(), clock, CommitSchedule())
    for _ in range(10):
        stopping.enter()
        for _ in range(STEPS):
            clock.advance(1.0)
            stopping.stepped()
            stopping.due()
        stopping.drop()
    assert caplog.text == ""


def test_the_next_world_is_told_nothing_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    alone = TrainingAlone(Comms(), clock, Journal().record)
    for _ in range(3):
        for _ in range(3 * STEPS):
            clock.advance(1.0)
            alone.stepped()
        alone.world_ended()
    assert caplog.text.count(WORDS) == 1


def test_a_training_too_short_for_a_whole_window_is_judged_at_its_end() -> None:
    reason = "nothing was averaged over the 2 ranks for 12 s"
    assert train(Comms(), steps=121, each_s=0.1, ends=True).lines == [
        ("trains_alone", {"size": 2, "rank": 0, "reason": reason})
    ]
    assert train(Comms(), steps=121, each_s=0.1, begins=100, ends=True).lines == []
    assert train(Comms(), steps=FEW_STEPS, each_s=0.1, ends=True).lines == []
    assert train(Comms(size=1), steps=121, each_s=0.1, ends=True).lines == []
    assert train(Comms(begun=None), steps=121, each_s=0.1, ends=True).lines == []


def test_the_rest_behind_a_whole_window_is_not_judged_by_itself() -> None:
    """A script that averages now and then may have done so before."""
    comms = Comms()
    assert train(comms, steps=2 * STEPS + 30, each_s=1.0, begins=STEPS, ends=True).lines == []


def test_a_state_judges_a_short_training_when_its_function_returns() -> None:
    clock, journal = ManualClock(), Journal()
    stopping = Stopping(Comms(), clock, CommitSchedule(), journal.record)
    stopping.enter()
    for _ in range(FEW_STEPS + 1):
        clock.advance(0.1)
        stopping.stepped()
    stopping.training_ended()
    assert [event for event, _ in journal.lines] == ["trains_alone"]
