"""A torchrun on each host of a hosts file, restarted when it ends. This process has the store of their rendezvous.

    python -m benchmarks.scripts.torchrun_hosts HOSTS_FILE MOST SCRIPT…

A host that leaves the list gets notice: SIGTERM goes to its training process, which saves, and then to its torchrun.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

LOOK_S = 0.05
SAVES_S = 5.0
TUNED = "is_host=0,last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=3"
"""These values help torchrun: by default it waits 30 s for further hosts, and 15 s for a silent one."""
UNSHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Otherwise, with torch 2.13, an agent keeps the store of its first world, and all hang once another host has rank
0."""


class Node:
    """A host with its torchrun."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._command = command
        self._env = {**os.environ, **UNSHARED, "HOROVOD_HOSTNAME": name}
        self._leaves_by: float | None = None
        self.go()

    def go(self) -> None:
        self._run = subprocess.Popen(self._command, env=self._env)

    def look(self) -> None:
        """Restart it if it has ended."""
        if self._run.poll() is not None:
            self.go()

    def leave(self) -> bool:
        """Continue to leave. Return True when it has left."""
        if self._run.poll() is not None:
            return True
        below = _below(self._run.pid)
        if self._leaves_by is None:
            self._leaves_by = time.monotonic() + SAVES_S
            _signal(below)
        elif not below or time.monotonic() > self._leaves_by:
            self._run.terminate()
        return False


def _below(pid: int) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _signal(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def main() -> None:
    hosts, most, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    distributed: Any = importlib.import_module("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{most}", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-id", "spot"]
    command += ["--rdzv-conf", TUNED, "--local-addr", "127.0.0.1"]
    command += ["--max-restarts", "1000000", "--monitor-interval", "0.1", *script]
    nodes: dict[str, Node] = {}
    while True:
        listed = [line.partition(":")[0] for line in hosts.read_text().split()]
        for name in listed:
            if name not in nodes:
                nodes[name] = Node(name, command)
            nodes[name].look()
        for name in [name for name in nodes if name not in listed]:
            if nodes[name].leave():
                del nodes[name]
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
