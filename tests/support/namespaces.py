"""Network namespaces by name: list, empty and remove them. What ``nethosts`` builds on and the frame cleans with."""

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
    """Run ``ip`` and return what it printed. Raises ``AssertionError`` with its complaint."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def named(prefix: str) -> list[str]:
    """Namespaces, and leftover directories of namespaces under /etc/netns, whose names start with ``prefix``."""
    names: set[str] = set()
    for folder in (RUN, ETC):
        with contextlib.suppress(FileNotFoundError):
            names.update(name for name in os.listdir(folder) if name.startswith(prefix))
    return sorted(names)


def owned() -> list[str]:
    """Namespaces that this very process made."""
    return named(f"{marks.PREFIX}{marks.owner()}-")


def processes(name: str) -> list[int]:
    """Everything that runs in the namespace; nothing if there is no such namespace."""
    if not (RUN / name).exists():
        return []
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def socket_in(name: str) -> socket.socket:
    """A TCP socket of the namespace, for this process to use: it stays there wherever its threads are."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        with (RUN / name).open("rb") as space:
            libc = ctypes.CDLL(None, use_errno=True)
            wrong = libc.setns(space.fileno(), _NETWORK)
        made.append(OSError(ctypes.get_errno(), f"setns {name}") if wrong else socket.socket())

    thread = threading.Thread(target=make, name="hvd-test-namespace")  # that moves, and ends there
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def kill_everything(name: str, *, timeout: float = 60.0) -> None:
    """SIGKILL by number whatever runs in the namespace, until nothing does."""
    deadline = time.monotonic() + timeout
    while (inside := processes(name)) and time.monotonic() < deadline:
        marks.kill(inside, timeout=2.0)


def remove(names: Iterable[str]) -> None:
    """Kill what runs in each namespace and remove it with its /etc/netns directory. Safe to repeat."""
    for name in names:
        kill_everything(name)
        if (RUN / name).exists():
            ip("netns", "del", name)
        shutil.rmtree(ETC / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        ETC.rmdir()  # ours only if it is empty now
