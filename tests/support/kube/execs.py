"""Commands in pods. They run on this machine, at a place that a test chooses, with their streams over a WebSocket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.kube import statuses
from tests.support.kube.execstreams import V4, V5, Session, upgrade
from tests.support.kube.requests import Call
from tests.support.kube.resources import Key
from tests.support.waiting import wait_until

Place = Callable[[Key, str, list[str]], list[str]]
"""Makes the command to run on this machine from a pod, one of its containers and a command."""


def here(pod: Key, container: str, command: list[str]) -> list[str]:
    """Run the command on this machine without a change."""
    return command


class Execs:
    """Tests set ``place``. ``commands``: the commands so far.

    ``protocols``: those that the server knows. Without v5 it is a server before 1.30, which sends answers of the
    kubelet. ``create_too``: the right to create is necessary too, as from 1.35 on. ``idle_s``: seconds without a
    message after which the server cuts a stream; real servers take four hours.
    """

    def __init__(self) -> None:
        self.place: Place = here
        self.commands: list[tuple[Key, str, list[str]]] = []
        self.protocols: tuple[str, ...] = (V5, V4)
        self.create_too = False
        self.idle_s: float | None = None
        self._lock = threading.Lock()
        self._sessions: list[Session] = []

    def run(self, handler: BaseHTTPRequestHandler, call: Call, pod: Mapping[str, Any]) -> None:
        """Use the connection of ``handler`` until the command has ended. Raises ApiError if it cannot begin."""
        container = _container(call, pod)
        query = parse_qs(urlsplit(handler.path).query)
        if not any(query.get(stream) == ["true"] for stream in ("stdin", "stdout", "stderr")):
            raise statuses.bad_request("you must specify at least one of stdin, stdout, stderr")
        if not query.get("command"):
            raise statuses.bad_request("you must specify at least one command for the container")
        if not pod["spec"].get("nodeName"):
            raise statuses.bad_request(f"pod {call.name} does not have a host assigned")
        if handler.headers.get("Upgrade", "").lower() != "websocket":
            raise statuses.bad_request("unable to upgrade: only WebSocket is spoken here")
        gone = None if _runs(pod, container) else f'container not found ("{container}")'
        if gone and V5 not in self.protocols:
            raise statuses.internal(f"unable to upgrade connection: {gone}")
        protocol = upgrade(handler, self.protocols)
        if protocol is None:
            return
        session = Session(handler.connection, protocol, idle_s=self.idle_s)
        if gone:
            session.refuse(f"unable to upgrade connection: {gone}")
            return
        self.commands.append((call.key, container, query["command"]))
        self._carry(session, self.place(call.key, container, query["command"]))

    def sessions(self) -> list[Session]:
        """Return the sessions whose commands run now, in the order in which they came."""
        with self._lock:
            return list(self._sessions)

    def wait_for(self, count: int, *, timeout: float = 60.0) -> list[Session]:
        """Wait until so many commands run; return their sessions. Raises AssertionError after ``timeout`` seconds."""
        wait_until(lambda: len(self.sessions()) >= count, what=f"{count} commands in pods", timeout=timeout)
        return self.sessions()

    def cut(self) -> None:
        """Break the connections of all commands."""
        for each in self.sessions():
            each.cut()

    def stop(self) -> None:
        """End all commands that still run, and their connections."""
        for each in self.sessions():
            each.kill()
            each.cut()

    def _carry(self, session: Session, command: list[str]) -> None:
        with self._lock:
            self._sessions.append(session)
        try:
            session.run(command)
        finally:
            with self._lock:
                self._sessions.remove(session)


def _container(call: Call, pod: Mapping[str, Any]) -> str:
    known = [each["name"] for each in pod["spec"]["containers"]]
    first = [each["name"] for each in pod["spec"].get("initContainers") or []]
    container = call.option("container")
    if not container and len(known) > 1:
        names = " ".join(known)
        raise statuses.bad_request(f"a container name must be specified for pod {call.name}, choose one of: [{names}]")
    if container and container not in (*known, *first):
        raise statuses.bad_request(f"container {container} is not valid for pod {call.name}")
    return container or str(known[0])


def _runs(pod: Mapping[str, Any], container: str) -> bool:
    """Whether the container runs. An init container runs while its pod is still pending."""
    status = pod["status"]
    if any(each["name"] == container for each in pod["spec"].get("initContainers") or []):
        found = [each for each in status.get("initContainerStatuses") or [] if each["name"] == container]
        return bool(found and (found[0].get("state") or {}).get("running"))
    return bool(status["phase"] == "Running")
