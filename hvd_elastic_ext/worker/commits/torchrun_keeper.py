"""Process that keeps commit memory for the workers of one torchrun agent, and ends with that agent.

torchrun restarts all workers of a machine when one fails or the membership changes; their commits must outlive
them. The first worker starts this file as a separate process (:mod:`hvd_elastic_ext.worker.commits.inherited`). It
makes memory files for each local rank and hands their descriptors to workers that ask over a unix socket in a directory
that only this user may enter. A worker asks with one JSON line, ``{"local_rank": 0}``, and receives ``ok`` and the
descriptors.

When the agent ends for any reason, the keeper removes socket and directory and ends; no later worker gets the memory.
Standard library only, and nothing of this package: an isolated interpreter runs it as a file, so that no setting of the
job affects it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

SOCKET: Final = "keeper"
LOCK: Final = "lock"
PREFIX: Final = "hvd-elastic-keeper"

MAX_RANKS: Final = 4096
SIDES: Final = 2
"""Memory files for the commits of each rank: one is staged on one while the other one holds the last commit. A further
file is for the results of training calls.
"""
_REQUEST_S: Final = 5.0
"""Seconds for a worker to send its request."""
_LOOK_S: Final = 0.5
"""Seconds between two checks whether the agent still runs, if the kernel does not report its end."""


def main(arguments: list[str]) -> int:
    """Serve in the background: returns 0 as soon as workers can ask. ``DIRECTORY AGENT_PID AGENT_STARTED``."""
    directory, pid, started = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    watch = watch_process(pid)
    if start_time(pid) != started:
        sys.stderr.write(f"process {pid} is no longer the torchrun agent\n")
        return 1
    listener = _listen(directory)
    if os.fork():
        return 0
    _detach()
    try:
        serve(listener, pid=pid, started=started, watch=watch)
    finally:
        clear(directory)
    return 0


def serve(listener: socket.socket, *, pid: int, started: int, watch: int | None) -> None:
    """Answer workers until the agent has ended. ``watch``: a descriptor that becomes readable then, if there is one."""
    slots: dict[int, list[int]] = {}
    watched: list[socket.socket | int] = [listener] if watch is None else [listener, watch]
    while start_time(pid) == started:
        ready, _, _ = select.select(watched, [], [], _LOOK_S if watch is None else None)
        if listener in ready:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # a worker may die while it asks
                connection.settimeout(_REQUEST_S)
                _answer(connection, slots)


def _answer(connection: socket.socket, slots: dict[int, list[int]]) -> None:
    if peer_user(connection) != os.geteuid():
        connection.sendall(b"this keeper serves another user")
        return
    try:
        rank = parse_request(connection.recv(256))
    except ValueError as error:
        connection.sendall(str(error).encode())
        return
    if rank not in slots:
        names = [*(f"hvd-elastic-commit-{rank}-{side}" for side in range(SIDES)), f"hvd-elastic-results-{rank}"]
        slots[rank] = [os.memfd_create(name, os.MFD_CLOEXEC) for name in names]
    descriptors = array.array("i", slots[rank])
    connection.sendmsg([b"ok"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


def parse_request(line: bytes) -> int:
    """Read a local rank from a request. Raises ``ValueError``, which says what is wrong."""
    try:
        rank = json.loads(line)["local_rank"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("a request is a JSON object with 'local_rank'") from None
    if not (type(rank) is int and 0 <= rank < MAX_RANKS):
        raise ValueError(f"local_rank must be below {MAX_RANKS}")
    return rank


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end, as the kernel knows it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", raw)
    return int(user)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def watch_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None if the kernel cannot give one."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # the process is gone (start_time shows it), or the kernel is too old, or a sandbox forbids it
        return None


def clear(directory: Path) -> None:
    """Remove the files of a keeper of this user; files of other users, and links, stay."""
    with contextlib.suppress(OSError):
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(folder).st_uid != os.geteuid():
                return
            for name in (SOCKET, LOCK):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)
        directory.rmdir()


@contextlib.contextmanager
def address(directory: Path) -> Iterator[str]:
    """Return the socket's path. It is short enough for a socket, even if the directory's path is long."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def _listen(directory: Path) -> socket.socket:
    (directory / SOCKET).unlink(missing_ok=True)  # left by a killed keeper; the starting process holds the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o077)
    try:
        with address(directory) as path:
            listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def _detach() -> None:
    """Become a process that gets no signals of the workers and that has no descriptors of theirs open."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
