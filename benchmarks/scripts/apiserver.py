"""The tests' API server in a process of its own, with pods in it, doing what it is told.

    python -m benchmarks.scripts.apiserver FOLDER PODS NODES BYTES [tls]

Writes FOLDER/kubeconfig when it is ready. Orders are lines in the FIFO FOLDER/orders:

    delete NAME          as `kubectl delete pod` does: the pod has 30 s left
    add NAME             a pod that is ready
    down 1, up 1         refuses connections from now on, until then
    change RATE SECONDS  so many changes a second, meanwhile, of which nothing follows, of pods whose name ends with 9

FOLDER/done gets a line for each: ORDER NAME MONO, the moment before the object was written (`change`: after the last).
"""

from __future__ import annotations

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
FOREVER: Final = 1 << 20
"""Events that are kept: nobody here is to be told that they are gone."""


class Told:
    """What was done, and when."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, order: str, name: str, moment: float) -> None:
        self._file.write(f"{order} {name} {moment:.6f}\n")


def obey(server: KubeServer, words: list[str], told: Told, *, nodes: int, size: int) -> None:
    """Do what one line says."""
    order, name = words[:2]
    moment = time.monotonic()
    if order == "delete":
        server.delete("pods", name)
    elif order == "add":
        server.put("pods", pod(name, hash(name) % nodes, size))
    elif order == "change":
        rate, seconds = float(name), float(words[2])
        threading.Thread(target=change, args=(server, rate, seconds, told), daemon=True).start()
        return
    elif order == "down":
        server.refuse()
    elif order == "up":
        server.accept()
    told.note(order, name, moment)


def change(server: KubeServer, rate: float, seconds: float, told: Told) -> None:
    """Touch pods by chance, evenly spread over the time."""
    names = [name for each in server.all("pods") if (name := each["metadata"]["name"]).endswith("9")]
    begun, chance = time.monotonic(), random.Random(1)
    for number in range(int(rate * seconds)):
        ahead = begun + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        server.change("pods", chance.choice(names), {"metadata": {"annotations": {"touched": str(number)}}})
    told.note("change", f"{rate:g}", time.monotonic())


def pod(name: str, node: int, size: int) -> bodies.Body:
    return bodies.large_pod(name, node=f"node-{node}", labels=LABELS, size=size)


def main(folder: Path, pods: int, nodes: int, size: int, *, tls: bool = False) -> None:
    """Serve until killed."""
    orders = os.open(folder / "orders", os.O_RDWR)
    with KubeServer(history=FOREVER, tls=tls, folder=folder if tls else None) as server:
        for number in range(nodes):
            server.put("nodes", bodies.node(f"node-{number}"))
        for number in range(pods):
            server.put("pods", pod(f"p{number}", number % nodes, size))
        told = Told(folder / "done")
        server.kubeconfig(folder / "kubeconfig.new")
        (folder / "kubeconfig.new").rename(folder / "kubeconfig")
        rest = b""
        while True:
            *lines, rest = (rest + os.read(orders, 1 << 16)).split(b"\n")
            for line in lines:
                obey(server, line.decode().split(), told, nodes=nodes, size=size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), tls=sys.argv[5:] == ["tls"])
