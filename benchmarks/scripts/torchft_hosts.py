"""A replica group of torchft, of one process, on each host of a hosts file, and their lighthouse.

    python -m benchmarks.scripts.torchft_hosts HOSTS_FILE MODULE ARGUMENT…

Runs with the Python that has torchft. Each group runs the module, which takes what it trains with from
:func:`of_this_group`. A group that ends is not started again.
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
from typing import Any, NamedTuple

LOOK_S = 0.05


class Group(NamedTuple):
    """What a process of torchft trains with."""

    host: str
    number: int
    manager: Any
    ddp: Any
    optimizer: Any


def of_this_group(model: Any, plain: Any) -> Group:
    """Make Manager, DDP and optimizer, as torchft's ``train_ddp.py`` does."""
    torchft: Any = importlib.import_module("torchft")
    ddp: Any = importlib.import_module("torchft.ddp")
    host, _, number = os.environ["BENCH_GROUP"].partition(" ")

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"{host}_{number}_",
    )
    training = ddp.DistributedDataParallel(manager, model)
    return Group(host, int(number), manager, training, torchft.Optimizer(manager, plain))


def answers(port: int) -> bool:
    """Whether somebody listens at this port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    hosts, command = Path(sys.argv[1]), [sys.executable, "-m", *sys.argv[2:]]
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
        for name in [line.partition(":")[0] for line in hosts.read_text().split()]:
            if name in begun:
                continue
            begun[name] = len(begun)
            store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            group = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA_GROUP_ID": str(begun[name])}
            place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
            env = {**os.environ, **group, **place, "GLOO_SOCKET_IFNAME": "lo", "BENCH_GROUP": f"{name} {begun[name]}"}
            kept += [store, subprocess.Popen(command, env=env)]
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
