"""Ranks on this machine that leave a world of Horovod's and form another one, without a launcher or an agent.

python -m benchmarks.scripts.bare_ranks RANKS RESULT

Every rank knows its place. One loop keeps the addresses that Gloo exchanges, and answers a question as soon as it has
the answer. RESULT gets the seconds from the first ``hvd.shutdown()`` to the last rank's first reduction in the second
world. No change of a world of so many ranks can take less time.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Final

from hvd_elastic_ext.agent.ports import Reader, Request, response

WORLDS: Final = 2
CALM_S: Final = 1.0


class Store:
    """The keys of one world, at a port of its own."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._values: dict[str, bytes] = {}
        self._asking: dict[str, list[socket.socket]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        reader = Reader()

        def read() -> None:
            request = reader.feed(connection.recv(65536))
            if request is not None:
                self._selector.unregister(connection)
                self._take(request, connection)

        self._selector.register(connection, selectors.EVENT_READ, read)

    def _take(self, request: Request, connection: socket.socket) -> None:
        if request.method == "GET" and request.path not in self._values:
            self._asking.setdefault(request.path, []).append(connection)
            return
        if request.method == "PUT":
            self._values[request.path] = request.body
            for waiting in self._asking.pop(request.path, ()):
                answer(waiting, request.body)
        answer(connection, self._values.get(request.path, b"") if request.method == "GET" else b"")


def answer(connection: socket.socket, body: bytes) -> None:
    with connection:
        connection.sendall(response(200, body))


def train(rank: int, ranks: int, ports: list[int], report: int) -> None:
    """Run one rank, in a process of its own."""
    place = {"RANK": rank, "SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_SIZE": ranks, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    os.environ.update({f"HOROVOD_{name}": str(number) for name, number in place.items()})
    os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_GLOO_IFACE="lo")
    os.environ.update(HOROVOD_HOSTNAME="localhost", HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1")
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    begun = 0.0
    for port in ports:
        begun = time.monotonic()
        hvd.shutdown()
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
        hvd.init()
        hvd.allreduce(torch.ones(4), name="first")
        ended = time.monotonic()
        time.sleep(CALM_S)
        hvd.allreduce(torch.ones(4), name="last")
    os.write(report, f"{begun} {ended}\n".encode())


def main(ranks: int, result: Path) -> None:
    """Start the ranks, serve their stores, and write the time that the second world took."""
    selector = selectors.DefaultSelector()
    ports = [Store(selector).port for _ in range(WORLDS)]
    reading, writing = os.pipe()
    import horovod.torch  # noqa: F401  # imported once, for all ranks

    for rank in range(ranks):
        if os.fork() == 0:
            train(rank, ranks, ports, writing)
            os._exit(0)
    os.close(writing)
    said = bytearray()

    def hear() -> None:
        more = os.read(reading, 4096)
        said.extend(more)
        if not more and said.count(b"\n") < ranks:
            sys.exit("a rank has failed")

    selector.register(reading, selectors.EVENT_READ, hear)
    while said.count(b"\n") < ranks:
        for key, _ in selector.select():
            key.data()
    times = [tuple(map(float, line.split())) for line in said.decode().splitlines()]
    result.write_text(str(max(ended for _, ended in times) - min(begun for begun, _ in times)))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
