"""The output of containers, by pod. Tests write it; clients read and follow it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from tests.support.kube import statuses, web
from tests.support.kube.requests import Call

if TYPE_CHECKING:
    from tests.support.kube.handler import Handler

LOOK_S: Final = 0.05


class Logs:
    """A pod without output counts as not started. Each line has its own time, one second after the previous line."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._changed = threading.Condition()
        self._lines: dict[str, list[str]] = {}
        self._before: dict[str, list[str]] = {}
        self._ended: set[str] = set()
        self._cuts = 0

    def start(self, pod: str) -> None:
        """Let the pod's container run. Earlier output becomes that of the previous container."""
        with self._changed:
            if pod in self._lines:
                self._before[pod] = self._lines[pod]
            self._lines[pod] = []
            self._changed.notify_all()

    def write(self, pod: str, *lines: str) -> None:
        with self._changed:
            self._lines.setdefault(pod, []).extend(lines)
            self._changed.notify_all()

    def end(self, pod: str) -> None:
        """End the output, so that clients that follow it come to its end."""
        with self._changed:
            self._ended.add(pod)
            self._changed.notify_all()

    def of(self, pod: str) -> list[str]:
        """Return the pod's output so far."""
        with self._changed:
            return list(self._lines.get(pod, []))

    def cut(self) -> None:
        """Break the connections of clients that follow output now."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def answer(self, handler: Handler, call: Call, pod: dict[str, Any]) -> None:
        """Answer a request for output. Raises ApiError 400 for a container that has not started, or that the pod does
        not have.
        """
        known = [each["name"] for each in pod["spec"]["containers"]]
        container = call.option("container") or known[0]
        if container not in known:
            raise statuses.bad_request(f"container {container} is not valid for pod {call.name}")
        lines = (self._before if call.flag("previous") else self._lines).get(call.name)
        if lines is None:
            kind = "previous terminated container" if call.flag("previous") else "container"
            raise statuses.bad_request(f'{kind} "{container}" in pod "{call.name}" is waiting to start')
        first = max(0, len(lines) - call.number("tailLines")) if call.option("tailLines") else 0
        if since := call.option("sinceTime"):
            first = max(first, sum(_time(number) < since for number in range(len(lines))))
        if seconds := call.number("sinceSeconds"):  # counted back from the newest line
            first = max(first, len(lines) - min(len(lines), seconds))
        handler._begin(200, {"Content-Type": "text/plain", "Transfer-Encoding": "chunked"})
        self._send(handler, call, lines, first)

    def _send(self, handler: Handler, call: Call, lines: list[str], first: int) -> None:
        with self._changed:
            cuts = self._cuts
        while True:
            with self._changed:
                fresh = list(enumerate(lines))[first:]
                done = not call.flag("follow") or call.name in self._ended
                if self._cuts != cuts or self._stopping.is_set() or web.peer_gone(handler.connection):
                    handler.abort()
                    return
                if not fresh and not done:
                    self._changed.wait(LOOK_S)
                    continue
            for number, line in fresh:
                stamp = f"{_time(number)} " if call.flag("timestamps") else ""
                data = f"{stamp}{line}\n".encode()
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            first += len(fresh)
            if done:
                handler.wfile.write(b"0\r\n\r\n")
                return


def _time(number: int) -> str:
    return f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000000000Z"
