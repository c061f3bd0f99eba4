"""The tests' API server in a process of its own, with pods. Orders control it.

    python -m benchmarks.scripts.api_server FOLDER PODS NODES BYTES [tls]

It writes FOLDER/kubeconfig when it is ready. Orders are lines in the FIFO FOLDER/orders:

    delete NAME          as `kubectl delete pod`: the pod has 30 s left
    add NAME             add a ready pod
    down 1, up 1         refuse connections; accept them again
    appears NAME         note when the MPIJob NAME exists, in the background
    job NAME PODS        add a PyTorchJob and its pods, each of which writes a line a second from now on
    change RATE SECONDS  make so many harmless changes a second, in the background, to pods with names that end with 9

FOLDER/done gets a line for each: ORDER NAME MONO, the moment before the object was written (`change`: the end).
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tests.support.kube import bodies
from tests.support.kube.server import KubeServer

SELECTOR: Final = "app=trainer"
LABELS: Final = {"app": "trainer"}
NAMESPACE: Final = "default"
LOOK_S: Final = 0.005
FOREVER: Final = 1 << 20
"""Events in the history: more than there are, so that none is lost."""


class DoneLog:
    """The file of the orders that were carried out."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, order: str, name: str, moment: float) -> None:
        self._file.write(f"{order} {name} {moment:.6f}\n")


def handle(server: KubeServer, words: list[str], done: DoneLog, *, nodes: int, size: int) -> None:
    """Carry out one order."""
    order, name = words[:2]
    moment = time.monotonic()
    if order == "delete":
        server.delete("pods", name)
    elif order == "add":
        server.put("pods", pod(name, hash(name) % nodes, size))
    elif order == "change":
        rate, seconds = float(name), float(words[2])
        threading.Thread(target=change, args=(server, rate, seconds, done), daemon=True).start()
        return
    elif order == "appears":
        threading.Thread(target=appears, args=(server, name, done), daemon=True).start()
        return
    elif order == "job":
        run_job(server, name, int(words[2]))
    elif order == "down":
        server.refuse()
    elif order == "up":
        server.accept()
    done.note(order, name, moment)


def appears(server: KubeServer, name: str, done: DoneLog) -> None:
    """Note when an MPIJob exists."""
    while not any(each["metadata"]["name"] == name for each in server.all("mpijobs")):
        time.sleep(LOOK_S)
    done.note("appears", name, time.monotonic())


def run_job(server: KubeServer, name: str, pods: int) -> None:
    """Add a PyTorchJob whose workers write a line a second."""
    replicas = {"Worker": {"replicas": pods, "template": {"spec": {"containers": [{"name": "pytorch"}]}}}}
    server.put("pytorchjobs", {"metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": replicas}})
    workers = [f"{name}-worker-{number}" for number in range(pods)]
    for each in workers:
        server.put("pods", bodies.pod(each, labels={"hvd-elastic-job": name}))
    threading.Thread(target=ticks, args=(server, workers), daemon=True).start()


def ticks(server: KubeServer, workers: list[str]) -> None:
    """Write the lines, spread evenly over each second as those of real pods."""
    for number in itertools.count():
        began = time.monotonic()
        for place, each in enumerate(workers):
            time.sleep(max(0.0, began + place / len(workers) - time.monotonic()))
            server.logs.write(each, f"tick {number}")


def change(server: KubeServer, rate: float, seconds: float, done: DoneLog) -> None:
    """Change random pods at an even rate."""
    names = [name for each in server.all("pods") if (name := each["metadata"]["name"]).endswith("9")]
    begun, chance = time.monotonic(), random.Random(1)
    for number in range(int(rate * seconds)):
        ahead = begun + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        server.change("pods", chance.choice(names), {"metadata": {"annotations": {"touched": str(number)}}})
    done.note("change", f"{rate:g}", time.monotonic())


def pod(name: str, node: int, size: int) -> bodies.Body:
    return bodies.large_pod(name, node=f"node-{node}", labels=LABELS, size=size)


def main(folder: Path, pods: int, nodes: int, size: int, *, tls: bool = False) -> None:
    """Serve until this process is killed."""
    orders = os.open(folder / "orders", os.O_RDWR)
    with KubeServer(history=FOREVER, tls=tls, folder=folder if tls else None) as server:
        for number in range(nodes):
            server.put("nodes", bodies.node(f"node-{number}"))
        for number in range(pods):
            server.put("pods", pod(f"p{number}", number % nodes, size))
        done = DoneLog(folder / "done")
        server.kubeconfig(folder / "kubeconfig.new")
        (folder / "kubeconfig.new").rename(folder / "kubeconfig")
        rest = b""
        while True:
            *lines, rest = (rest + os.read(orders, 1 << 16)).split(b"\n")
            for line in lines:
                handle(server, line.decode().split(), done, nodes=nodes, size=size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), tls=sys.argv[5:] == ["tls"])
