"""Ways to start an agent on a host: directly, over ssh, or in a pod.

An agent gets one line on standard input: the launcher's address, the job's key, and environment and command of its
processes. None of it is an argument, which others could read, and the connection to another host is encrypted. After
that the agent uses the control port, which is not encrypted. The end of a started command (an agent that hands over, a
broken ssh) does not mean that an agent which has joined has ended. Failures are returned, not raised.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol

from hvd_elastic_ext.core.commands import HAS_CODE, RECEIVER_MODULE, WANTS_CODE, agent_command, module_command
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.code.files import NO_CODE, Code
from hvd_elastic_ext.io.kube.errors import client_needed
from hvd_elastic_ext.launcher.agents.transports.child_process import Child
from hvd_elastic_ext.launcher.agents.transports.pod_exec import Exec, Open, by_exec, pod_of, words_in
from hvd_elastic_ext.launcher.agents.transports.ssh import KNOWN_HOSTS, Ssh, host_keys, refused_key
from hvd_elastic_ext.launcher.options.settings import RunSettings

UNREACHABLE: Final = 255
"""Exit code of ssh, and of any transport here, that did not reach the host."""
MAX_CONCURRENT_STARTS: Final = 8
"""Most starts over ssh at a time: with its defaults, sshd refuses some from the eleventh on."""
SLOW_START_S: Final = 20.0
"""A start that takes longer, and has neither reached its host nor ended, no longer counts towards that limit."""
_REACHED: Final = "hvd-elastic-host-reached"
MAX_KEPT_LINES: Final = 40
"""Lines kept of an ssh that fails. The refusal of a host key takes some 15."""
_NO_ANSWERS: Final[Mapping[str, Sequence[bytes]]] = {}
Remark = Callable[[str], None]
"""Takes one line that an agent, or its transport, writes outside the control port."""


def join_line(
    job: str,
    host: str,
    *,
    key: bytes,
    launcher: tuple[str, int],
    incarnation: int,
    orphan_grace_s: float,
    argv: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    code: bytes = b"",
) -> bytes:
    """The line that makes an agent join ``launcher``, or hand over to the agent of that job and host. Pure.

    ``argv`` and ``env``: for every process that is started without its own. ``code``: the files whose
    checksum it has to report (``io/code/checksum.py``).
    """
    who = {"do": "join", "job": job, "host": host, "key": key.hex(), "launcher": list(launcher)}
    times = {"incarnation": incarnation, "orphan_grace_s": orphan_grace_s}
    usual = {**({"argv": list(argv)} if argv else {}), **({"env": dict(env)} if env else {})}
    files = {"code": base64.b64encode(code).decode()} if code else {}
    return _line({**who, **times, **usual, **files})


def end_line(job: str, host: str, *, key: bytes, grace_s: float = 0.0) -> bytes:
    """The line that makes the agent of that job and host end its processes and itself, after the grace. Pure."""
    return _line({"do": "end", "job": job, "host": host, "key": key.hex(), "grace_s": grace_s})


def code_line(code: Code, directory: Path) -> bytes:
    """The line that names the files a host must have. It is sent before all other input. Pure."""
    files = {"code": base64.b64encode(code.wanted).decode(), "sha256": code.sha256, "size": len(code.archive)}
    return _line({**files, "mark": code.mark, "directory": str(directory)})


def _line(order: dict[str, object]) -> bytes:
    return to_text(order).encode("ascii") + b"\n"


class LaunchResult(NamedTuple):
    """How a launch ended. ``code``: 128 + N for signal N. ``reached``: the host was reached.

    ``message``: the last line of standard error, or else of the output.
    """

    code: int
    reached: bool
    message: str


class Carrier(Protocol):
    """A started command: an agent, or the carrier of its streams. Use it in the loop only."""

    code: asyncio.Future[int]
    """The exit code; 128 + N for signal N. All lines have been passed on before."""
    why: str
    """Why the command has no exit code of its own; empty if it has one."""

    def write(self, *pieces: bytes) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...

    async def killed(self) -> None: ...

    def hand_over(self) -> None: ...


class Launch:
    """An agent that is being started by ``begin(on_line=…)``.

    ``carrier``: the command only carries the streams of an agent elsewhere. ``explain`` gets the last lines, and
    returns the remedy for a host that was not reached. ``settled`` is called once: when the host is reached, when the
    launch has ended, or after :data:`SLOW_START_S`. ``answers``: by line of output, what to write to the command's
    input.
    """

    def __init__(
        self,
        begin: Callable[..., Carrier],
        *,
        remark: Remark,
        carrier: bool = True,
        explain: Callable[[Sequence[str]], str | None] = lambda lines: None,
        settled: Callable[[], None] = lambda: None,
        answers: Mapping[str, Sequence[bytes]] = _NO_ANSWERS,
    ) -> None:
        self._answers = answers
        self.reached = not carrier
        """The program on the host has been started."""
        self._remark, self._carrier, self._explain = remark, carrier, explain
        self._settled: Callable[[], None] | None = settled
        self._errors: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._held: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        """Lines of the carrier, until it is known whether they are the message of its end."""
        self._newest = {"stdout": "", "stderr": ""}
        self._child: Carrier | None = None
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._child = begin(on_line=self._receive)
        except OSError as error:
            self.reached = False
            self._newest["stderr"] = ": ".join(filter(None, (error.filename, error.strerror))) or str(error)
            self._settle()
        else:
            self._timer = asyncio.get_running_loop().call_later(SLOW_START_S, self._late)
            self._child.code.add_done_callback(lambda _: self._settle())

    @property
    def over(self) -> bool:
        """Whether it has ended, or has never begun."""
        return self._child is None or self._child.code.done()

    async def wait(self) -> LaunchResult:
        """Wait for its end; all remarks have been passed on then. May be waited for repeatedly and given up."""
        code = UNREACHABLE if self._child is None else await asyncio.shield(self._child.code)
        why = "" if self._child is None else self._child.why
        message = why or self._newest["stderr"] or self._newest["stdout"]
        self._pass_on(but=message)
        remedy = None if self.reached else self._explain(self._errors)
        return LaunchResult(code, self.reached, message if remedy is None else f"{message.rstrip('.')}: {remedy}")

    def close(self) -> None:
        """Take no more remarks. An agent that runs continues; a carrier ends."""
        if self._child is not None:
            self._child.close()
            if self._carrier:
                self._child.kill()

    async def leave(self) -> bool:
        """Close it at the launcher's end: no process is left that the launcher would have to wait for. Return whether
        an agent runs on, which is on its own now."""
        self.close()
        if self._child is None:
            return False
        if self._carrier:
            await self._child.killed()
        self._child.hand_over()
        return not self.over

    def _late(self) -> None:
        self._pass_on()
        self._settle()

    def _pass_on(self, but: str = "") -> None:
        held = [text for text in self._held if text.strip() != but]
        self._held.clear()
        for text in held:
            self._remark(text)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        act, self._settled = self._settled, None
        if act is not None:
            act()

    def _receive(self, stream: str, text: str) -> None:
        if not self.reached and stream == "stdout" and text == _REACHED:
            self.reached = True
            self._pass_on()
            self._settle()
        elif self._child is not None and stream == "stdout" and text in self._answers:
            pieces, self._answers = self._answers[text], _NO_ANSWERS
            self._child.write(*pieces)
        elif text.strip():
            self._newest[stream] = text.strip()
            if stream == "stderr" and not self.reached:
                self._errors.append(text.strip())
                self._held.append(text)
            else:
                self._remark(text)


class Transport(Protocol):
    """A way of starting agents."""

    async def start(self, host: str, line: bytes, *, remark: Remark, code: Code = NO_CODE) -> Launch:
        """Start an agent on ``host`` and give it ``line``. Does not wait until the host is reached.

        ``code``: files that another machine gets first, if its own differ.

        Never raises for a problem of a host: then the launch has ended, and its result says why.
        """


@dataclass(frozen=True, slots=True)
class Local:
    """Starts agents on this machine, whatever the host's name. ``stdin``: the standard input for processes, if any."""

    python: str = sys.executable
    stdin: int | None = None

    async def start(self, host: str, line: bytes, *, remark: Remark, code: Code = NO_CODE) -> Launch:
        """Start it as a child process; ``host`` and ``code`` are ignored."""
        return Launch(
            functools.partial(Child, agent_command(self.python), line, stdin=self.stdin), remark=remark, carrier=False
        )


