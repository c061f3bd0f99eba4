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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from hvd_elastic_ext.agent.descriptors import CHUNK, EventLoop, Lines, memory_file
from hvd_elastic_ext.agent.orders import OrderError, RunHelper, is_name
from hvd_elastic_ext.agent.slots.slot import Slot
from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.messages.slot_protocol import NOT_STARTED
from hvd_elastic_ext.io import process_tree

PROGRAM: Final = "hvd_elastic_ext.checkpoint.programs.agent_requests"
MAX_ANSWER: Final = 4 << 20
"""Longest line of an answer, in bytes."""
MAX_WORDS: Final = 2000
"""Characters that are kept of its standard error."""


class HelperServices(EventLoop, Protocol):
    """What helpers use of the agent."""

    def slot(self, number: int) -> Slot: ...
    def tell(self, event: str, **fields: object) -> None: ...


class Helpers:
    """The helper of an agent: there is one at a time, and a new one replaces it."""

    def __init__(self, agent: HelperServices) -> None:
        self._agent = agent
        self._helper: Helper | None = None
        self._killed: dict[int, frozenset[int]] = {}
        """Slots of killed helpers, by process number, until the agent has reaped the process."""

    @property
    def pid(self) -> int | None:
        """Number of the helper's process while it is valid."""
        return None if self._helper is None else self._helper.pid

    def run(self, order: RunHelper, *, env: Mapping[str, str], secret: Callable[[str], str] | None) -> None:
        """Start a helper with ``env``. ``secret`` returns the secret of a transfer; None: there is no job.

        Raises :class:`OrderError`.
        """
        order = order._replace(request={**order.request, **_secret(order.request, secret)})
        self.kill()
        try:
            slots = {number: self._agent.slot(number) for number in order.slots}
            memory = {number: slot.memory() for number, slot in slots.items()}
            pasts = {number: slot.past for number, slot in slots.items() if slot.past is not None}
            self._helper = Helper(self._agent, order, memory=memory, pasts=pasts, env=env, tell=self._agent.tell)
        except OSError as error:
            self._agent.tell("helper_ended", id=order.number, code=NOT_STARTED, words=str(error))

    def kill(self) -> None:
        """Kill the helper. Its answers are not wanted any more."""
        if self._helper is not None:
            if self._helper.pid is not None:
                self._killed[self._helper.pid] = self._helper.slots
            self._helper.drop()
            self._helper = None

    def reaped(self, pid: int, code: int) -> None:
        """Note the end of a child of the agent, perhaps of a helper."""
        self._tell_held(self._killed.pop(pid, frozenset()))
        if self._helper is not None:
            self._tell_held(self._helper.slots if pid == self._helper.pid else ())
            self._helper.reaped(pid, code)

    def end(self, within_s: float) -> None:
        """Wait for the ends of killed helpers."""
        process_tree.reap(self._killed, within_s=within_s)

    def _tell_held(self, numbers: Iterable[int]) -> None:
        """Report the commits in the memory of these slots after a helper, which may have ended without an answer."""
        if numbers:
            slots = {number: self._agent.slot(number) for number in numbers}
            pasts = {str(number): slot.results for number, slot in slots.items() if slot.results}
            self._agent.tell("held", slots={str(number): slot.held for number, slot in slots.items()}, pasts=pasts)


def _secret(request: Mapping[str, Any], secret: Callable[[str], str] | None) -> dict[str, str]:
    """The secret by which this end of a transfer proves that it belongs to the job."""
    transfer = request.get("transfer")
    if transfer is None:
        return {}
    if not is_name(transfer):
        raise OrderError("'request.transfer' must be a name of at most 255 printable ASCII characters")
    if secret is None:
        raise OrderError("commits are transferred between agents that have joined a job")
    return {"secret": secret(transfer)}


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
    """Start the program. Its standard input is the request."""
    agent = os.getpid()

    def follow_the_agent() -> None:
        process_tree.die_with_parent()
        if os.getppid() != agent:
            os._exit(1)

    with memory_file("hvd-helper", request) as stdin:
        return subprocess.Popen(
            module_command(sys.executable, PROGRAM),
            env={**os.environ, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[
                *(descriptor for descriptors in request["sides"].values() for descriptor in descriptors),
                *request["pasts"].values(),
            ],
            start_new_session=True,
            preexec_fn=follow_the_agent,
        )


def _nothing(event: str, **fields: object) -> None:
    """Drop the event."""
