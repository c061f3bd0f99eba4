"""Starts the child that polls, starts it again if it ends, and keeps the last notice."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, Final, NoReturn, Protocol

from hvd_elastic_ext.agent.descriptors import CHUNK, EventLoop, Lines, close_all_but, read_available, redirect_to_null
from hvd_elastic_ext.agent.notices.files import Notice
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import process_tree

AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""Shortest and longest pause before an ended child is started again. It doubles each time, unless the child ran long
enough."""


class Listener(Protocol):
    """Receives each change."""

    def cloud_notice(self) -> None: ...
    def cloud_advice(self, reason: str | None) -> None: ...
    def cloud_problem(self, source: str, problem: str | None) -> None: ...


class CloudWatch:
    """Polls ``source``, at ``url`` if given. A notice is valid until the next one."""

    def __init__(self, loop: EventLoop, source: str, url: str | None, *, listener: Listener) -> None:
        self.looks_at = (source, url)
        self.going: Notice | None = None
        self._loop, self._listener = loop, listener
        self._advice: str | None = None
        self._problem: tuple[str, str] | None = None
        """The cloud that does not answer, and why."""
        self._lines = Lines(CHUNK)
        self._end: socket.socket | None = None
        self._again_at: float | None = None
        self._ended = 0
        """Number of children in a row that have ended soon after their start."""
        self._begun_at = loop.now()
        self._begin()

    def due(self) -> float | None:
        """The loop's time at which the child is started again; None while it runs, and after ``close``."""
        return self._again_at

    def tick(self) -> None:
        """Start the child again once the pause after its end is over."""
        if self._again_at is not None and self._loop.now() >= self._again_at:
            self._begin()

    def close(self) -> None:
        """Close the pipe. The child then ends by itself, when its request is answered."""
        self._again_at = None
        if self._end is not None:
            self._loop.unwatch(self._end.fileno())
            self._end.close()
            self._end = None

    def _begin(self) -> None:
        self._again_at, self._begun_at = None, self._loop.now()
        self._lines = Lines(CHUNK)
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            self._wait()
            return
        try:
            if process_tree.fork() == 0:
                _be_child(*self.looks_at, theirs.fileno(), self.going)
        except OSError:
            ours.close()
            self._wait()
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._end = ours
        self._loop.watch(ours.fileno(), self._read)

    def _wait(self) -> None:
        now = self._loop.now()
        self._ended = 1 if now - self._begun_at > AGAIN_MAX_S else self._ended + 1
        self._again_at = now + pause_after(self._ended, first=AGAIN_S, longest=AGAIN_MAX_S)

    def _read(self) -> None:
        assert self._end is not None
        data = read_available(self._end)
        if data is None:
            return
        if not data:
            self.close()
            self._wait()
        for line in self._lines.feed(data):
            if line is not None:
                self._take_message(json.loads(line))

    def _take_message(self, message: dict[str, Any]) -> None:
        if "problem" in message:
            self._take_problem(None if message["problem"] is None else (message["cloud"], message["problem"]))
            return
        self._take_problem(None)
        self.going = None if message["going"] is None else Notice(*message["going"])
        self._listener.cloud_notice()
        if message["advice"] != self._advice:
            self._advice = message["advice"]
            self._listener.cloud_advice(self._advice)

    def _take_problem(self, problem: tuple[str, str] | None) -> None:
        before, self._problem = self._problem, problem
        if problem is not None and problem != before:
            self._listener.cloud_problem(*problem)
        elif problem is None and before is not None:
            self._listener.cloud_problem(before[0], None)


def _be_child(source: str, url: str | None, pipe: int, before: Notice | None) -> NoReturn:
    try:
        process_tree.die_with_parent()
        redirect_to_null()
        close_all_but((pipe,))
        # Loaded in the child only: it takes longer than loading the agent.
        from hvd_elastic_ext.agent.notices.poller import serve

        serve(source, url, pipe, before=before)
    except BaseException as error:  # noqa: BLE001 - the main loop of a process
        with contextlib.suppress(OSError):
            message = {"cloud": source, "problem": f"asking it failed: {type(error).__name__}: {error}"}
            os.write(pipe, to_text(message).encode("ascii") + b"\n")
    finally:
        os._exit(0)
