"""``waits_for_data.py ADDRESS PID``: a graph that waits for data of tf.data's service at ADDRESS, which is process PID
and is stopped meanwhile; then for a queue, which stands for a collective. Prints a line when each of the two was seen.
"""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import tensorflow as tf

from hvd_elastic_ext.worker.comms.tensorflow_waits import ALWAYS, GRAPH, TensorFlowWaits

ADDRESS, PID = sys.argv[1], int(sys.argv[2])
seconds = itertools.count()
waits = TensorFlowWaits(lambda: (), lambda: False, now=lambda: float(next(seconds)))
queue = tf.queue.FIFOQueue(1, [tf.int64])


def in_a_graph() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code.co_filename.endswith(GRAPH)


def waits_for_data() -> bool:
    return in_a_graph() and not any(waits.look() for _ in range(10)) and in_a_graph()


def seen(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"not seen: {what}")
        time.sleep(0.01)
    print(what, flush=True)


def watch() -> None:
    try:
        try:
            seen("it waits for data", waits_for_data)
        finally:
            os.kill(PID, signal.SIGCONT)
        seen("it waits for ranks", waits.look)
    finally:
        queue.enqueue(1)


def before() -> None:
    """Threads that poll now always do."""
    for _ in range(ALWAYS):
        waits.look()


looks = threading.Thread(target=before)
looks.start()
looks.join()
numbers = tf.data.Dataset.range(500).apply(  # more than the client asks for beforehand
    tf.data.experimental.service.distribute(processing_mode="parallel_epochs", service=ADDRESS)
)
data = iter(numbers)


@tf.function
def step() -> tf.Tensor:
    number = tf.constant(-1, tf.int64)
    while number < 499:
        number = next(data)
    return number + queue.dequeue()


traced = step.get_concrete_function()  # so that the main thread goes into this graph, and into no other before
os.kill(PID, signal.SIGSTOP)
watching = threading.Thread(target=watch)
watching.start()
print("the end:", traced().numpy(), flush=True)
watching.join()
