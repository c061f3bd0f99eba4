"""A replica group of torchft, of one process, on each host of a hosts file, and their lighthouse.

    python -m benchmarks.scripts.torchft_hosts HOSTS_FILE STAMPS SECONDS

Runs with the Python that has torchft. The loop is that of torchft's ``train_ddp.py``, with the model and the pause of
``ddp_trainee.py``. A group that ends is not started again. A stamp is a step that torchft has committed.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

LOOK_S = 0.05
PAUSE_S = 0.02
HOSTS, STAMPS, LIMIT_S = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])


def train(name: str, number: int) -> None:
    """One group: a Manager, DDP, and steps."""
    torch: Any = importlib.import_module("torch")
    torchft: Any = importlib.import_module("torchft")
    ddp: Any = importlib.import_module("torchft.ddp")
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    plain = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"{name}_{number}_",
    )
    training, optimizer = ddp.DistributedDataParallel(manager, model), torchft.Optimizer(manager, plain)
    stamps = os.open(STAMPS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        optimizer.zero_grad()
        training(torch.ones(1, 4)).sum().backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            who = f"{os.getpid()} {number} {manager.num_participants()} {manager.current_step()} {name}"
            os.write(stamps, f"{time.monotonic():.6f} {who}\n".encode())
        time.sleep(PAUSE_S)


def answers(port: int) -> bool:
    """Whether somebody listens at this port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    distributed: Any = importlib.import_module("torch.distributed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--min_replicas", "1"]
    lighthouse += ["--quorum_tick_ms", "100", "--join_timeout_ms", "10000", "--bind", f"[::]:{port}"]
    kept: list[Any] = [subprocess.Popen(lighthouse)]
    begun: dict[str, int] = {}
    while not answers(port):
        time.sleep(LOOK_S)
    while True:
        for name in [line.partition(":")[0] for line in HOSTS.read_text().split()]:
            if name in begun:
                continue
            begun[name] = len(begun)
            store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            group = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA_GROUP_ID": str(begun[name])}
            place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
            env = {**os.environ, **group, **place, "GLOO_SOCKET_IFNAME": "lo", "BENCH_GROUP": f"{name} {begun[name]}"}
            kept += [store, subprocess.Popen([sys.executable, "-m", __spec__.name, *sys.argv[1:]], env=env)]
        time.sleep(LOOK_S)


if __name__ == "__main__":
    if "BENCH_GROUP" in os.environ:
        host, _, count = os.environ["BENCH_GROUP"].partition(" ")
        train(host, int(count))
    else:
        main()
