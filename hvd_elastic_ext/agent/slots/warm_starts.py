"""Warm starts: processes that are forked from a template, an interpreter that waits with the script's imports done.

Importing torch and the like takes most of the time in which a process starts. A template is made during training, with
the imports of a training process (``worker/process/template.py`` is its side). :func:`may_be_forked` decides which
processes may start from it. After its end a new one is made, at most :data:`MAX_TEMPLATE_ENDS` times.

Every call to a template returns within :data:`ANSWER_S`. One that does not answer is killed, and the process starts as
usual.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from hvd_elastic_ext.agent.descriptors import CHUNK, EventLoop, memory_file
from hvd_elastic_ext.agent.orders import Start
from hvd_elastic_ext.agent.slots.supervisor import Inheritance, SupervisorPipes, environment
from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.messages.slot_protocol import (
    COMMITS,
    DEVICE,
    GENERATION,
    INCARNATION,
    LINK,
    PLAN,
    RENDEZVOUS_PORT,
    TEMPLATE,
)
from hvd_elastic_ext.io import core_dumps, process_tree

CALM_S: Final = 5.0
"""Seconds of training in which nothing starts or changes on the host, before a template is made."""
LOOK_S: Final = 0.5
DUTY: Final = 0.2
"""Share of one processor that the imports of a template may use while others train. A lower priority could not be
raised again."""
MAX_TEMPLATE_ENDS: Final = 3
"""Most templates that may end by themselves."""
MAX_WITHOUT: Final = 8
"""Most packages that are left out, one after another, because they cannot be imported before the script."""
MAX_MODULES: Final = 20_000
"""Most modules that are kept of one process."""
OF_EACH_PROCESS: Final = frozenset(
    {COMMITS, RESULTS, DEVICE, GENERATION, INCARNATION, LINK, PLAN, RENDEZVOUS_PORT, "CUDA_VISIBLE_DEVICES"}
)
"""Variables that may differ between processes of a host. No import reads them, except to open a device; a template
with an open device is not used."""


class Imports(NamedTuple):
    """The imports of a process until its first step: see ``worker/process/imports.py``."""

    pid: int | None = None
    modules: tuple[str, ...] = ()
    """Those of the interpreter and its installed packages, in order."""
    own: tuple[str, ...] = ()
    """Top-level names of the script's own modules."""
    env: Mapping[str, str | None] = MappingProxyType({})
    """Changed variables of the environment; None: removed."""
    complete: bool = False
    """Whether the process has reported all of them."""

    def merged_with(self, message: Mapping[str, Any]) -> Imports:
        """Return these imports and those of one more message; a malformed message is ignored."""
        last = message.get("complete") is True
        pid, names = message.get("pid"), message.get("modules")
        own, env = (message.get("own"), message.get("env")) if last else ([], {})
        if self.complete or type(pid) is not int or not isinstance(env, dict):
            return self
        if not _are_names(names) or not _are_names(own) or len(self.modules) + len(names) > MAX_MODULES:
            return self
        return Imports(pid, (*self.modules, *names), tuple(own), env, last)

    def without(self, package: str) -> Imports:
        """Return these imports without those of a package, which counts as the script's own."""
        modules = tuple(name for name in self.modules if name.partition(".")[0] != package)
        return self._replace(modules=modules, own=(*self.own, package))


def _are_names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


class Example(NamedTuple):
    """A process that trains."""

    order: Start
    pid: int
    imports: Imports
    place: tuple[int, int | None]
    """Changes with each process and world."""
    step: int | None
    """Its newest known step."""


def may_be_forked(order: Start, template: Start, environ: Mapping[str, str]) -> tuple[bool, str]:
    """Whether the process of ``order`` may be forked from the template, which was started with an earlier order.
    ``environ``: the agent's own environment. Pure."""
    if not order.link or order.output != "frames":
        return False, "it has no link"
    if (order.argv, order.cwd) != (template.argv, template.cwd):
        return False, "its command or folder is another one"
    before, now = (_lasting({**environ, **start.env}) for start in (template, order))
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        return False, f"{changed[0]} has another value"
    return True, ""


def _lasting(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in OF_EACH_PROCESS}


def may_be_template(example: Example, words: tuple[str, ...]) -> tuple[bool, str]:
    """Whether a template may be made like ``example``, which runs with ``words`` as its command line. Pure."""
    if not example.imports.complete:
        return False, "it has not reported its imports"
    if example.imports.pid != example.pid or words != example.order.argv:
        return False, "its command is not Python's own"
    return True, ""


class WarmStartServices(EventLoop, Protocol):
    """What warm starts use of the agent."""

    def tell(self, event: str, **fields: object) -> None: ...
    def lost_supervisor(self) -> None: ...


