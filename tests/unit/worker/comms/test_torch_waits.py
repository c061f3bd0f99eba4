"""When the main thread waits for other ranks within torch, as heartbeats see it."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_elastic_ext.worker.comms.torch_waits import TorchWaits, seconds_computed
from tests.support.waiting import wait_until

COLLECTIVE = "/site-packages/torch/distributed/distributed_c10d.py"
BACKWARD = "/site-packages/torch/autograd/graph.py"
SCRIPT = "/home/me/train.py"


class Machine:
    """A main thread somewhere, and what it and the others compute."""

    def __init__(self) -> None:
        self.at, self.main_s, self.others_s = 0.0, 0.0, 0.0
        self.waits = TorchWaits(lambda: self.at, self.computed_s)

    def computed_s(self, thread: int | None) -> float:
        assert thread in (None, threading.main_thread().native_id)
        return self.main_s + (self.others_s if thread is None else 0.0)

    def looks(self, file: str, *, main: float = 0.0, others: float = 0.0, every_s: float = 1.0) -> list[bool]:
        """Look three times from within a file; ``main`` and ``others`` compute that share of a processor."""
        return [self.look(file, main, others, every_s) for _ in range(3)]

    def look(self, file: str, main: float, others: float, every_s: float, *, called: str | None = None) -> bool:
        self.at += every_s
        self.main_s += main * every_s
        self.others_s += others * every_s
        return within(file, self.waits.look, called=called)


def within(file: str, look: Callable[[], bool], *, called: str | None = None) -> bool:
    """Look from another thread, while the innermost code of the main one is that of a file, or of one that it has
    called.
    """
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: (held.acquire(), seen.append(look()), free.release()))
    held, free = threading.Lock(), threading.Lock()
    held.acquire()
    free.acquire()
    thread.start()
    names: dict[str, Any] = {"held": held, "free": free}
    exec(compile("def wait(): held.release(); free.acquire()", called or file, "exec"), names)
    exec(compile("wait()", file, "exec"), names)
    thread.join()
    return seen[0]


@pytest.mark.parametrize("file", [COLLECTIVE, BACKWARD])
def test_it_waits_where_it_was_at_the_look_before_and_has_not_computed_since(file: str) -> None:
    machine = Machine()
    assert machine.looks(file) == [False, True, True]
    assert machine.looks(SCRIPT) == [False, False, False]
    assert machine.looks(file) == [False, True, True]


def test_an_operator_of_torch_waits_where_it_is_called_and_a_disk_is_not_another_rank() -> None:
    for file, expected in ((COLLECTIVE, True), (SCRIPT, False)):
        machine = Machine()
        seen = [machine.look(file, 0.0, 0.0, 1.0, called="/site-packages/torch/_ops.py") for _ in range(3)]
        assert seen == [False, expected, expected]
    assert Machine().looks("/site-packages/torch/distributed/checkpoint/filesystem.py") == [False, False, False]


def test_without_a_descriptor_to_look_with_and_from_the_main_thread_it_does_not_wait() -> None:
    def computed_s(_: int | None) -> float:
        raise OSError(24, "Too many open files")

    times = itertools.count()
    waits = TorchWaits(lambda: float(next(times)), computed_s)
    assert [within(COLLECTIVE, waits.look) for _ in range(3)] == [False, False, False]
    machine = Machine()
    machine.looks(COLLECTIVE)
    assert not machine.waits.look()


def test_a_wait_of_the_script_is_not_one_for_other_ranks() -> None:
    assert Machine().looks(SCRIPT) == [False, False, False]


@pytest.mark.parametrize("file", [COLLECTIVE, BACKWARD])
@pytest.mark.parametrize("every_s", [0.01, 1.0])
def test_who_computes_does_not_wait_however_often_it_is_looked_at(file: str, every_s: float) -> None:
    machine = Machine()
    assert not any(machine.look(file, 0.5, 0.0, every_s) for _ in range(200))
    assert any(machine.look(file, 0.0, 0.0, every_s) for _ in range(200))


def test_other_threads_compute_for_a_backward_pass_and_not_for_a_collective() -> None:
    assert Machine().looks(COLLECTIVE, others=1.0) == [False, True, True]
    assert Machine().looks(BACKWARD, others=1.0) == [False, False, False]


def test_a_backward_pass_on_a_gpu_is_not_seen_to_compute_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(is_initialized=lambda: True))  # type: ignore[arg-type]
    assert Machine().looks(BACKWARD) == [False, False, False]
    assert Machine().looks(COLLECTIVE) == [False, True, True]


def test_what_a_thread_computes_is_of_the_process_too() -> None:
    seen: list[Any] = []
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            seen.append(None)

    thread = threading.Thread(target=compute)
    before = seconds_computed(None)
    thread.start()
    native = thread.native_id
    assert native is not None
    wait_until(lambda: seconds_computed(native) >= 0.05, what="computation", timeout=60)
    over.set()
    thread.join()
    assert seconds_computed(None) - before > 0.04