class _RemoteTransport(abc.ABC):
    """Starts agents on other hosts, a few at a time."""

    def __init__(self, directory: Path, python: str) -> None:
        self._directory = directory
        self._python = python
        self._room = asyncio.Semaphore(MAX_CONCURRENT_STARTS)

    async def start(self, host: str, line: bytes, *, remark: Remark, code: Code = NO_CODE) -> Launch:
        program, answers = agent_command(self._python), _NO_ANSWERS
        if code.archive:
            program = module_command(self._python, RECEIVER_MODULE)
            answers = {HAS_CODE: (line,), WANTS_CODE: (code.archive, line)}
            line = code_line(code, self._directory)
        # The shell reports that the host is reached: a later failure is not the transport's.
        words = ["sh", "-c", f'echo {_REACHED}; exec "$@"', "sh", *program]
        try:
            self._check(host)  # before waiting for a turn
        except ValueError as error:
            return Launch(functools.partial(_fail, str(error)), remark=remark)
        await self._room.acquire()
        try:
            begin = await self._begin(host, words, line)
            explain = functools.partial(self._explain, host)
            return Launch(begin, remark=remark, explain=explain, settled=self._room.release, answers=answers)
        except BaseException:
            self._room.release()
            raise

    @abc.abstractmethod
    def _check(self, host: str) -> None:
        """Raises ``ValueError`` for a wrong name."""

    @abc.abstractmethod
    async def _begin(self, host: str, words: list[str], line: bytes) -> Callable[..., Carrier]:
        """Returns what runs ``words`` on ``host``, and gives them ``line``, when it is called with ``on_line``."""

    def _explain(self, host: str, lines: Sequence[str]) -> str | None:
        """What to do about a host that was not reached, by the last lines of ssh; None if unknown."""
        return None


