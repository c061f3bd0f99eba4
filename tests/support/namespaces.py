"""Lists, empties and removes network namespaces by name, for ``nethosts`` and the cleanup after tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from tests.support import marks

RUN = Path("/run/netns")
ETC = Path("/etc/netns")

_NETWORK = 0x40000000  # CLONE_NEWNET


def ip(*arguments: str) -> str:
    """Run ``ip`` and return its output. Raises ``AssertionError`` with its error."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def named(prefix: str) -> list[str]:
    """Return namespaces, and leftover directories of namespaces in /etc/netns, with names that start with
    ``prefix``."""
    names: set[str] = set()
    for folder in (RUN, ETC):
        with contextlib.suppress(FileNotFoundError):
            names.update(name for name in os.listdir(folder) if name.startswith(prefix))
    return sorted(names)


def owned() -> list[str]:
    """Return the namespaces that this process has made."""
    return named(f"{marks.PREFIX}{marks.owner()}-")


def processes(name: str) -> list[int]:
    """Return the processes in the namespace; none if it does not exist."""
    if not (RUN / name).exists():
        return []
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def socket_in(name: str) -> socket.socket:
    """Return a TCP socket in the namespace. This process can use it from any thread."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        with (RUN / name).open("rb") as space:
            libc = ctypes.CDLL(None, use_errno=True)
            wrong = libc.setns(space.fileno(), _NETWORK)
        made.append(OSError(ctypes.get_errno(), f"setns {name}") if wrong else socket.socket())

    thread = threading.Thread(target=make, name="hvd-test-namespace")  # only this thread moves there, and it ends
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def kill_everything(name: str, *, timeout: float = 60.0) -> None:
    """Kill the processes in the namespace with SIGKILL, until there are none."""
    deadline = time.monotonic() + timeout
    while (inside := processes(name)) and time.monotonic() < deadline:
        marks.kill(inside, timeout=2.0)


def remove(names: Iterable[str]) -> None:
    """Kill the processes of each namespace, and remove it and its /etc/netns directory. May be repeated."""
    for name in names:
        kill_everything(name)
        if (RUN / name).exists():
            ip("netns", "del", name)
        shutil.rmtree(ETC / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        ETC.rmdir()  # only if it is empty
