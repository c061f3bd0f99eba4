"""Start one training process on a host through its agent, and see it end.

The agent is ``python -m hvd_elastic_ext.worker.agent``, run directly on this
machine or over ssh. Its order, environment included, goes over standard input;
closing that pipe is how a process is told to end, and what happens by itself
when this launcher dies.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, TextIO

import psutil

from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.launcher.ssh import Ssh

log = logging.getLogger(__name__)

AGENT_MODULE: Final = "hvd_elastic_ext.worker.agent"
LONGEST_LINE: Final = 1 << 20
"""Bytes after which a line of a worker that does not end is passed on in pieces."""
AGENT_PATIENCE_S: Final = 3.0
"""How much longer than the grace an agent may take before its own process is killed."""


@dataclass(frozen=True, slots=True)
class Shell:
    """How to reach hosts. ``rsh`` is "local", "ssh" or None: local for this machine's names, else ssh."""

    rsh: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    python: str = field(default=sys.executable)

    def command(self, host: str) -> list[str]:
        """The command that starts an agent on ``host``. Raises ``ValueError`` for an unsafe name."""
        problem = name_error(host)
        if problem is not None:
            raise ValueError(problem)
        agent = [self.python, "-m", AGENT_MODULE]
        if self.rsh == "local" or (self.rsh is None and is_this_machine(host)):
            return agent
        return Ssh(Path.cwd(), self.ssh_port, self.ssh_identity_file).command(host, agent)


def is_this_machine(host: str) -> bool:
    """True for a name or address of this machine, all of 127.0.0.0/8 included; False if it does not resolve."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return False
    return ipaddress.ip_address(address).is_loopback or address in interface_addresses().values()


def interface_addresses() -> dict[str, str]:
    """IPv4 address of each network interface that has one."""
    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }


def interface_towards(hosts: Sequence[str]) -> str | None:
    """Name the interface through which ``hosts`` are reached, or None if nothing can be said.

    The loopback interface when every host is a loopback name; else the one that
    the route to the first other resolvable host leaves through. No packet is
    sent: connecting a datagram socket only asks the kernel for the route.
    """
    by_address = {address: name for name, address in interface_addresses().items()}
    loopback = None
    for host in hosts:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))
                own = probe.getsockname()[0]
        except OSError:
            continue
        if not ipaddress.ip_address(own).is_loopback:
            return by_address.get(own)
        # A loopback route to one of this machine's own outer addresses is still that interface's.
        address = socket.gethostbyname(host)
        if not ipaddress.ip_address(address).is_loopback:
            return by_address.get(address)
        loopback = by_address.get("127.0.0.1")
    return loopback


class Output:
    """Where lines of one stream of one worker go: the ``terminal``, labelled, and if given a ``file`` of its own.

    A full disk or a reader that went away never stops training: what cannot be
    written any more is dropped, and said once. Closing closes the file only.
    """

    def __init__(self, terminal: TextIO, file: TextIO | None = None, *, timestamps: bool = False) -> None:
        self._terminal: TextIO | None = terminal
        self._file = self._opened = file
        self._timestamps = timestamps

    def write(self, text: str, *, label: str) -> None:
        time_of_day = time.asctime() if self._timestamps else ""  # as horovodrun writes it
        self._terminal = _written(self._terminal, f"{time_of_day}{label}{text}")
        self._file = _written(self._file, text)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _written(sink: TextIO | None, text: str) -> TextIO | None:
    """Write to ``sink``; it, or None if it takes nothing any more."""
    if sink is None:
        return None
    try:
        sink.write(text)
        sink.flush()
    except OSError as error:
        log.warning("output of workers is dropped from here on: %s: %s", getattr(sink, "name", "?"), error)
        # What is left in the buffer must not fail again when the file is closed.
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sink.fileno())
        return None
    return sink


def parse_news(line: bytes) -> dict[str, Any] | None:
    """One line of an agent's news, or None for what a login shell on the way has put among them."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("event"), str) else None