class SshTransport(_RemoteTransport):
    """Starts agents over ``ssh``, a few at a time."""

    def __init__(self, ssh: Ssh | None = None, *, python: str = sys.executable) -> None:
        self._ssh = ssh or Ssh(Path.cwd())
        super().__init__(self._ssh.directory, python)

    def _check(self, host: str) -> None:
        self._ssh.query_command(host)

    async def _begin(self, host: str, words: list[str], line: bytes) -> Callable[..., Carrier]:
        keys = await host_keys(self._ssh, host)
        command = self._ssh.command(host, words, keys=keys.options(self._ssh.known_hosts))
        return functools.partial(Child, command, line)

    def _explain(self, host: str, lines: Sequence[str]) -> str | None:
        return refused_key(host, self._ssh.port, lines)


class PodTransport(_RemoteTransport):
    """Starts agents in pods by the API server's exec, a few at a time; in ``directory``, in pods that have it."""

    def __init__(self, run: Open, *, directory: Path | None = None, python: str = sys.executable) -> None:
        super().__init__(directory or Path.cwd(), python)
        self._run = run

    @classmethod
    def found(cls, environ: Mapping[str, str] = os.environ) -> PodTransport:
        """For the cluster that ``$KUBECONFIG`` names, else the one that this machine belongs to.

        Loads the official client: half a second, 45 MB. Raises :class:`UsageError` if there is no way to a cluster.
        """
        with client_needed("--rsh pod"):
            from hvd_elastic_ext.io.kube.access import Access

            return cls(by_exec(Access.found(None, environ, remedy="for --rsh pod let KUBECONFIG name one")))

    def _check(self, host: str) -> None:
        pod_of(host)

    async def _begin(self, host: str, words: list[str], line: bytes) -> Callable[..., Carrier]:
        run = functools.partial(self._run, pod_of(host), words_in(self._directory, words))
        return functools.partial(Exec, run, line)


@dataclass(frozen=True, slots=True)
class TransportByName:
    """``near`` for the names that are this machine's, else ``far``."""

    near: Transport
    far: Transport
    is_near: Callable[[str], bool]

    async def start(self, host: str, line: bytes, *, remark: Remark, code: Code = NO_CODE) -> Launch:
        """Over the transport that ``is_near`` chooses for ``host``."""
        return await (self.near if self.is_near(host) else self.far).start(host, line, remark=remark, code=code)


def transport_of(
    settings: RunSettings, *, is_near: Callable[[str], bool], pods: PodTransport | None, stdin: int | None = None
) -> Transport:
    """The transport that ``--rsh`` names; without it, local for this machine's names and ssh for others. ``stdin``: the
    standard input for processes of this machine.
    """
    near = Local(stdin=stdin)
    if settings.rsh in ("local", "pod"):
        return pods or near
    far = SshTransport(ssh_of(settings))
    return far if settings.rsh == "ssh" else TransportByName(near, far, is_near)


def ssh_of(settings: RunSettings) -> Ssh:
    """How this job's hosts are reached over ssh. Their keys are remembered in its own folder."""
    known_hosts = settings.state_dir.absolute() / KNOWN_HOSTS
    return Ssh(Path.cwd(), settings.ssh_port, settings.ssh_identity_file, known_hosts=known_hosts)


def _fail(why: str, **_: object) -> NoReturn:
    raise OSError(why)
