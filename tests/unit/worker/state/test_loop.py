"""The loop: every interrupt ends in a new world and a sync, and a failing start of it is tried again."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.calls.calls import Calls
from hvd_elastic_ext.worker.state import loop
from hvd_elastic_ext.worker.state.loop import elastic, one_call, run
from tests.support.clock import ManualClock


class Impatient(ManualClock):
    """Time passes as soon as somebody waits for it; the waits are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        self.waits.append(timeout)
        return False


class Story:
    """A State, a reset and a training function that raise what they are told, in that order."""

    def __init__(self, **raises: list[Exception | None]) -> None:
        self.raises = raises
        self.told: list[str] = []
        self.clock = Impatient()

    def act(self, what: str) -> str:
        self.told.append(what)
        queue = self.raises.get(what, [])
        error = queue.pop(0) if queue else None
        if error is not None:
            raise error
        return what

    def sync(self) -> None:
        self.act("sync")

    def restore(self) -> None:
        self.act("restore")

    def on_reset(self) -> None:
        self.act("on_reset")

    def run(self) -> Any:
        return run(self, lambda: self.act("train"), reset=lambda: self.act("reset") and None, clock=self.clock)


def lost() -> Exception:
    return HorovodInternalError("a peer is gone")


@pytest.mark.parametrize(
    ("raises", "told"),
    [
        ({"train": [HostsUpdatedInterrupt(True)]}, "sync train reset on_reset sync train"),
        ({"train": [HostsUpdatedInterrupt(False)]}, "sync train reset on_reset sync train"),
        ({"train": [lost()]}, "sync train restore reset on_reset sync train"),
        ({"sync": [lost()]}, "sync restore reset on_reset sync train"),
    ],
    ids=["changed hosts that ask to skip the sync", "changed hosts", "a lost peer", "a peer lost during the sync"],
)
def test_every_interrupt_leads_to_a_new_world_and_a_sync_and_a_loss_to_a_roll_back_first(
    raises: dict[str, list[Exception | None]], told: str
) -> None:
    story = Story(**{where: list(errors) for where, errors in raises.items()})
    assert story.run() == "train"
    assert story.told == told.split()


@pytest.mark.parametrize("where", ["reset", "on_reset"])
def test_a_peer_lost_while_the_next_world_forms_leads_to_another_attempt(where: str) -> None:
    story = Story(train=[HostsUpdatedInterrupt(False)], **{where: [lost(), lost()]})
    assert story.run() == "train"
    assert story.told.count("reset") == 3
    assert story.told.count("restore") == 0
    assert story.clock.waits == [0.5, 1.0]


def test_an_error_of_the_framework_in_a_reset_callback_that_says_a_peer_is_lost_leads_to_another_attempt() -> None:
    story = Story(train=[HostsUpdatedInterrupt(False)], on_reset=[KeyError("a peer"), None, KeyError("my own")])

    def trained() -> Any:
        return run(
            story,
            lambda: story.act("train"),
            reset=lambda: None,
            clock=story.clock,
            lost_by=lambda error: "peer" in str(error),
        )

    assert trained() == "train"
    assert story.told.count("on_reset") == 2
    story.raises["train"] = [HostsUpdatedInterrupt(False)]
    with pytest.raises(KeyError, match="my own"):
        trained()


def test_a_world_that_never_forms_ends_in_its_error() -> None:
    story = Story(train=[lost()], reset=[lost() for _ in range(5)])
    with pytest.raises(HorovodInternalError, match="a peer is gone"):
        story.run()
    assert story.clock.waits == [0.5, 1.0, 2.0, 4.0]


def test_attempts_are_counted_anew_once_a_world_has_formed() -> None:
    story = Story(train=[lost(), lost()], reset=[*[lost()] * 4, None, *[lost()] * 4, None])
    assert story.run() == "train"


def test_the_users_own_error_comes_through_and_the_listener_goes() -> None:
    class Notifications:
        listeners: list[object] = []  # noqa: RUF012

        def init(self) -> None: ...

        def register_listener(self, listener: object) -> None:
            self.listeners.append(listener)

        def remove_listener(self, listener: object) -> None:
            self.listeners.remove(listener)

    def train(state: Story, factor: int) -> None:
        assert Notifications.listeners == [state]
        raise KeyError(factor)

    wrapped: Callable[..., Any] = elastic(train, reset=lambda: None, notifications=Notifications(), clock=ManualClock())
    with pytest.raises(KeyError, match="7"):
        wrapped(Story(), 7)
    assert Notifications.listeners == []


@pytest.mark.parametrize("given", [None, object(), {"batch": 0}])
def test_a_training_function_called_without_a_state_is_told_so_in_one_line(given: object) -> None:
    def train(state: object) -> None: ...

    wrapped: Callable[..., Any] = elastic(train, reset=lambda: None, notifications=cast(Any, None), clock=ManualClock())
    with pytest.raises(UsageError, match=f"train was called with {type(given).__name__} as its first argument; it"):
        wrapped(given)


def test_a_training_function_inside_another_one_is_a_part_of_it_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(os.memfd_create("past"), program="mine")
    monkeypatch.setattr(loop, "current_calls", lambda: calls)
    seen = []

    def call(work: Callable[[], Any]) -> Any:
        return one_call(work, object(), whole=lambda _: nullcontext(), run=work)

    def inner() -> int:
        seen.append((calls.number, calls.running))
        return 1

    def outer() -> int:
        found = sum(call(inner) for _ in range(2))
        seen.append((calls.number, calls.running))
        return found

    with caplog.at_level(logging.WARNING):
        assert call(outer) == 2
    assert seen == [(1, True)] * 3
    assert (calls.number, calls.running) == (1, False)
    [line] = [each.getMessage() for each in caplog.records if "inside another" in each.getMessage()]
    assert line.startswith("inner is called inside another training function: ")


def test_after_a_call_whose_result_cannot_be_made_the_next_one_is_not_inside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(os.memfd_create("past"), program="mine")
    monkeypatch.setattr(loop, "current_calls", lambda: calls)
    with monkeypatch.context() as broken:
        broken.setattr(calls, "returned_to_others", lambda _: Story(left=[OSError("no room")]).act("left"))
        with pytest.raises(OSError, match="no room"):
            one_call(lost, object(), whole=lambda _: nullcontext(), run=lambda: 1)
    one_call(lost, object(), whole=lambda _: nullcontext(), run=lambda: 1)
    assert calls.number == 2
