"""A command in a pod, with the interface of a child process. A thread of its own carries its streams.

The thread may wait for a server that hangs; the loop never does. The thread reads again only when the loop has taken
the previous data, so nothing is lost and buffers stay small. A busy loop slows down the thread, and in the end the
command.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.io.kube.paths import is_label
from hvd_elastic_ext.launcher.agents.transports.child_process import Lines

if TYPE_CHECKING:
    from hvd_elastic_ext.core.clock import Clock
    from hvd_elastic_ext.io.kube.access import Access
    from hvd_elastic_ext.io.kube.exec import StreamTimeouts

log = logging.getLogger(__name__)

EXIT_CODE_UNKNOWN: Final = 255
"""Exit code where the command's own is not known; ssh uses the same one."""
KILLED: Final = 137
CONNECT_S: Final = 10.0
KEEP_S: Final = 5.0
"""How long credentials that were read are used again, unless they are refused: many pods can start together without
a read for each."""
_LOOK_S: Final = 1.0
ROLE: Final = (
    'the launcher\'s service account needs a Role with {apiGroups: [""], resources: ["pods"], verbs: ["get"]} and '
    '{apiGroups: [""], resources: ["pods/exec"], verbs: ["get", "create"]}'
)
"""A WebSocket needs ``get``; servers from 1.35 on also want ``create``."""
REMEDIES: Final = {
    401: "its token is missing or has expired",
    403: ROLE,
    404: "with --rsh pod hosts have names of pods, as hvd-discover publishes them",
}
_SERVICE: Final = re.compile(r"(?P<pod>[^.]+)\.[^.]+\.(?P<namespace>[^.]+)\.svc(\..+)?")
_ADDRESS: Final = re.compile(r"[0-9.]+")


class Pod(NamedTuple):
    """``namespace``: None is that of the credentials; within a cluster, that of the launcher's own pod."""

    name: str
    namespace: str | None = None


def pod_of(host: str) -> Pod:
    """Return the pod that a host name means: a pod's own name, alone or as in ``pod.service.namespace.svc``.

    Raises ``ValueError``, one line, for a name that is not a pod's.
    """
    problem = name_error(host)
    if problem is not None:
        raise ValueError(problem)
    if _ADDRESS.fullmatch(host):
        raise ValueError(f"host {host!r} is an address; with --rsh pod hosts have names of pods")
    found = _SERVICE.fullmatch(host)
    pod = Pod(found["pod"], found["namespace"]) if found else Pod(host.partition(".")[0])
    bad = next((label for label in (pod.name, pod.namespace) if label and not is_label(label)), None)
    if bad is not None:
        raise ValueError(
            f"host {host!r}: {bad!r} is not the name of a pod or namespace: small letters, digits and '-' only"
        )
    return pod


def words_in(directory: Path, words: Sequence[str]) -> list[str]:
    """Run ``words`` in ``directory``; a pod without it still runs commands given by absolute path."""
    return ["sh", "-c", 'cd "$1" 2>/dev/null; shift; exec "$@"', "sh", str(directory), *words]


class Stream(Protocol):
    """The streams of a command that runs. For one thread, except for ``cut``."""

    def send(self, data: bytes) -> None:
        """Pass on input. Raises :class:`ApiError`."""

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """Yield each channel number with its data, to the end. Raises :class:`ApiError` if the connection breaks."""

    def cut(self) -> None:
        """End it from any thread, whatever is under way. May be called after :meth:`close`."""

    def close(self) -> None:
        """Close the connection."""


Open = Callable[[Pod, Sequence[str]], Stream]
"""Runs a command in a pod. Raises :class:`ApiError`."""


def by_exec(access: Access, *, timeouts: StreamTimeouts | None = None, clock: Clock | None = None) -> Open:
    """Return what runs commands in the default containers of pods. Loads the official client: half a second, 45 MB."""
    from hvd_elastic_ext.io.kube import exec as pod_streams
    from hvd_elastic_ext.io.kube.client import Client, Timeout

    limits = timeouts or pod_streams.TIMEOUTS
    timeout = Timeout(CONNECT_S, limits.answer)
    client = Client(access, timeout=timeout, keep_s=KEEP_S, remedies=REMEDIES, server="", clock=clock)
    return lambda pod, words: pod_streams.run(client, pod.name, words, namespace=pod.namespace or "", timeouts=limits)


