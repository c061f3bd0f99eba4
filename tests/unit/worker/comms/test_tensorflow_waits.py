"""When the main thread waits for other ranks within a graph of TensorFlow, as heartbeats see it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Collection
from pathlib import Path

from hvd_elastic_ext.worker.comms.tensorflow_waits import TensorFlowWaits, reads, seconds_computed, threads
from tests.support.waiting import wait_until
from tests.unit.worker.comms.test_torch_waits import within

GRAPH = "/site-packages/tensorflow/python/eager/execute.py"
SESSION = "/site-packages/tensorflow/python/client/session.py"
DATA = "/site-packages/tensorflow/python/ops/gen_dataset_ops.py"
PYTHON = "/site-packages/tensorflow/python/ops/script_ops.py"
HOROVODS = 17


class Machine:
    """A process whose threads compute, some of them of Horovod."""

    def __init__(self, *, gpu: bool = False) -> None:
        self.at, self.computed_s = 0.0, 0.0
        self.but: set[int] = set()
        self.reads = False
        self.reading_thread: int | None = None
        self.polls: set[int] = set()
        self.waits = TensorFlowWaits(
            lambda: {HOROVODS}, lambda: gpu, now=lambda: self.at, computed_s=self.computed, reading=self.reading,
            polling=lambda: set(self.polls),
        )  # fmt: skip

    def reading(self, but: Collection[int]) -> bool:
        assert {HOROVODS, threading.get_native_id()} <= set(but)
        return self.reads or self.reading_thread not in {None, *but}

    def computed(self, but: Collection[int]) -> float:
        self.but = set(but)
        return self.computed_s

    def looks(self, file: str, *, share: float = 0.0) -> list[bool]:
        found = []
        for _ in range(3):
            self.at += 1.0
            self.computed_s += share
            found.append(within(file, self.waits.look))
        return found


def test_it_waits_where_a_graph_runs_and_nothing_is_computed() -> None:
    machine = Machine()
    assert machine.looks(GRAPH) == [False, True, True]
    assert machine.looks(GRAPH, share=0.5) == [False, False, False]
    assert machine.looks(SESSION) == [True, True, True]
    assert HOROVODS in machine.but
    assert threading.get_native_id() not in machine.but  # the thread that looks was another one


def test_who_reads_data_or_runs_the_script_does_not_wait_and_on_a_gpu_nothing_is_known() -> None:
    assert Machine().looks(DATA) == [False, False, False]
    assert Machine().looks("/home/me/train.py") == [False, False, False]
    assert Machine(gpu=True).looks(GRAPH) == [False, False, False]


def test_a_graph_that_calls_python_code_of_the_script_does_not_wait() -> None:
    machine = Machine()
    over, called = threading.Event(), threading.Event()
    names = {"over": over, "called": called}
    exec(compile("def call(): called.set(); over.wait()", PYTHON, "exec"), names)
    thread = threading.Thread(target=names["call"])  # type: ignore[arg-type]
    thread.start()
    called.wait()
    assert machine.looks(GRAPH) == [False, False, False]
    over.set()
    thread.join()
    assert machine.looks(GRAPH) == [False, True, True]


def test_what_threads_compute_is_counted_but_for_those_that_are_left_out() -> None:
    over = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    thread.start()
    assert thread.native_id in threads()
    others = threads() - {thread.native_id}
    wait_until(lambda: seconds_computed(others) >= 0.05, what="computation", timeout=60)
    over.set()
    thread.join()


def test_a_graph_for_which_a_thread_of_tensorflows_reads_data_does_not_wait_for_ranks() -> None:
    machine = Machine()
    machine.reads = True
    assert machine.looks(GRAPH) == [False, False, False]
    machine.reads = False
    assert machine.looks(GRAPH) == [False, True, True]


def test_a_thread_that_polls_outside_of_graphs_too_does_not_wait_for_data() -> None:
    machine = Machine()
    machine.reading_thread, machine.polls = 41, {41}
    assert machine.looks("/home/me/train.py") == [False, False, False]
    assert machine.looks(GRAPH) == [False, True, True]
    machine.polls = set()
    assert machine.looks("/home/me/train.py") == [False, False, False]
    assert machine.looks(GRAPH) == [False, False, False]


def test_a_thread_that_waits_for_data_in_the_kernel_reads_unless_it_is_left_out() -> None:
    ours, theirs = os.pipe()
    thread = threading.Thread(target=lambda: os.read(ours, 1))
    thread.start()
    others = threads() - {thread.native_id}
    wait_until(lambda: reads(others), what="the thread within its read", timeout=60)
    assert not reads(threads())
    os.write(theirs, b"x")
    thread.join()
    assert not reads(others)
    os.close(ours)
    os.close(theirs)


def test_a_thread_that_polls_a_connection_reads_but_not_one_of_grpc_that_always_does() -> None:
    ours, theirs = os.pipe()
    thread = threading.Thread(target=lambda: select.select([ours], [], []))
    thread.start()
    others = threads() - {thread.native_id}
    wait_until(lambda: reads(others), what="the thread within its poll", timeout=60)
    name = Path(f"/proc/self/task/{thread.native_id}/comm")
    name.write_text("event_engine")
    assert not reads(others)
    name.write_text("tf_Compute")
    assert reads(others)
    os.write(theirs, b"x")
    thread.join()
    os.close(ours)
    os.close(theirs)
