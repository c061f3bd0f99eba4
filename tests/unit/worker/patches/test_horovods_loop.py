"""Horovod's own loop in a process with a link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from horovod.common.elastic import run_fn

from hvd_elastic_ext.worker.calls import calls
from hvd_elastic_ext.worker.patches import horovod_hook


class State:
    """As one of Horovod's own; it notes what the loop asks of it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def sync(self) -> None:
        self.told.append("sync")

    def restore(self) -> None:
        self.told.append("restore")

    def on_reset(self) -> None:
        self.told.append("reset")


def of_tensorflow(name: str, text: str) -> Exception:
    """An error as TensorFlow's: they are known by their class and its module."""
    kind = type(name, (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"})
    return kind(text)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def own_calls() -> Iterator[None]:
    calls.forget()
    yield
    calls.forget()


def test_every_error_of_tensorflow_that_names_a_lost_collective_is_an_interrupt() -> None:
    """Horovod's function around it knows one kind only."""
    errors = [of_tensorflow(name, "at node HorovodAllreduce_grads_0") for name in ("AbortedError", "InternalError")]
    state = State()

    def training(state: State) -> int:
        if errors:
            raise errors.pop()
        return 7

    assert horovod_hook._run_fn(run_fn, training, lambda: None)(state) == 7
    assert state.told == ["sync", *["restore", "reset", "sync"] * 2]


def test_an_error_that_names_none_is_the_scripts_own() -> None:
    def training(state: State) -> None:
        raise of_tensorflow("UnknownError", "at node PyFunc")

    with pytest.raises(Exception, match="at node PyFunc"):
        horovod_hook._run_fn(run_fn, training, lambda: None)(State())
