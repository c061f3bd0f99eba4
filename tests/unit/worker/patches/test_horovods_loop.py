"""The loop that takes the place of Horovod's in a process with a link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from horovod.common.exceptions import HorovodInternalError

from hvd_elastic_ext.worker.calls import calls
from hvd_elastic_ext.worker.patches import horovod_hook
from tests.unit.worker.state.test_loop import Impatient


class State:
    """As one of Horovod's own; it notes what the loop asks of it, and fails with these errors, one for each time."""

    def __init__(self, *, syncs: tuple[Exception, ...] = (), resets: tuple[Exception, ...] = ()) -> None:
        self.told: list[str] = []
        self._syncs, self._resets = [*syncs], [*resets]

    def sync(self) -> None:
        self.told.append("sync")
        if self._syncs:
            raise self._syncs.pop()

    def restore(self) -> None:
        self.told.append("restore")

    def on_reset(self) -> None:
        self.told.append("reset")
        if self._resets:
            raise self._resets.pop()


def of_tensorflow(name: str, text: str) -> Exception:
    """An error as TensorFlow's: they are known by their class and its module."""
    kind = type(name, (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"})
    return kind(text)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def own_calls() -> Iterator[None]:
    calls.forget()
    yield
    calls.forget()


def looped(training: Callable[[State], Any], state: State, reset: Callable[[], None] = lambda: None) -> Any:
    """The result of the training function in the loop."""
    manager = SimpleNamespace(
        init=lambda: None, register_listener=lambda one: state.told.append("listens"),
        remove_listener=lambda one: state.told.append("ends"),
    )  # fmt: skip
    return horovod_hook._run_fn(manager, training, reset, clock=Impatient())(state)


def test_every_error_of_tensorflow_that_names_a_lost_collective_is_an_interrupt() -> None:
    """Horovod's function around it knows one kind only."""
    errors = [
        of_tensorflow(name, "[[{{node HorovodAllreduce_grads_0}}]]") for name in ("AbortedError", "InternalError")
    ]
    state = State()

    def training(state: State) -> int:
        if errors:
            raise errors.pop()
        return 7

    assert looped(training, state) == 7
    assert state.told == ["listens", "sync", *["restore", "reset", "sync"] * 2, "ends"]


def test_an_error_that_names_none_is_the_scripts_own() -> None:
    def training(state: State) -> None:
        raise of_tensorflow("UnknownError", "at node PyFunc")

    with pytest.raises(Exception, match="at node PyFunc"):
        looped(training, State())


LOST = of_tensorflow("UnknownError", "\t [[{{node HorovodBroadcast_0}}]]"), HorovodInternalError("gone")


@pytest.mark.parametrize("error", LOST, ids=["TensorFlow's", "Horovod's"])
def test_a_peer_lost_in_the_sync_in_a_reset_callback_or_while_a_world_forms_is_an_interrupt(error: Exception) -> None:
    """Horovod's own loop raises the error of a callback, and TensorFlow's of the sync."""
    state, joins = State(syncs=(error,), resets=(error,)), [ValueError("no world")]

    def reset() -> None:
        state.told.append("join")
        if joins:
            raise joins.pop()

    assert looped(lambda state: 7, state, reset) == 7
    assert state.told == ["listens", "sync", "restore", "join", "join", "reset", "join", "reset", "sync", "ends"]


def test_an_error_of_a_reset_callbacks_own_comes_through_and_so_does_a_loss_each_time() -> None:
    with pytest.raises(KeyError, match="own"):
        looped(lambda state: 7, State(syncs=(LOST[1],), resets=(KeyError("own"),)))
    state = State(syncs=(LOST[1],), resets=(LOST[1],) * 9)
    with pytest.raises(HorovodInternalError, match="gone"):
        looped(lambda state: 7, state)
    assert (state.told.count("reset"), state.told[-1]) == (5, "ends")


@pytest.mark.parametrize("replay", [False, True])
def test_with_a_state_of_horovods_own_a_user_is_told_that_replay_does_nothing(
    replay: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_REPLAY", str(int(replay)))
    assert looped(lambda state: 7, State()) == 7
    assert ["--replay does nothing" in text for text in caplog.messages] == [True] * replay
