"""The process between the agent and one training process. It owns the whole process tree, and ends it.

It is a fork of the agent. Orders come through the pipe ``down``, one JSON object
for each line; reports go through the pipe ``up``. When ``down`` ends, the agent
is dead, and the supervisor kills everything at once: no agent is left to wait for
a graceful end, and another process may soon start in the slot.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from hvd_elastic_ext.agent.descriptors import CHUNK, Lines, close_all_but, redirect_to_null, signals_as_bytes
from hvd_elastic_ext.agent.orders import Start
from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import COMMITS, LINK, RENDEZVOUS_PORT
from hvd_elastic_ext.io import core_dumps, process_tree

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ORPHANED: Final = 125
"""Exit code of a training process if its supervisor is gone before it begins."""


class Inheritance(NamedTuple):
    """What a training process inherits. All are descriptors, except the port."""

    commits: tuple[int, ...] = ()
    """Its commit memory."""
    link: int | None = None
    proxy: int | None = None
    """The port of its rendezvous proxy."""
    stdin: int | None = None
    past: int | None = None
    """The memory for results of training calls."""


class SupervisorPipes(NamedTuple):
    """Descriptors of a supervisor."""

    down: int
    """The pipe with the agent's orders."""
    up: int
    """The pipe with its reports."""
    stdout: int
    """Where the training process writes, as to ``stderr``."""
    stderr: int


def supervise(order: Start, inheritance: Inheritance, pipes: SupervisorPipes) -> None:
    """Supervise one training process; return when no process of it is left."""
    stdin = () if inheritance.stdin is None else (inheritance.stdin,)
    close_all_but((*pipes, *_descriptors(inheritance), *stdin))
    wake = signals_as_bytes((*STOP_SIGNALS, signal.SIGCHLD))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()  # a signal to the agent's whole group must not kill the supervisor, which cleans up after the agent
    supervisor = Supervisor(pipes, wake=wake, grace_s=order.grace_s)
    left = supervisor.wait_for_end() if supervisor.start(order, inheritance) else []
    supervisor.tell(left=left)


def report_defect(up: int, error: BaseException) -> None:
    """Report an error of the supervisor itself."""
    with contextlib.suppress(OSError):
        os.write(up, to_text({"defect": f"{type(error).__name__}: {error}"}).encode() + b"\n")


def why_not_started(error: Exception, program: str) -> tuple[str, str]:
    """Return why the training process cannot be started, and a line to print if this host does not have its program."""
    absent = isinstance(error, FileNotFoundError) and error.filename == program and not os.path.lexists(program)
    if not absent:
        return str(error), ""
    reason = f"{program!r} is not on this host" if os.sep in program else f"{program!r} is not on the PATH of this host"
    remedy = "give the full path that it has on each host"
    if program.rpartition(os.sep)[2].startswith("python"):
        remedy += f", or the script alone, as in `hvd-elastic run train.py`, which {sys.executable} then runs"
    return reason, remedy


