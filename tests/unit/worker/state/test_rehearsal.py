"""A rehearsal: one step, of which nothing stays. Those of TensorFlow are in tests/contract/parts."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.state.loop import elastic
from hvd_elastic_ext.worker.state.rehearsal import Rehearsal, RehearsalOver
from tests.support.clock import ManualClock
from tests.unit.worker.state.test_counted_steps import Kept


@pytest.fixture(autouse=True)
def _generators_as_before() -> Iterator[None]:
    kept = rng.capture()
    yield
    rng.restore(kept)


class Steps:
    """A count, and a look at it after each step."""

    def __init__(self) -> None:
        self.count = 5
        self.stepped: Callable[[], None] = lambda: None
        self.tried = 0

    def step(self, *, counts: bool = True) -> None:
        self.tried += 1
        self.count += counts
        self.stepped()

    @contextmanager
    def watched(self, stepped: Callable[[], None]) -> Iterator[None]:
        self.stepped = stepped
        yield
        self.stepped = lambda: None

    def rehearse(self, train: Callable[[], object]) -> Rehearsal:
        rehearsal = Rehearsal()
        rehearsal.run(train, steps=lambda: self.count, watched=self.watched)
        return rehearsal


def test_it_ends_after_the_first_step_that_counts() -> None:
    steps = Steps()

    def train() -> None:
        steps.step(counts=False)  # as with a loss scaler
        steps.step()
        pytest.fail("it went on")

    steps.rehearse(train)
    assert steps.tried == 2


def test_a_script_that_catches_its_exceptions_does_not_catch_the_end() -> None:
    steps = Steps()

    def train() -> None:
        for _ in range(3):
            try:
                steps.step()
            except Exception:
                pytest.fail("it was caught")

    steps.rehearse(train)
    assert steps.tried == 1


@pytest.mark.parametrize("error", [ValueError("no such\nfile"), SystemExit(3)])
def test_an_error_of_the_script_is_logged_once_and_comes_again_in_training(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        raise error

    with caplog.at_level(logging.INFO):
        Steps().rehearse(train)
    [line] = caplog.messages
    assert line == f"the rehearsal of a step ended early: {type(error).__name__}: {' '.join(str(error).split())}"


def test_an_interrupt_from_the_keyboard_comes_through() -> None:
    def train() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Steps().rehearse(train)


def test_nothing_is_printed_and_afterwards_all_is(capsys: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        print("epoch 1")
        print("careful", file=sys.stderr)

    Steps().rehearse(train)
    print("after")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("after\n", "")


def test_outside_of_one_nothing_is_ended() -> None:
    steps = Steps()
    rehearsal = steps.rehearse(lambda: None)
    rehearsal.end()
    rehearsal.end_if_stepped()


def test_a_training_function_within_the_rehearsed_one_is_only_called() -> None:
    """It must not park or sync: this process is not called yet."""
    seen = []

    def train(state: Any) -> str:
        seen.append(state)
        return "result"

    def unwanted(*_: Any, **__: Any) -> Any:
        pytest.fail("it is a call of its own")

    inner = elastic(train, reset=unwanted, notifications=None, clock=ManualClock(), whole=unwanted, synced=unwanted)
    Steps().rehearse(lambda: seen.append(inner("state")))
    assert seen == ["state", "result"]


# of a State


@pytest.mark.parametrize("ends", ["commit_called", "save", "hosts_changed", "sync", "restore"])
def test_it_ends_where_the_state_would_deal_with_others(ends: str) -> None:
    kept, went = Kept(), []

    def train() -> None:
        options = {"world_lost": False} if ends == "restore" else {}
        with pytest.raises(RehearsalOver) as over:
            getattr(kept.keeper, ends)(**options)
        went.append(ends)
        raise over.value

    before = kept.keeper._buffer.record
    kept.keeper.rehearse(train)
    assert went == [ends]
    assert kept.keeper._buffer.record == before


def test_everything_is_put_back_generators_too_also_if_they_are_not_kept() -> None:
    kept = Kept()
    kept.keeper._keep_rng = False
    kept.steps(2)
    kept.commit()

    def seen() -> Any:
        return kept.keeper.fingerprint(), write(rng.capture(), []), kept.status.step, list(kept.lines)

    before = seen()

    def train() -> None:
        random.random()
        torch.rand(3)
        kept.owner.epoch = 7
        kept.steps(1)

    for _ in range(3):
        kept.keeper.rehearse(train)
        assert kept.owner.epoch == 0
        assert seen() == before
    kept.steps(1)
    kept.commit()
    assert kept.committed_step == 3


def test_changes_since_the_last_commit_stay(memory: list[int]) -> None:
    kept = Kept(memory=memory)
    kept.owner.epoch = 4
    kept.keeper.rehearse(lambda: setattr(kept.owner, "epoch", 9))
    assert kept.owner.epoch == 4


def test_gradients_of_passes_that_were_rehearsed_are_gone() -> None:
    kept = Kept(passes=2)
    settled: list[Any] = []
    kept.keeper._inventory.parts["optimizer"].settle = lambda: settled.append(1)  # type: ignore[method-assign]
    kept.keeper.rehearse(lambda: kept.steps(1))
    assert settled


def test_a_state_whose_optimizer_does_not_count_itself_has_none() -> None:
    kept = Kept()
    kept.keeper._steps.watch(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    kept.keeper.rehearse(lambda: pytest.fail("it was called"))
