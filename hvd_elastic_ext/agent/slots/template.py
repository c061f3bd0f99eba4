"""The agent's side of a template: an interpreter that waits with imports done (``worker/process/template.py``).

Every call returns within :data:`ANSWER_S`. A template that does not answer is killed, and the process starts as usual.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from hvd_elastic_ext.agent.descriptors import CHUNK
from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.agent.orders import Start
from hvd_elastic_ext.agent.slots.supervisor import SupervisorPipes, environment
from hvd_elastic_ext.agent.slots.worker_link import Inheritance
from hvd_elastic_ext.agent.slots.worker_status import Imports
from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import COMMITS, LINK, TEMPLATE
from hvd_elastic_ext.io import core_dumps, process_tree

ANSWER_S: Final = 1.0
"""Seconds that the agent waits for a fork of the template. It does nothing else meanwhile."""
SUPERVISOR: Final = "hvd_elastic_ext.agent.slots.adopting"


class Template:
    """One template. ``received`` gets its one message, ``ready`` or ``unfit``, and an empty one when it has ended.

    Raises ``OSError`` if it cannot be started.
    """

    def __init__(
        self, loop: EventLoop, order: Start, imports: Imports, *, received: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.order = order
        self.imports = imports
        self.ready = False
        self._loop = loop
        self._received = received
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        request = {"agent": os.getpid(), "modules": imports.modules, "own": imports.own, "env": imports.env}
        try:
            with theirs, _memory_file(request) as listed:
                self._process = _popen(order, theirs.fileno(), listed)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._socket.close()
            raise OSError(str(error)) from error
        loop.watch(self._socket.fileno(), self._read_messages)

    @property
    def pid(self) -> int | None:
        """Number of the process while it is valid."""
        return self._process.pid if self._process.returncode is None else None

    def reaped(self, pid: int, code: int) -> None:
        """Note the end of a child of the agent, perhaps this one."""
        if pid == self.pid:
            self._process.returncode = code

    def close(self) -> None:
        """Kill the template. The processes that it has forked continue."""
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)  # not reaped yet: no other process can have this number
            self._process.returncode = -signal.SIGKILL  # the agent reaps all its children

    def _read_messages(self) -> None:
        try:
            message = json.loads(self._socket.recv(CHUNK) or b"{}")
        except (OSError, ValueError):
            message = {}
        message = message if isinstance(message, dict) else {}
        self.ready = "ready" in message
        if not self.ready:
            self.close()
        self._received(message)

    def fork(self, order: Start, inheritance: Inheritance, pipes: SupervisorPipes) -> int | None:
        """Let the template fork a training process with its supervisor. Return the supervisor's process number; None if
        it does not answer."""
        if self._socket.fileno() < 0:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:  # a late fork finds its end closed, and ends
            ours.settimeout(ANSWER_S)
            try:
                socket.send_fds(self._socket, [b"fork"], [theirs.fileno()])
                theirs.close()
                supervisor = _number(ours.recv(CHUNK))
                with _memory_file(_fork_request(order, inheritance)) as text:
                    link = () if inheritance.link is None else (inheritance.link,)
                    stdin = () if inheritance.stdin is None else (inheritance.stdin,)
                    past = () if inheritance.past is None else (inheritance.past,)
                    descriptors = [text, *pipes, *link, *inheritance.commits, *past, *stdin]
                    socket.send_fds(ours, [str(len(descriptors)).encode()], descriptors)
            except (OSError, ValueError):
                return None
        return supervisor


def _number(answer: bytes) -> int:
    supervisor = json.loads(answer or b"{}").get("pid")
    if type(supervisor) is not int:
        raise ValueError("it does not answer")
    return supervisor


def _fork_request(order: Start, inheritance: Inheritance) -> dict[str, Any]:
    env = environment(order, inheritance)
    for name in (COMMITS, RESULTS, LINK):  # the fork has other numbers for these descriptors
        env.pop(name, None)
    return {
        "env": env,
        "cwd": order.cwd,
        "core": core_dumps.usual() if order.core else None,
        "grace_s": order.grace_s,
        "stdin": inheritance.stdin is not None,
        "past": inheritance.past is not None,
        "supervisor": module_command(sys.executable, SUPERVISOR),
        "supervisors_env": dict(os.environ),
    }


@contextlib.contextmanager
def _memory_file(content: Mapping[str, Any]) -> Iterator[int]:
    """Return a descriptor to read ``content`` from. It is a file, because a full socket would block the loop."""
    descriptor = os.memfd_create("hvd-template", os.MFD_CLOEXEC)
    try:
        view = memoryview(to_text(content).encode("ascii"))
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _popen(order: Start, number: int, listed: int) -> subprocess.Popen[bytes]:
    agent = os.getpid()

    def follow_the_agent() -> None:
        process_tree.die_with_parent()
        if os.getppid() != agent:
            os._exit(1)

    return subprocess.Popen(
        order.argv,
        env={**environment(order, Inheritance()), TEMPLATE: f"{number},{listed}"},
        cwd=order.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[number, listed],
        start_new_session=True,
        preexec_fn=follow_the_agent,
    )