class WarmStarts:
    """When a template is made, and which processes start from it."""

    def __init__(self, agent: WarmStartServices) -> None:
        self._agent = agent
        self._template: Template | None = None
        self._off = False
        self._ends = self._left_out = 0
        self._look_at = 0.0
        self._seen: dict[int, tuple[int, int | None]] = {}
        self._steps: dict[int, int | None] = {}
        self._calm_since = 0.0
        self._killed: set[int] = set()

    @property
    def pid(self) -> int | None:
        """The template's process number, while it lives or is not reaped yet."""
        return None if self._template is None else self._template.pid

    def fork(self, order: Start, inheritance: Inheritance, pipes: SupervisorPipes) -> int | None:
        """Start a process and its supervisor from the template. Return the supervisor's process number; None if it must
        start as usual."""
        self._seen = {}
        template = self._template
        if template is None:
            return None
        may, _ = may_be_forked(order, template.order, os.environ)
        if not may:
            self.close()  # a template that fits is made later
            return None
        if not template.ready:
            return None
        supervisor = template.fork(order, inheritance, pipes)
        if supervisor is None:
            self._lost("it does not answer")
        return supervisor

    def look(self, running: Iterable[tuple[int, Example | None]]) -> None:
        """Make a template when training runs in all slots that are in use. ``running``: those slots, each with its
        process if that trains; they are looked at only now and then.
        """
        now = self._agent.now()
        if self._template is not None or self._off or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        processes = dict(running)
        examples = {number: example for number, example in processes.items() if example is not None}
        places = {slot: example.place for slot, example in examples.items()}
        if len(examples) < len(processes) or not examples or places != self._seen:
            self._seen, self._calm_since = places, now
            self._steps = {slot: example.step for slot, example in examples.items()}
            return
        if now < self._calm_since + CALM_S:
            return
        example = next((candidate for slot, candidate in examples.items() if candidate.step != self._steps[slot]), None)
        if example is not None:
            self._begin(example)

    def _begin(self, example: Example) -> None:
        words = _words(example.pid)
        if not words:
            return  # it is ending: the next process may be an example
        may, reason = may_be_template(example, words)
        if may:
            self._left_out = 0
            self._make(example.order, example.imports)
        else:
            self._refuse(reason)

    def _make(self, order: Start, imports: Imports) -> None:

        try:
            self._template = Template(self._agent, order, imports, received=self._received)
        except OSError as error:
            self._refuse(str(error))

    def _received(self, message: Mapping[str, Any]) -> None:
        template, package = self._template, message.get("without")
        if "ready" in message:
            self._agent.tell("template", ready=True, memory=message["ready"])
        elif template is not None and isinstance(package, str) and self._left_out < MAX_WITHOUT:
            self._left_out += 1
            self.close()
            self._make(template.order, template.imports.without(package))
        elif "unfit" in message:
            self._refuse(str(message["unfit"]))
        else:
            self._lost("it has ended")

    def _refuse(self, reason: str) -> None:
        self._off = True
        self.close()
        self._agent.tell("template", ready=False, reason=reason)

    def _lost(self, reason: str) -> None:
        self._ends += 1
        self.close()
        if self._ends >= MAX_TEMPLATE_ENDS:
            self._refuse(reason)

    def reaped(self, pid: int, code: int) -> None:
        """Note the end of a child of the agent, perhaps the template."""
        self._killed.discard(pid)
        if self._template is not None:
            self._template.reaped(pid, code)

    def try_again(self) -> None:
        """Allow templates again, for a new launcher, which may have another command."""
        self._off, self._ends = False, 0

    def close(self) -> None:
        """Kill the template, and the processes that its imports have started. The next one waits until the host is calm
        again.
        """
        template, self._template, self._seen = self._template, None, {}
        if template is not None:
            self._killed |= set() if template.pid is None else {template.pid}
            template.close()
            self._agent.lost_supervisor()

    def end(self, within_s: float) -> None:
        """Kill the template, and wait for its end."""
        self.close()
        process_tree.reap(self._killed, within_s=within_s)


def _words(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - pathlib takes long to load
            return tuple(os.fsdecode(word) for word in file.read().split(b"\0")[:-1])
    except OSError:
        return ()


# --- a template ------------------------------------------------------------------------------------------


ANSWER_S: Final = 1.0
"""Seconds that the agent waits for a fork of the template. It does nothing else meanwhile."""
SUPERVISOR: Final = "hvd_elastic_ext.agent.slots.supervisor"
"""The program that a fork of the template becomes, to supervise the training process that it has forked."""


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
        request["duty"] = DUTY
        try:
            with theirs, memory_file("hvd-template", request) as listed:
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
                with memory_file("hvd-template", _fork_request(order, inheritance)) as text:
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