class Assembler:
    """Makes whole lines of the pieces in which an agent passes them on."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, text: str) -> list[str]:
        """The lines that ``text`` completes, each with its end."""
        # Pieces may be cut within a letter: as bytes they fit together again.
        data = text.encode("utf-8", "surrogateescape")
        whole, newline, rest = data.rpartition(b"\n")
        done = b"".join([*self._rest, whole, newline]) if newline else b""
        self._rest = [rest] if newline else [*self._rest, rest]
        self._size = len(rest) if newline else self._size + len(rest)
        return _split(done) + (self.flush() if self._size > LONGEST_LINE else [])

    def flush(self) -> list[str]:
        """What there is of a line that did not end, ended."""
        rest = b"".join(self._rest)
        self._rest, self._size = [], 0
        return _split(rest + b"\n") if rest else []


def _split(data: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in io.BytesIO(data)]


class Worker:
    """One training process on one host, seen from the launcher.

    ``label`` is asked anew for every line of output, because a worker's rank
    changes during its life; ``on_start`` is told the training process's pid on
    its host once it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        grace_s: float,
        label: Callable[[], str],
        on_start: Callable[[int], None],
        out: Output,
        err: Output,
    ) -> None:
        self._grace_s = grace_s
        self._label = label
        self._on_start = on_start
        self._pipe_lock = threading.Lock()
        self._told = False
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C in a terminal goes to the whole foreground group; ending workers is our decision.
                start_new_session=True,
            )
        except OSError:
            out.close()
            err.close()
            raise
        self._news = self._thread("stdout", self._follow, self._process.stdout, out=out, err=err)
        self._remarks = self._thread("stderr", self._copy, self._process.stderr, output=err)
        self._news.start()
        self._remarks.start()
        slot = {"slot": 0, "argv": list(argv), "env": dict(env), "grace_s": grace_s}
        self._send({"do": "start", **slot}, {"do": "finish"})

    @property
    def told_to_leave(self) -> bool:
        """True once :meth:`stop` was called."""
        return self._told

    def wait(self) -> int:
        """Block until the worker has ended; its exit code, 128 + N for signal N, 255 if ssh failed."""
        code = self._process.wait()
        self._news.join(timeout=AGENT_PATIENCE_S)
        self._close_pipe()
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask the worker to end and return at once: its agent kills it after the grace."""
        self._told = True
        self._close_pipe()

    def end(self) -> None:
        """Block until the worker has ended, killing an agent (or ssh) that did not listen."""
        self.stop()
        try:
            self._process.wait(timeout=self._grace_s * 2 + AGENT_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, *orders: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it is dead already; wait() tells its exit code and its stderr tells why

    def _close_pipe(self) -> None:
        with self._pipe_lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                return

    @staticmethod
    def _thread(
        stream: str, work: Callable[..., None], source: IO[bytes] | None, **outputs: Output
    ) -> threading.Thread:
        name = f"hvd-output-{stream}"
        return threading.Thread(target=work, args=(source,), kwargs=outputs, name=name, daemon=True)

    def _follow(self, source: IO[bytes], *, out: Output, err: Output) -> None:
        """Take in the agent's news, the worker's output among them, to their end."""
        outputs = {"stdout": (Assembler(), out), "stderr": (Assembler(), err)}
        with contextlib.closing(out), contextlib.closing(err):
            with source:
                for line in source:
                    news = parse_news(line)
                    if news is None:
                        self._write(out, "stdout", [line.decode("utf-8", "replace")])
                    elif news["event"] == "output":
                        assembler, output = outputs[news["stream"]]
                        self._write(output, news["stream"], assembler.feed(news["text"]))
                    elif news["event"] == "started":
                        self._on_start(news["pid"])
            for stream, (assembler, output) in outputs.items():
                self._write(output, stream, assembler.flush())
            self._remarks.join()  # they go to the same place

    def _copy(self, source: IO[bytes], *, output: Output) -> None:
        """Pass on what the agent itself says, or ssh."""
        with source:
            for line in source:
                self._write(output, "stderr", [line.decode("utf-8", "replace")])

    def _write(self, output: Output, stream: str, lines: Sequence[str]) -> None:
        for line in lines:
            output.write(line, label=f"[{self._label()}]<{stream}>:")
