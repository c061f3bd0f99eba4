"""Which threads wait for other ranks within torch, as a heartbeat sees them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.worker.comms.torch_waits import LITTLE, TorchWaits
from tests.support.waiting import wait_until

COLLECTIVE = "/site-packages/torch/distributed/distributed_c10d.py"
BACKWARD = "/site-packages/torch/autograd/graph.py"
SCRIPT = "/home/me/train.py"


def within(file: str, body: str, **names: object) -> Callable[[], None]:
    """A function whose code is that of a file."""
    exec(compile(f"def function():\n    {body}\n", file, "exec"), names)
    function: Callable[[], None] = names["function"]  # type: ignore[assignment]
    return function


@pytest.fixture
def over() -> Iterator[threading.Event]:
    over = threading.Event()
    yield over
    over.set()


def run(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


@pytest.mark.parametrize("file", [COLLECTIVE, BACKWARD])
def test_a_thread_that_has_waited_in_a_collective_since_the_last_look_waits(file: str) -> None:
    waits, lock = TorchWaits(), threading.Lock()
    lock.acquire()
    thread = run(within(file, "lock.acquire()", lock=lock))
    try:
        assert not waits.look(), "it has only come there"
        wait_until(waits.look, what="a wait")
    finally:
        lock.release()
        thread.join()
    assert not waits.look(), "it waits no more"


def test_a_wait_of_the_script_is_not_one_for_other_ranks(over: threading.Event) -> None:
    waits = TorchWaits()
    run(within(SCRIPT, "over.wait()", over=over))
    inner = within(SCRIPT, "over.wait()", over=over)
    run(within(COLLECTIVE, "inner()", inner=inner))  # such as the forward pass within DDP
    assert not any(waits.look() for _ in range(3))


def test_a_thread_that_computes_in_a_collective_does_not_wait() -> None:
    waits, over = TorchWaits(), []
    thread = run(within(BACKWARD, "while not over: pass", over=over))
    spent = Path(f"/proc/self/task/{thread.native_id}/stat")

    def ticks() -> int:
        return sum(map(int, spent.read_text().rpartition(")")[2].split()[11:13]))

    try:
        for _ in range(3):
            waits.look()
            before = ticks()
            wait_until(lambda before=before: ticks() > before + LITTLE, what="computation", timeout=60)
            assert not waits.look()
    finally:
        over.append(time)
        thread.join()
