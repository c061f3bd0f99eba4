"""A Unix socket in the job's folder, on which a running launcher answers its own user.

One JSON object a line, answered by one JSON object a line. Only the launcher's
user (and root) may ask: the socket is 0600, and the kernel names the peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.accepting import Listener
from hvd_elastic_ext.io.peers import user_of
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.io.threads.beside import report

LOG = logging.getLogger(__name__)
MAX_LINE: Final = 64 << 10
"""Bytes of one request."""
MAX_ANSWER: Final = 64 << 20
REMOVE_S: Final = 2.0
"""Longest wait for the removal of the socket at the end."""
IDLE_S: Final = 10.0
"""A client that is idle for this long is disconnected."""
MAX_CLIENTS: Final = 16
"""At a time; more are refused, so that clients cannot block the launcher."""
Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class AdminSocket:
    """Answers requests with ``handler``, which is called in the event loop and must not block.

    An :class:`ElasticError` that it raises is answered as ``{"error": its line}``.
    """

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler
        self._listening: socket.socket | None = None
        self._listener: Listener | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._defects: set[str] = set()
        self._inode = -1

    @property
    def open(self) -> bool:
        """Whether it listens."""
        return self._listener is not None

    async def start(self) -> bool:
        """Listen. False, with a warning, if that is impossible: the job runs without it."""
        try:
            self._listening = self._bind()
        except OSError as error:
            LOG.warning("%s: cannot listen (%s); `hvd-elastic hosts` will not reach this launcher", self._path, error)
            return False
        self._listener = Listener(self._listening, self._came, name=str(self._path))
        return True

    async def stop(self) -> None:
        """Disconnect all clients and stop. May be repeated."""
        listener, self._listener = self._listener, None
        if listener is None or self._listening is None:
            return
        listener.close()
        self._listening.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        with contextlib.suppress(OSError, TimeoutError):  # its disk may not answer
            await BackgroundCalls().call(self._remove, within_s=REMOVE_S)

    def _remove(self) -> None:
        if self._path.lstat().st_ino == self._inode:  # else a newer launcher's
            self._path.unlink()

    def _bind(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            with short_name(self._path) as name:
                listening.bind(name)
            self._path.chmod(0o600)  # in time: no process can connect before listen()
            self._inode = self._path.lstat().st_ino
            listening.listen(MAX_CLIENTS)
        except OSError:
            listening.close()
            raise
        listening.setblocking(False)
        return listening

    def _came(self, connection: socket.socket, _: object) -> None:
        if len(self._clients) >= MAX_CLIENTS or user_of(connection) not in (0, os.geteuid()):
            connection.close()
            return
        task = asyncio.ensure_future(self._serve(connection))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, connection: socket.socket) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE)
            await self._answer_all(reader, writer)
        except (OSError, TimeoutError, asyncio.TimeoutError):
            pass  # the client has disconnected, or sends nothing
        except asyncio.CancelledError:
            pass  # by stop(); nothing awaits this task
        finally:
            connection.close() if writer is None else writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), IDLE_S)
            except ValueError:
                line = b"too long"
            if not line:
                return
            answer = self._answer(line)
            writer.write(to_text(answer).encode("ascii") + b"\n")
            await asyncio.wait_for(writer.drain(), IDLE_S)
            if line == b"too long":
                return

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return {"error": f"a request is one JSON object on one line of at most {MAX_LINE} bytes"}
        try:
            return self._handler(request)
        except ElasticError as error:
            return {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - beside training
            report(error, self._defects, "the job goes on; a request of this user is not answered")
            return {"error": f"a defect of hvd-elastic: {type(error).__name__}: {error}"}


def ask(path: Path, request: Mapping[str, Any], *, timeout: float = IDLE_S) -> Mapping[str, Any]:
    """Send one request to the launcher at ``path``; blocks up to ``timeout`` seconds.

    Raises ``ConnectionError`` or ``FileNotFoundError`` if no launcher listens there, :class:`UsageError` if the
    listener is neither this user nor root, ``TimeoutError`` without an answer, ``ValueError`` for an invalid one.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(timeout)
        with short_name(path) as name:
            asking.connect(name)
        if (user := user_of(asking)) not in (0, os.geteuid()):
            raise UsageError(
                f"{path}: user {user} answers there, not your launcher; ask as that user, if it is his job"
            )
        asking.sendall(to_text(request).encode("ascii") + b"\n")
        with asking.makefile("rb") as answers:
            line = answers.readline(MAX_ANSWER)
    if not line:
        raise ConnectionResetError("disconnected without an answer")
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name of ``path`` that is short enough for a socket address."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