class Exec:
    """A command in a pod, with the interface of a
    :class:`hvd_elastic_ext.launcher.agents.transports.child_process.Child`.

    ``start`` runs it; it may wait, and raise :class:`ApiError`. ``line`` goes to its input, which stays open.
    ``on_line(stream, text)`` is called for each line of "stdout" and "stderr", without its end, in the loop. Raises
    ``OSError`` if no thread can be started for it.
    """

    _numbers = itertools.count(1)

    def __init__(self, start: Callable[[], Stream], line: bytes, *, on_line: Callable[[str, str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = start
        self._to_send: deque[bytes] = deque([line])
        self._on_line = on_line
        self._lines = {"stdout": Lines(), "stderr": Lines()}
        self.code: asyncio.Future[int] = self._loop.create_future()
        """The exit code, set after the last line is passed on; EXIT_CODE_UNKNOWN if the command did not run, or its end
        is not known."""
        self.why = ""
        """Why it is unknown."""
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._over = False
        name = f"pod-exec-{next(self._numbers)}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:  # a limit on processes: this command fails, as it does if a fork fails
            raise OSError(errno.EAGAIN, f"no thread can be started: {os.strerror(errno.EAGAIN)}") from None

    def write(self, *pieces: bytes) -> None:
        """Write more to its input. Call it within ``on_line`` only: the thread sends it before it reads on."""
        self._to_send.extend(pieces)

    def kill(self) -> None:
        """End the thread and its connection. A command that runs continues; its input ends."""
        with self._lock:
            self._over, stream = True, self._stream
        if stream is not None:
            stream.cut()
        if not self.code.done():
            self.code.set_result(KILLED)

    close = kill

    async def killed(self) -> None:
        """As :meth:`kill`: there is no process to wait for."""
        self.kill()

    def hand_over(self) -> None:
        """A command in a pod is not a child of this process."""

    # --- in a thread of its own

    def _serve(self) -> None:
        ended = None
        why = "the connection to the pod was lost"
        try:
            stream = self._start()
            try:
                ended = self._carry(stream)
            finally:
                stream.close()
        except ApiError as error:
            why = str(error)
        except Exception as error:  # else the caller would wait for ever
            log.exception("a command in a pod")
            why = f"a defect: {type(error).__name__}"
        with contextlib.suppress(RuntimeError):  # the loop has gone
            self._loop.call_soon_threadsafe(self._ended, ended or pods.Outcome(None, why))

    def _carry(self, stream: Stream) -> pods.Outcome | None:
        """Pass on its output; return how it ended, if the server reports that."""
        with self._lock:
            if self._over:
                return None
            self._stream = stream
        self._send(stream)
        names = {pods.STDOUT: "stdout", pods.STDERR: "stderr"}
        for channel, data in stream.receive():
            if channel == pods.ERROR:
                return pods.outcome(data)
            if channel in names:
                self._hand_over(names[channel], data)
                self._send(stream)
        return None

    def _send(self, stream: Stream) -> None:
        """Send waiting input, and keep none of it: it contains secrets."""
        while self._to_send:
            stream.send(self._to_send.popleft())

    def _hand_over(self, stream: str, data: bytes) -> None:
        """Pass the data to the loop, and wait until the loop has taken it."""
        taken = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop has gone
            self._loop.call_soon_threadsafe(self._take, stream, data, taken)
            while not (taken.wait(_LOOK_S) or self._over or self._loop.is_closed()):
                pass

    # --- in the loop

    def _take(self, stream: str, data: bytes, taken: threading.Event) -> None:
        try:
            self._pass_on(stream, self._lines[stream].feed(data))
        finally:
            taken.set()

    def _ended(self, outcome: pods.Outcome) -> None:
        for stream, lines in self._lines.items():
            self._pass_on(stream, lines.end())
        self.why = outcome.why
        if not self.code.done():
            self.code.set_result(EXIT_CODE_UNKNOWN if outcome.code is None else outcome.code)

    def _pass_on(self, stream: str, lines: Iterable[str]) -> None:
        for line in lines:
            if not self._over:
                self._on_line(stream, line)
