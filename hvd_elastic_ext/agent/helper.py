"""Work on commits beside training, in a separate process: it makes commits durable, or brings them back.

The agent starts it, gives it the memory, passes its answers on, and kills it when the launcher drops it. Only the
launcher and the program know the request's meaning (``hvd_elastic_ext.checkpoint``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.agent.descriptors import CHUNK, EventLoop, Lines
from hvd_elastic_ext.agent.orders import RunHelper
from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import process_tree

PROGRAM: Final = "hvd_elastic_ext.checkpoint.programs.agent_requests"
MAX_ANSWER: Final = 4 << 20
"""Longest line of an answer, in bytes."""
MAX_WORDS: Final = 2000
"""Characters that are kept of its standard error."""


class Helper:
    """One run of the program. ``tell`` gets its answers, and at the end how it ended."""

    def __init__(
        self,
        loop: EventLoop,
        order: RunHelper,
        *,
        memory: Mapping[int, Sequence[int]],
        pasts: Mapping[int, int],
        env: Mapping[str, str],
        tell: Callable[..., None],
    ) -> None:
        self.number = order.number
        self.slots = frozenset(memory)
        self._loop = loop
        self._tell = tell
        self._lines = Lines(MAX_ANSWER)
        self._words = bytearray()
        self._open = 2
        self._code: int | None = None
        sides = {str(slot): list(descriptors) for slot, descriptors in memory.items()}
        results = {str(slot): descriptor for slot, descriptor in pasts.items()}
        self._process = _popen({**order.request, "sides": sides, "pasts": results}, env)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = (self._process.stdout.fileno(), self._process.stderr.fileno())
        loop.watch(self._pipes[0], self._answered)
        loop.watch(self._pipes[1], self._read_stderr)

    @property
    def pid(self) -> int | None:
        """Number of the process while it is valid."""
        return self._process.pid if self._code is None else None

    def reaped(self, pid: int, code: int) -> None:
        """Note the end of a child of the agent, perhaps this one."""
        if pid == self.pid:
            self._code = self._process.returncode = code
            self._end()

    def drop(self) -> None:
        """Kill it, and report nothing more."""
        if self.pid is not None:
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet: no other process can have this number
            # The agent reaps all its children: the library must not wait for this one, whose number may be another's.
            self._code = self._process.returncode = -signal.SIGKILL
        self._tell = _nothing
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            self._loop.unwatch(pipe.fileno())
            pipe.close()

    def _answered(self) -> None:
        data = os.read(self._pipes[0], CHUNK)
        for line in self._lines.feed(data):
            self._take(line)
        if not data:
            self._ended(self._pipes[0])

    def _take(self, line: bytes | None) -> None:
        try:
            answer = json.loads(line or b"null")
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            self._tell("helper", id=self.number, answer=answer)

    def _read_stderr(self) -> None:
        data = os.read(self._pipes[1], CHUNK)
        self._words = (self._words + data)[-MAX_WORDS:]
        if not data:
            self._ended(self._pipes[1])

    def _ended(self, descriptor: int) -> None:
        self._loop.unwatch(descriptor)
        self._open -= 1
        self._end()

    def _end(self) -> None:
        if self._code is not None and not self._open:
            words = self._words.decode("utf-8", "replace").strip()
            self._tell("helper_ended", id=self.number, code=self._code, words=words)


def _popen(request: Mapping[str, Any], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the program. Its request is a file: a full pipe would block the loop."""
    agent = os.getpid()

    def follow_the_agent() -> None:
        process_tree.die_with_parent()
        if os.getppid() != agent:
            os._exit(1)

    orders = os.memfd_create("hvd-helper", os.MFD_CLOEXEC)
    try:
        text = to_text(request).encode("ascii")
        view = memoryview(text)
        while view:
            view = view[os.write(orders, view) :]
        os.lseek(orders, 0, os.SEEK_SET)
        return subprocess.Popen(
            module_command(sys.executable, PROGRAM),
            env={**os.environ, **env},
            stdin=orders,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[
                *(each for descriptors in request["sides"].values() for each in descriptors),
                *request["pasts"].values(),
            ],
            start_new_session=True,
            preexec_fn=follow_the_agent,
        )
    finally:
        os.close(orders)


def _nothing(event: str, **fields: object) -> None:
    """Drop the event."""
