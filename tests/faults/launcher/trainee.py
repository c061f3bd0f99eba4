"""An elastic job whose weights show which steps were done: after step N they are the same in any sequence of worlds.

Every rank prints each step, with a fingerprint of the shared state. ``SLOW_HOST`` starts ``BOOT_S`` seconds later.
``LAG_HOST`` takes ``LAG_S`` seconds longer for each step; with ``LAG_ONCE``, for one step only, and creates that file.
``USER_PORT``: the script itself connects from ``h1`` to an echo server at this port of ``h2``. Under
``--engine torch`` DDP averages the gradients. ``TRAINS``: "tensorflow" to train with that.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

HOST = os.environ["HOROVOD_HOSTNAME"]
if os.environ.get("SLOW_HOST") == HOST:
    print("booting", flush=True)
    time.sleep(float(os.environ["BOOT_S"]))

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
PAUSE_S = float(os.environ.get("PAUSE_S", "0.05"))
LAG_S = float(os.environ.get("LAG_S", "0")) if os.environ.get("LAG_HOST") == HOST else 0.0
LAG_ONCE = os.environ.get("LAG_ONCE")
USER_PORT = os.environ.get("USER_PORT") if HOST == "h1" else None


def connect() -> list[socket.socket]:
    """Connect to h2, without Horovod's knowledge."""
    return [socket.create_connection(("h2", int(USER_PORT)))] if USER_PORT else []


def lag() -> None:
    """Be slow at each step, or once. This is the process's own work, for which the others wait."""
    if LAG_ONCE is None:
        time.sleep(LAG_S)
    elif LAG_S and state.count == 20 and not os.path.exists(LAG_ONCE):
        os.close(os.open(LAG_ONCE, os.O_CREAT | os.O_WRONLY))
        time.sleep(LAG_S)


def user_connection() -> str:
    """Return the state of the script's own connections: "quiet" if open without input, otherwise the input or the
    error."""
    said = []
    for connection in users:
        try:
            said.append(connection.recv(100, socket.MSG_DONTWAIT).decode() or "closed")
        except BlockingIOError:
            said.append("quiet")
        except OSError as error:
            said.append(error.strerror or "error")
    return ",".join(said) or "none"


Step = Callable[[float], object]
"""One step with a batch of this number. The mean of small whole numbers is exact for any number of ranks."""


def with_torch() -> tuple[Any, Any, Callable[[], Step]]:
    """Join the world. Return our module, the State, and what gives the step of each world."""
    import torch
    import torch.distributed as dist

    import hvd_elastic_ext.torch as elastic

    if not (in_torch := os.environ.get("HVD_ELASTIC_COLLECTIVES") == "torch"):
        import horovod.torch as hvd

    def averaged(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Add, then divide: exact for any number of ranks. DDP divides first."""
        total = dist.all_reduce(bucket.buffer(), async_op=True)
        assert total is not None
        return total.get_future().then(lambda done: done.value()[0].div_(dist.get_world_size()))

    elastic.init() if in_torch else hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if not in_torch:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def in_a_world() -> Step:
        net: torch.nn.Module = model
        if in_torch:
            net = ddp = torch.nn.parallel.DistributedDataParallel(model)
            ddp.register_comm_hook(None, averaged)

        def step(number: float) -> None:
            optimizer.zero_grad()
            net(torch.full((1, 4), number)).sum().backward()
            optimizer.step()

        return step

    return elastic, elastic.TorchState(model=model, optimizer=optimizer, count=0), in_a_world


def with_tensorflow() -> tuple[Any, Any, Callable[[], Step]]:
    """The same. A step is a graph."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    import hvd_elastic_ext.tensorflow as elastic

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    dense = tf.keras.layers.Dense(4, use_bias=False, kernel_initializer="zeros")
    model, optimizer = tf.keras.Sequential([tf.keras.Input((4,)), dense]), tf.keras.optimizers.SGD(1.0)

    @tf.function
    def graph(number: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.fill((1, 4), number)))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    state = elastic.TensorFlowKerasState(model, optimizer, count=0)
    return elastic, state, lambda: lambda number: graph(tf.constant(number))


users = connect()
elastic, state, in_a_world = (with_tensorflow if os.environ.get("TRAINS") == "tensorflow" else with_torch)()


@elastic.run
def train(state: Any) -> None:
    if len(users) == 1:
        users.extend(connect())
    step = in_a_world()
    while state.count < STEPS:
        lag()
        step(float(state.count % 3 + 1))
        state.count += 1
        place = f"rank {elastic.rank()} size {elastic.size()} host {HOST}"
        times = f"mono {time.monotonic():.3f} wall {time.time():.3f}"
        print(f"step {state.count} {place} {times} print {state.fingerprint()} user {user_connection()}", flush=True)
        if state.count % 5 == 0:
            state.commit()
        else:
            state.check_host_updates()
        if elastic.size() == 2 and os.environ.get("SAY") and os.path.exists(os.environ["SAY"]):
            for connection in users:
                connection.sendall(b"still open")
            os.environ.pop("SAY")
        time.sleep(PAUSE_S)


train(state)
