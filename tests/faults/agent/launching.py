"""Launchers for tests: over an agent's own pipes (:class:`Agent`), or in a thread that accepts connections of
agents."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.messages.wire import KEY_SIZE, LauncherWire, WireError
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

STRICT = ("-W", "error")
AGENT = [sys.executable, *STRICT, "-m", "hvd_elastic_ext.agent"]
GRACE_S = 30.0
JOB, HOST = "job-1", "h1"
WAIT = (
    "import os, time\nprint('up', os.environ.get('HVD_ELASTIC_RENDEZVOUS_PORT'), flush=True)\nwhile True: time.sleep(1)"
)
LINKED = """
import json, os, socket, sys, time
link = socket.socket(fileno=int(os.environ["HVD_ELASTIC_LINK"]))
lines = link.makefile("r")
def say(**message): link.sendall(json.dumps(message).encode() + b"\\n")
def hear(): return json.loads(lines.readline())
"""

Begin = Callable[..., RunningProcess]


def start_order(slot: int, *argv: str | Path | int, **more: object) -> dict[str, Any]:
    return {"do": "start", "slot": slot, "argv": list(map(str, argv)), "grace_s": 0.5, **more}


def python(slot: int, code: str, **more: object) -> dict[str, Any]:
    return start_order(slot, sys.executable, "-c", code, **more)


def linked(slot: int, code: str, **more: object) -> dict[str, Any]:
    return python(slot, LINKED + code, link=True, **more)


def socket_file(tmp_path: Path) -> Path:
    base = tmp_path / f"hvd-elastic-{os.geteuid()}"
    return next(base.glob(f"{JOB}.*/{HOST}.sock"), base / JOB / "none.sock")


class Said:
    """The messages of an agent."""

    said: Any

    def news(self, *events: str, slot: int | None = None) -> list[dict[str, Any]]:
        return [
            news
            for news in list(self.said)
            if (not events or news["event"] in events) and (slot is None or news.get("slot") == slot)
        ]

    def wait_for(self, event: str, slot: int | None = None, *, count: int = 1, timeout: float = 30) -> dict[str, Any]:
        """Wait for the ``count``-th message of this kind, and return it."""
        wait_until(
            lambda: len(self.news(event, slot=slot)) >= count,
            what=f"{event!r} number {count} of slot {slot}",
            timeout=timeout,
            show=lambda: [news for news in self.said if news["event"] != "beats"][-40:],
        )
        return self.news(event, slot=slot)[count - 1]

    def written(self, slot: int, stream: str = "stdout") -> bytes:
        """Return the exact output of a process."""
        texts = [news["text"] for news in self.news("output", slot=slot) if news["stream"] == stream]
        return "".join(texts).encode("utf-8", "surrogateescape")

    def wait_for_text(self, slot: int, text: bytes, *, timeout: float = 90) -> bytes:
        wait_until(lambda: text in self.written(slot), what=f"{text!r} of slot {slot}", timeout=timeout)
        return self.written(slot)

    def proxy_port(self, slot: int = 0) -> int:
        """Return the port of the rendezvous proxy of a slot that runs :data:`WAIT`."""
        return int(self.wait_for_text(slot, b"\n").split()[1])


class Agent(Said):
    """A running agent whose pipes lead to the test as its launcher."""

    def __init__(self, process: RunningProcess) -> None:
        self.process = process
        self._seen: list[dict[str, Any]] = []
        self._offset = 0

    @property
    def said(self) -> list[dict[str, Any]]:  # type: ignore[override]
        new = self.process.stdout[self._offset :].rpartition("\n")[0]
        self._seen += [json.loads(line) for line in new.splitlines()]
        self._offset += len(new) + 1 if new else 0
        return self._seen

    def order(self, *orders: dict[str, Any] | str) -> None:
        pipe = self.process.popen.stdin
        assert pipe is not None
        for order in orders:
            pipe.write((order if isinstance(order, str) else json.dumps(order)) + "\n")
        pipe.flush()

    def start(self, slot: int, *argv: str | Path | int, **more: object) -> None:
        self.order(start_order(slot, *argv, **more))

    def python(self, slot: int, code: str, *arguments: str | Path, **more: object) -> None:
        self.start(slot, sys.executable, "-c", code, *arguments, **more)

    def hang_up(self) -> None:
        assert self.process.popen.stdin is not None
        self.process.popen.stdin.close()


class Session(Said):
    """One connection of an agent. Without ``welcome``, its hello gets no answer."""

    def __init__(self, connection: socket.socket, key: bytes, welcome: dict[str, Any] | None) -> None:
        self.said: list[dict[str, Any]] = []
        self.problem: str | None = None
        self.closed = False
        self._connection = connection
        self._wire = LauncherWire(key)
        self._welcome = welcome
        self._lock = threading.Lock()
        self._reading = threading.Event()
        self._reading.set()
        connection.sendall(self._wire.greeting)
        self._thread = threading.Thread(target=self._read, daemon=True, name="session")
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := self._connection.recv(1 << 16):
                for message in self._wire.feed(data):
                    self.said.append(message)
                    if message["event"] == "hello" and self._welcome is not None:
                        self.order(self._welcome)
                self._reading.wait()
        except WireError as error:
            self.problem = str(error)
        except OSError:
            pass
        self.closed = True
        self._connection.close()

    def stand_still(self) -> None:
        self._reading.clear()

    def go_on(self) -> None:
        self._reading.set()

    def order(self, *orders: dict[str, Any]) -> None:
        with self._lock:
            for order in orders:
                self._connection.sendall(self._wire.seal(order))

    def hang_up(self) -> None:
        self._reading.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)

    def wait_for_end(self) -> None:
        """Wait until the connection ends: then all messages are read, even if the agent has ended before."""
        wait_until(lambda: self.closed, what="the end of the connection", timeout=30)

    @property
    def hello(self) -> dict[str, Any]:
        wait_until(lambda: self.said or self.problem, what="a hello", show=lambda: (self._wire.ready, self.closed))
        return self.said[0]


class Launcher:
    """See the module's docstring."""

    def __init__(self, *, incarnation: int = 1, key: bytes | None = None, grace_s: float = GRACE_S) -> None:
        self.key = key or os.urandom(KEY_SIZE)
        self.incarnation = incarnation
        self.grace_s = grace_s
        self.sessions: list[Session] = []
        self.welcomes = True
        self.options: dict[str, Any] = {}
        """Those of the job, in a welcome."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._over, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, daemon=True, name="launcher")
        self._thread.start()

    def _accept(self) -> None:
        while self._over not in select.select([self._listener, self._over], [], [])[0]:
            connection, _ = self._listener.accept()
            self.sessions.append(Session(connection, self.key, self.welcome() if self.welcomes else None))

    def welcome(self) -> dict[str, Any]:
        times = {"heartbeat_s": 0.2, "orphan_grace_s": self.grace_s}
        return {"do": "welcome", "incarnation": self.incarnation, **times, **self.options}

    def line(self, **more: object) -> str:
        order = {"do": "join", "job": JOB, "host": HOST, "key": self.key.hex(), "launcher": ["127.0.0.1", self.port]}
        return json.dumps({**order, "incarnation": self.incarnation, "orphan_grace_s": self.grace_s, **more}) + "\n"

    def session(self, number: int = 1, *, timeout: float = 20) -> Session:
        """Return the ``number``-th connection, once the hello of its agent has come."""
        wait_until(lambda: len(self.sessions) >= number, what=f"connection {number}", timeout=timeout)
        session = self.sessions[number - 1]
        assert session.hello["event"] == "hello"
        return session

    def close(self) -> None:
        """Close all connections, as if the launcher were killed."""
        if self._thread.is_alive():
            self._end.send(b"x")
            self._thread.join(10)
            for end in (self._listener, self._over, self._end):
                end.close()
            for session in self.sessions:
                session.hang_up()


@contextlib.contextmanager
def launching(**options: Any) -> Iterator[Launcher]:
    with contextlib.closing(Launcher(**options)) as launcher:
        yield launcher


@contextlib.contextmanager
def agent_process(line: str, runtime: Path, *, preset: str = "") -> Iterator[RunningProcess]:
    """Run an agent that gets ``line``, with its socket below ``runtime``. ``preset``: code that runs before it
    begins."""
    main = f"{preset}\nfrom hvd_elastic_ext.agent.__main__ import main\nraise SystemExit(main())"
    command = [sys.executable, *STRICT, "-c", main] if preset else AGENT
    with run_process(command, stdin=subprocess.PIPE, env={"XDG_RUNTIME_DIR": str(runtime)}) as process:
        assert process.popen.stdin is not None
        process.popen.stdin.write(line)
        process.popen.stdin.flush()
        yield process
    check_all_was_closed(process)


def check_all_was_closed(process: RunningProcess) -> None:
    """Check that an agent that ended by itself left no socket, file or process to the garbage collector."""
    assert "ResourceWarning" not in process.stderr, process.stderr
