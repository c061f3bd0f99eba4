"""A training process with all kinds of descendants that are hard to end. It writes their pids to FILE, then waits.

With "alone" after FILE it makes no shared memory. If a process is killed after it has made that and before Python's
resource tracker knows of it, the memory stays, whatever the parent does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

STUBBORN = "trap '' TERM INT HUP; while :; do sleep 1; done"


def stubborn_child() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    return pid


def child_in_a_session_of_its_own() -> int:
    return subprocess.Popen(["sh", "-c", STUBBORN], start_new_session=True).pid


def child_of_a_thread() -> int:
    """Start a child that the kernel lists as a child of the thread, not of the process."""
    pids: list[int] = []

    def start() -> None:
        pids.append(subprocess.Popen(["sh", "-c", STUBBORN]).pid)
        time.sleep(1000)

    threading.Thread(target=start, daemon=True).start()
    while not pids:
        time.sleep(0.01)
    return pids[0]


def daemon_without_environment() -> int:
    """Start a daemon in another session and group, with another parent and without our environment."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            for stream in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            os.execve("/bin/sh", ["sh", "-c", STUBBORN], {"PATH": os.environ["PATH"]})
        os._exit(0)
    pid = int(os.read(reader, 20))
    os.wait()
    return pid


def main(file: Path, *, sharing: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptors = [int(word) for word in os.environ["HVD_ELASTIC_COMMIT_FDS"].split(",")]
    for descriptor in descriptors:
        os.write(descriptor, b"a commit")
    pids = [os.getpid(), stubborn_child(), daemon_without_environment(), child_in_a_session_of_its_own()]
    pids.append(child_of_a_thread())
    name = ""
    if sharing:
        shared = shared_memory.SharedMemory(create=True, size=4096)
        name = shared.name
        pids.append(resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    inodes = [(os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino) for descriptor in descriptors]
    told = {"pids": pids, "shared": name, "memfds": inodes}
    file.with_suffix(".new").write_text(json.dumps(told))
    file.with_suffix(".new").replace(file)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sharing="alone" not in sys.argv[2:])
