"""Parent of one training process: starts it, outlives it by a moment, leaves nothing behind.

The launcher starts an agent on the worker's host (directly, or over ssh), writes
one JSON line to its standard input and keeps that pipe open::

    {"argv": ["python", "train.py"], "env": {"HOROVOD_RANK": "0", …}, "cwd": "/job"}

so no setting, and no secret among them, ever stands on a command line. When the
pipe ends, because the launcher closed it, died, or lost the connection, the
agent ends the training process and everything that it started: ``SIGTERM``
first, ``SIGKILL`` after the grace.

It announces the process on its standard output, in one line of its own among
the process's::

    hvd-elastic-agent: started 4711

Its exit code is the training process's own, or 128 + N for one ended by signal N.
Standard library only: it has to start in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

GRACE_S: Final = 5.0
"""Seconds between asking a process tree to end and killing it, unless the order says otherwise."""

REFUSED: Final = 125
"""Exit code of an agent that could not start its process; the reason is on standard error."""

ANNOUNCEMENT: Final = "hvd-elastic-agent: started"
"""What the line starts with that tells the launcher the training process's pid."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: ``env`` is added to the agent's own; without ``cwd`` it runs where the agent does."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    grace_s: float = GRACE_S


def parse_order(line: bytes) -> Order:
    """Read the launcher's line. Raises ``ValueError`` saying what is wrong with it."""
    entry = json.loads(line)
    if not isinstance(entry, dict) or not isinstance(entry.get("argv"), list) or not entry["argv"]:
        raise ValueError("an order is a JSON object with a non-empty list 'argv'")
    return Order(
        argv=tuple(map(str, entry["argv"])),
        env={str(k): str(v) for k, v in dict(entry.get("env") or {}).items()},
        cwd=entry.get("cwd"),
        grace_s=float(entry.get("grace_s", GRACE_S)),
    )


def main() -> int:
    """Serve one order and end with its exit code."""
    wake = _signals_as_bytes()
    try:
        order = parse_order(sys.stdin.buffer.readline())
        child = _start(order)
    except (ValueError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"hvd-elastic agent: cannot start the training process: {error}\n")
        return REFUSED
    _announce(child.pid)
    code = _attend(child, wake, order)
    _end_tree(order.grace_s)
    return code if code >= 0 else 128 - code


def _announce(pid: int) -> None:
    line = f"{ANNOUNCEMENT} {pid}\n".encode()
    # The child writes to the same pipe already: a line in one call does not mix with its lines. A launcher
    # that is gone is noticed by the end of standard input.
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), line)


def _signals_as_bytes() -> int:
    """Turn signals into bytes on a descriptor, so that one select waits for everything."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def _start(order: Order) -> subprocess.Popen[bytes]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    # Orphans of the training process become ours, so that we can end them.
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    agent = os.getpid()

    def follow_the_agent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != agent:  # died before the line above could take effect
            os._exit(REFUSED)

    return subprocess.Popen(
        order.argv,
        env={**os.environ, **order.env},
        cwd=order.cwd,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=follow_the_agent,
    )


def _attend(child: subprocess.Popen[bytes], wake: int, order: Order) -> int:
    """Wait for the child's end; ask it to end when told to stop or when standard input ends."""
    deadline: float | None = None
    watched = [sys.stdin.fileno(), wake]
    while (code := child.poll()) is None:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout)
        told = wake in ready and any(number in _STOP_SIGNALS for number in os.read(wake, 4096))
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
            watched.remove(sys.stdin.fileno())
            told = True
        if told and deadline is None:
            deadline = time.monotonic() + order.grace_s
            _signal_group(child.pid, signal.SIGTERM)
        elif deadline is not None and time.monotonic() >= deadline:
            _signal_group(child.pid, signal.SIGKILL)
            return child.wait()
    return code


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


def _end_tree(grace_s: float) -> None:
    """End whatever the training process left behind: every descendant is ours to reap."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        left = list(_descendants(os.getpid()))
        for pid in left:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        if _reaped_all(time.monotonic() + patience):
            return


def _reaped_all(deadline: float) -> bool:
    """Reap children until none is left (True) or the deadline has passed (False)."""
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            time.sleep(0.01)
    return False


def _descendants(root: int) -> Iterator[int]:
    for child in _children(root):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:  # noqa: PTH123
            return [int(word) for word in children.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


if __name__ == "__main__":
    sys.exit(main())
