"""A graph that waits for data of tf.data's service, which another process serves, beside one that waits for ranks."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from hvd_elastic_ext.worker.comms.tensorflow_waits import GRAPH, TensorFlowWaits
from tests.support import tensorflow
from tests.support.processes import run_process
from tests.support.tensorflow import needs_tensorflow
from tests.support.waiting import wait_until

SERVER: Final = [sys.executable, str(Path(__file__).with_name("serves_data.py"))]
pytestmark = [needs_tensorflow, pytest.mark.timeout(300)]


def in_a_graph() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code.co_filename.endswith(GRAPH)


@pytest.mark.soak
def test_a_graph_that_the_service_owes_data_does_not_wait_for_ranks_and_one_that_has_them_does() -> None:
    """The service is stopped meanwhile. The second wait, which stands for a collective, is for a queue."""
    tf = tensorflow.load()
    queue = tf.queue.FIFOQueue(1, [tf.int64])
    seconds = itertools.count()
    waits = TensorFlowWaits(lambda: (), lambda: False, now=lambda: float(next(seconds)))
    told: list[str] = []

    def watch() -> None:
        try:
            try:
                wait_until(
                    lambda: in_a_graph() and not any(waits.look() for _ in range(10)) and in_a_graph(),
                    what="a graph that waits for data",
                    timeout=60,
                )
                told.append("it waits for data")
            finally:
                server.send_signal(signal.SIGCONT)
            wait_until(waits.look, what="a graph that waits for ranks", timeout=60)
            told.append("it waits for ranks")
        finally:
            queue.enqueue(1)

    with run_process(SERVER, stdin=subprocess.PIPE) as server:
        address = server.wait_for(r"^grpc://\S+", timeout=100)[0]
        numbers = tf.data.Dataset.range(500).apply(  # more than the client asks for beforehand
            tf.data.experimental.service.distribute(processing_mode="parallel_epochs", service=address)
        )
        data = iter(numbers)

        @tf.function
        def step():
            number = tf.constant(-1, tf.int64)
            while number < 499:
                number = next(data)
            return number + queue.dequeue()

        traced = step.get_concrete_function()  # so that the main thread goes into this graph, and into no other before
        server.send_signal(signal.SIGSTOP)
        watching = threading.Thread(target=watch)
        watching.start()
        assert traced().numpy() == 500
        watching.join()
    assert told == ["it waits for data", "it waits for ranks"]
