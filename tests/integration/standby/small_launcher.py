"""A small agent and launcher: links, rendezvous proxies, and worlds that form when all of their members have asked.

with Job() as job:
    first = job.start("alpha", SCRIPT)
    first.wait_said("parked")
    job.form(first)
    first.go()
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.messages.rank_info import ALONE, Place
from hvd_elastic_ext.worker import hook
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

HERE = Path(__file__).parent
HOLD_S = 2.0


def places(hosts: Sequence[str]) -> list[Place]:
    """Return the place of each process, by the host of each. Processes of one host are adjacent."""
    found = []
    for rank, host in enumerate(hosts):
        local = rank - hosts.index(host)
        crossing = [other for other in dict.fromkeys(hosts) if hosts.count(other) > local]
        found.append(Place(rank, len(hosts), local, hosts.count(host), crossing.index(host), len(crossing)))
    return found


class World:
    """One generation: its members, those that have asked, and its keys."""

    def __init__(self, generation: int, members: Mapping[Member, Place]) -> None:
        self.generation = generation
        self.places = members
        self.asked: set[Member] = set()
        self.keys: dict[str, bytes] = {}


class Member:
    """One training process, with its link and its proxy."""

    def __init__(self, job: Job, host: str) -> None:
        self.job = job
        self.host = host
        self.said: list[dict[str, Any]] = []
        self.beats: list[dict[str, Any]] = []
        self.world: World | None = None
        self.alone = True
        """Whether it is sent from ``hvd.init()`` to its training loop alone, as if others trained already."""
        self.process: RunningProcess
        self.end, self.its_end = socket.socketpair()
        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.proxy.daemon_threads = True
        self._threads = [
            threading.Thread(target=self.proxy.serve_forever, args=(0.02,), name="proxy", daemon=True),
            threading.Thread(target=self._listen, name="link", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        with self.end.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if message["say"] == "parked" and message["later"] and self.alone:
                    self.tell("alone")
                    continue
                (self.beats if message["say"] == "beat" else self.said).append(message)

    def tell(self, what: str, **fields: Any) -> None:
        self.end.sendall(json.dumps({"tell": what, **fields}).encode() + b"\n")

    def go(self) -> None:
        """Call a parked process to its place in the newest world."""
        place = self.job.newest.places[self]
        env = place.environment()
        port = str(self.proxy.server_address[1])
        env |= {"HOROVOD_GLOO_IFACE": "lo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
        self.tell("go", generation=self.job.newest.generation, env={**env, "HOROVOD_GLOO_RENDEZVOUS_PORT": port})

    def heard(self, what: str) -> list[dict[str, Any]]:
        return [message for message in list(self.said) if message["say"] == what]

    def wait_said(self, what: str, *, count: int = 1, timeout: float = 40.0) -> dict[str, Any]:
        """Wait for the ``count``-th message ``what``, and return it."""

        def look() -> dict[str, Any] | None:
            found = self.heard(what)
            if len(found) >= count:
                return found[count - 1]
            if self.process.returncode is not None:
                raise AssertionError(f"{self.host} ended ({self.process.returncode}): {self.process.output}")
            return None

        found = wait_until(
            look, what=f"{self.host} to say {what}", timeout=timeout, show=lambda: (self.said, self.process.output)
        )
        assert found is not None
        return found

    def steps(self) -> list[tuple[int, int, int]]:
        """Return (step, rank, size) of each step that it has printed."""
        lines = [line.split() for line in self.process.stdout.splitlines() if line.startswith("step ")]
        return [(int(words[1]), int(words[3]), int(words[5])) for words in lines if len(words) >= 6]

    def wait_step(self, *, size: int, more: int = 1, timeout: float = 40.0) -> None:
        """Wait for ``more`` further steps in a world of that size."""
        before = sum(found == size for _, _, found in self.steps())
        wait_until(
            lambda: sum(found == size for _, _, found in self.steps()) >= before + more,
            what=f"steps of {self.host} at size {size}",
            timeout=timeout,
            show=lambda: self.process.output,
        )

    def close(self) -> None:
        self.proxy.shutdown()
        self.proxy.server_close()
        for end in (self.end, self.its_end):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join()


class Job:
    """All members, and the newest world."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.closed = False
        self.newest = World(0, {})
        self._stack = contextlib.ExitStack()
        self._stop = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "stop"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self._stack.close()

    def start(
        self,
        host: str,
        *command: str | Path,
        plan: Place | None = None,
        env: Mapping[str, str] | None = None,
        python: Sequence[str | Path] = (sys.executable,),
        alone: bool = True,
    ) -> Member:
        """Start a training process with a link. ``plan``: the place that it sees while it is parked; ``alone``: as in
        :class:`Member`.
        """
        member = Member(self, host)
        member.alone = alone
        self._stack.callback(member.close)
        planned = plan or ALONE
        fd = member.its_end.fileno()
        environ = {
            "HVD_ELASTIC_LINK": str(fd),
            "HVD_ELASTIC_RENDEZVOUS_PORT": str(member.proxy.server_address[1]),
            "HVD_ELASTIC_PLAN": planned.text(),
            "HVD_ELASTIC_HEARTBEAT_INTERVAL": "0.1",
            "HOROVOD_HOSTNAME": host,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "30",
            "PYTHONPATH": f"{Path(hook.__file__).parent}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "STOP": str(self._stop),
            **(env or {}),
        }
        member.process = self._stack.enter_context(run_process([*python, *command], env=environ, pass_fds=[fd]))
        member.its_end.close()
        return member

    def form(self, *members: Member) -> World:
        """Begin the next generation; it has formed when all members have asked."""
        with self.changed:
            found = dict(zip(members, places([member.host for member in members]), strict=True))
            self.newest = World(self.newest.generation + 1, found)
            self.changed.notify_all()
        return self.newest

    def stop(self) -> None:
        """Let the trainees end."""
        self._stop.touch()

    def live(self, *members: Member) -> None:
        """Wait until the members are parked, and let them join one world."""
        for member in members:
            member.wait_said("parked")
        self.form(*members)
        for member in members:
            member.go()

    def update(self, *members: Member, leave: Sequence[Member] = (), in_s: float | None = None) -> None:
        """Notify members of a change of hosts. Those of ``leave`` must leave."""
        generation = self.newest.generation + 1
        for member in members:
            member.tell("update", generation=generation, leave=member in leave, in_s=in_s, reason="the test says so")

    def answer_rank(self, member: Member) -> bytes | None:
        """Return the place of ``member`` in a world newer than its last one, once all members have asked."""
        with self.changed:
            asked_in: World | None = None
            while not self.closed:
                world = self.newest
                if member in world.places and world is not member.world:
                    if asked_in is not world:
                        asked_in = world
                        world.asked.add(member)
                        self.changed.notify_all()
                    if world.asked == set(world.places):
                        member.world = world
                        place = world.places[member]
                        member.tell("world", generation=world.generation, rank=place.rank, size=place.size)
                        return place.text().encode()
                self.changed.wait()
        return None

    def answer_key(self, member: Member, path: str) -> bytes | None:
        deadline = time.monotonic() + HOLD_S
        world = member.world
        with self.changed:
            while world is not None and not self.closed and path not in world.keys:
                if not self.changed.wait(deadline - time.monotonic()):
                    return None
            return None if world is None else world.keys.get(path)

    def set_key(self, member: Member, path: str, value: bytes) -> None:
        with self.changed:
            if member.world is not None:
                member.world.keys[path] = value
            self.changed.notify_all()


def _handler(member: Member) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ranks = self.path.startswith("/rank_and_size/")
            job = member.job
            self._reply(job.answer_rank(member) if ranks else job.answer_key(member, self.path))

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            member.job.set_key(member, self.path, body)
            self._reply(b"")

        def do_DELETE(self) -> None:
            self._reply(b"")

        def _reply(self, body: bytes | None) -> None:
            with contextlib.suppress(OSError):
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """Log nothing: the test's output is for the trainees."""

    return Handler