class Supervisor:
    """See the module's docstring."""

    def __init__(self, pipes: SupervisorPipes, *, wake: int, grace_s: float) -> None:
        self._grace_s = grace_s
        self._pipes = pipes
        self._wake = wake
        self._orders = Lines(CHUNK)
        self._process: subprocess.Popen[bytes]
        self._deadline: float | None = None
        self._asked: set[int] | None = None
        self._asked_all = False
        self._given_up = False

    def tell(self, **news: object) -> None:
        """Send ``news`` to the agent; without effect if the agent is gone."""
        try:
            os.write(self._pipes.up, to_text(news).encode() + b"\n")
        except BrokenPipeError:
            return

    def start(self, order: Start, inheritance: Inheritance) -> bool:
        """Start the training process. Return False, and report why, if that fails."""
        try:
            process_tree.become_subreaper()
            process = self._popen(order, inheritance)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reason, remedy = why_not_started(error, order.argv[0])
            self.tell(not_started=reason, remedy=remedy)
            return False
        finally:
            for descriptor in {self._pipes.stdout, self._pipes.stderr} - {1, 2}:
                os.close(descriptor)
            if inheritance.link is not None:
                os.close(inheritance.link)  # the agent then sees its end when the last descendant has closed it
            if inheritance.stdin is not None:
                os.close(inheritance.stdin)
            redirect_to_null()
        self._process = process
        self.tell(started=process.pid)
        return True

    def _popen(self, order: Start, inheritance: Inheritance) -> subprocess.Popen[bytes]:
        supervisor = os.getpid()

        def follow_the_supervisor() -> None:
            process_tree.die_with_parent()
            if os.getppid() != supervisor:  # the supervisor died before the line above took effect
                os._exit(ORPHANED)
            if order.core:  # else no dump, as for the agent: dumping a large process takes longer than a new start
                core_dumps.allow()

        return subprocess.Popen(
            order.argv,
            env=environment(order, inheritance),
            cwd=order.cwd,
            stdin=subprocess.DEVNULL if inheritance.stdin is None else inheritance.stdin,
            stdout=self._pipes.stdout,
            stderr=self._pipes.stderr,
            pass_fds=_descriptors(inheritance),
            start_new_session=True,
            preexec_fn=follow_the_supervisor,
        )

    def wait_for_end(self) -> list[int]:
        """Wait until the process and its descendants have ended, and kill them when their time is over.

        Return the processes that could not be killed.
        """
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._pipes.down, select.POLLIN)
        while self._some_left():
            timeout = self._pause()
            ready = [descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)]
            if self._wake in ready and any(number in STOP_SIGNALS for number in os.read(self._wake, CHUNK)):
                self._end(self._grace_s)
            if self._pipes.down in ready and not self._listen():
                poll.unregister(self._pipes.down)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                process_tree.kill(process_tree.descendants(os.getpid()), cleaners=self._late(process_tree.CLEANER_S))
        return process_tree.descendants(os.getpid()) if self._given_up else []

    def _some_left(self) -> bool:
        """Reap ended processes. Return False when none is left, or when the rest cannot be killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == self._process.pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self.tell(exited=self._process.returncode)
            if pid == 0:
                break
        if self._process.returncode is not None and not self._asked_all:
            self._end_rest()
        self._given_up = self._late(process_tree.GIVE_UP_S)
        return not self._given_up

    def _late(self, seconds: float) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline + seconds

    def _pause(self) -> float | None:
        if self._deadline is None:
            return None
        return max(process_tree.KILL_AGAIN_S, self._deadline - time.monotonic())

    def _listen(self) -> bool:
        """Execute the agent's orders; False if the agent is dead."""
        data = os.read(self._pipes.down, CHUNK)
        if not data:
            self._deadline = time.monotonic()
            return False
        for line in self._orders.feed(data):
            if line is not None:
                self._end(json.loads(line)["stop"])
        return True

    def _end(self, grace_s: float) -> None:
        """Send SIGTERM to the training process's group. After the grace, all processes of the tree are killed.

        The others in the tree get it when the training process has ended, because that may need them to end.
        """
        self._limit(grace_s)
        if grace_s > 0 and self._asked is None and self._process.returncode is None:
            self._asked = {pid for pid in process_tree.descendants(os.getpid()) if _group(pid) == self._process.pid}
            _ask(self._asked)

    def _end_rest(self) -> None:
        self._asked_all = True
        self._limit(self._grace_s)
        _ask(set(process_tree.descendants(os.getpid())) - (self._asked or set()))

    def _limit(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)


def _ask(pids: Iterable[int]) -> None:
    # SIGCONT: so that a stopped process receives SIGTERM, too.
    process_tree.send(pids, signal.SIGTERM, signal.SIGCONT)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _descriptors(inheritance: Inheritance) -> tuple[int, ...]:
    others = (inheritance.past, inheritance.link)
    return (*inheritance.commits, *(descriptor for descriptor in others if descriptor is not None))


def environment(order: Start, inheritance: Inheritance) -> dict[str, str]:
    """The environment of a training process."""
    environment = {**os.environ, **order.env}
    for name in (COMMITS, RESULTS, LINK, RENDEZVOUS_PORT):  # those of an outer agent, which may have started this one
        environment.pop(name, None)
    if inheritance.commits:
        environment[COMMITS] = ",".join(map(str, inheritance.commits))
    if inheritance.past is not None:
        environment[RESULTS] = str(inheritance.past)
    if inheritance.link is not None:
        environment[LINK] = str(inheritance.link)
        environment[RENDEZVOUS_PORT] = str(inheritance.proxy)
    return environment
