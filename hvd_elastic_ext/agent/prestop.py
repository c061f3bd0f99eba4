# ruff: noqa: PTH105, PTH108, PTH118, PTH123, PTH208 - agents load no pathlib
"""Notifies this container's agents that it is about to end, and waits for their ends: a worker pod's ``preStop``.

::

    python -I -m hvd_elastic_ext.agent.prestop --within 25

Process 1 of a worker pod is sshd. When the pod ends, sshd receives SIGTERM and ends at
once. This kills all other processes, also agents that were started over ssh. So this
program runs before. It writes the reason and the deadline into each agent's notice
file and sends SIGTERM to the agent. The agent reads the file, notifies its launcher,
and ends when its processes have ended.

It signals every agent in ``/proc``. So run it only in a container, which has only its own processes.

Exit code 0 when no agent is left, 1 if the time ends before that.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from hvd_elastic_ext.agent.notices.files import NOTICE
from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.commands import is_agent
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import process_tree

WITHIN_S = 25.0
"""Default of ``--within`` in seconds: a little less than the 30 s that a pod has by default, with this hook."""

REASON = "its pod is about to end"

PROC = "/proc"


def main(argv: Sequence[str] | None = None) -> int:
    """Notify this host's agents and wait for their ends. Return 1 if a notified agent still runs, else 0."""
    parser = argparse.ArgumentParser(
        prog="hvd_elastic_ext.agent.prestop", description="Let this host's agents leave.", allow_abbrev=False
    )
    parser.add_argument(
        "--within", type=durations.time, default=WITHIN_S, metavar=durations.METAVAR, help="longest wait (default: 25)"
    )
    parser.add_argument("--reason", default=REASON, metavar="TEXT", help="why (default: %(default)r)")
    options = parser.parse_args(argv)
    within_s: float = options.within
    with contextlib.ExitStack() as held:
        notified = dict(_notify_agents(held, to_text({"reason": options.reason, "deadline": time.time() + within_s})))
        left = _still_running(notified, time.monotonic() + within_s)
    if left:
        sys.stderr.write(f"prestop: after {within_s:g} s agents still run: {', '.join(map(str, left))}\n")
    return 1 if left else 0


def agents(commands: Mapping[int, tuple[int, Sequence[str]]]) -> list[int]:
    """Return the agents among ``processes`` (number: (parent's number, words)), without forks of agents. Pure."""
    alike = {pid for pid, (_, words) in commands.items() if is_agent(words)}
    return sorted(pid for pid in alike if commands[pid][0] not in alike)


def _notify_agents(held: contextlib.ExitStack, notice: str) -> Iterator[tuple[int, int]]:
    """Notify each agent; yield its descriptor and number. The command line is read again after the descriptor is open,
    because another process may have the number now."""
    for pid in agents(_processes()):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            held.callback(os.close, descriptor)
            if not is_agent(_words(pid)):
                continue
            for path in notice_files(pid):
                held.enter_context(_written(path, notice))
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            except PermissionError:
                sys.stderr.write(f"prestop: agent {pid} belongs to another user and is not signalled\n")
                continue
            yield descriptor, pid


def notice_files(pid: int) -> list[str]:
    """The notice files of an agent, by its open descriptors."""
    return sorted(path for path in process_tree.open_files(pid) if path.endswith(NOTICE))


@contextlib.contextmanager
def _written(path: str, text: str) -> Iterator[None]:
    """Give a file with the content. It exists as long as the context lasts, and is complete from the start."""
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except OSError as error:
        sys.stderr.write(
            f"prestop: {path} cannot be written ({error.strerror}): the agent gets no reason and no deadline\n"
        )
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _still_running(notified: Mapping[int, int], deadline: float) -> list[int]:
    """Wait for their ends; return the numbers of those that still run at the deadline."""
    poll, waiting = select.poll(), dict(notified)
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting and (rest := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(rest * 1000):
            poll.unregister(descriptor)
            del waiting[descriptor]
    return sorted(waiting.values())


def _processes() -> dict[int, tuple[int, list[str]]]:
    numbers = (int(name) for name in os.listdir(PROC) if name.isdigit())
    return {pid: (_parent(pid), words) for pid in numbers if (words := _words(pid))}


def _words(pid: int) -> list[str]:
    return _read(pid, "cmdline").decode("utf-8", "replace").split("\0")[:-1]


def _parent(pid: int) -> int:
    try:
        # The name before it stands in brackets and may contain anything, also brackets.
        return int(_read(pid, "stat").rpartition(b")")[2].split()[1])
    except IndexError:
        return 0


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"{PROC}/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # the process has ended
        return b""


if __name__ == "__main__":
    sys.exit(main())
