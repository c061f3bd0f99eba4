"""Runs a command in a pod of a job, with the streams of this process.

One thread copies all streams, because two cannot use one TLS connection. With a terminal, keys go to the pod as they
are pressed, Ctrl-C too, and signals that end this process restore the terminal first.
"""

from __future__ import annotations

import os
import signal
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.io.kube.errors import ApiError, client_needed
from hvd_elastic_ext.jobs.cluster.api import MISSING, Body, Cluster
from hvd_elastic_ext.jobs.rendering.objects import main_container

if TYPE_CHECKING:
    from hvd_elastic_ext.io.kube.exec import WebSocketStream

SIZE: Final = 4
"""The channel for the size of the terminal."""
LOOK_S: Final = 1.0
"""Seconds between two checks of the terminal's size."""
PIECE: Final = 32 << 10

Write = Callable[[int, bytes], object]
"""Takes output, with its channel: :data:`pods.STDOUT` or :data:`pods.STDERR`."""


class NotAttached(Permanent):
    """A command could not be run in a pod, or its exit code is not known."""


def run(
    cluster: Cluster,
    body: Body,
    words: Sequence[str],
    *,
    source: int | None,
    write: Write,
    terminal: bool = False,
    container: str = "",
) -> int:
    """Run ``words`` in a container of a pod, the main one if none is named; its exit code. ``source``: the descriptor
    with its input.

    ``terminal``: it gets one, and ``source`` is one. Raises :class:`NotAttached`.
    """
    with client_needed(MISSING):
        from hvd_elastic_ext.io.kube import exec as pod_streams
    try:
        stream = pod_streams.run(
            cluster.client,
            body["metadata"]["name"],
            words,
            namespace=cluster.namespace,
            container=container or main_container(body)["name"],
            stdin=source is not None,
            tty=terminal,
        )
        with ExitStack() as stack:
            stack.callback(stream.close)
            if terminal and source is not None:
                stack.enter_context(_raw(source))
            ended = _carry(stream, source, write, terminal=terminal)
    except ApiError as error:
        raise NotAttached(f"pod {body['metadata']['name']}: {error}") from None
    if ended is None or ended.code is None:
        why = "the connection was lost" if ended is None else ended.why
        raise NotAttached(f"pod {body['metadata']['name']}: {why}")
    return ended.code


def _carry(stream: WebSocketStream, source: int | None, write: Write, *, terminal: bool) -> pods.Outcome | None:
    """Copy the streams until the command has ended, in one thread: two threads cannot use one TLS connection."""
    size: tuple[int, int] | None = None
    while True:
        if terminal and source is not None and (now := _size(source)) != size:
            size = now
            stream.send(to_text({"Width": size[0], "Height": size[1]}).encode(), channel=SIZE)
        message, typed = stream.wait(source, LOOK_S)
        if typed and source is not None:
            data = os.read(source, PIECE)
            if data:
                stream.send(data)
            else:
                source = None
                stream.end_input()
        if not message:
            continue
        taken = stream.take()
        if taken is None:
            return None
        for channel, data in taken:
            if channel == pods.ERROR:
                return pods.outcome(data)
            if channel in (pods.STDOUT, pods.STDERR):
                write(channel, data)


def _size(source: int) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(source)
    except OSError:
        return 80, 24
    return size.columns, size.lines


@contextmanager
def _raw(source: int) -> Iterator[None]:
    """Each key goes to the pod as it is pressed, Ctrl-C too. Signals that end this process raise ``SystemExit``."""
    before = termios.tcgetattr(source)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in handlers.items():
            if handler != signal.SIG_IGN:  # under nohup, SIGHUP stays ignored
                signal.signal(number, _ended)
        tty.setraw(source)
        yield
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _ended(number: int, _: object) -> None:
    raise SystemExit(128 + number)
