"""Resolves a name in a child process, because the resolver may block, but the agent must not."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from hvd_elastic_ext.agent.descriptors import CHUNK, EventLoop, close_all_but
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import process_tree

LIMIT_S: Final = 2.0
"""Seconds that a resolver may take."""


class Found(NamedTuple):
    """The addresses of a name. ``problem``: why there are none."""

    addresses: tuple[str, ...]
    problem: str | None = None


class Lookup:
    """One lookup. ``then`` gets it with its result, within ``LIMIT_S``."""

    def __init__(self, loop: EventLoop, name: str, *, then: Callable[[Found], None]) -> None:
        self._loop = loop
        self._then = then
        self._deadline = loop.now() + LIMIT_S
        self._problem = f"the resolver did not answer within {LIMIT_S:g} s"
        self._received = b""
        self._reader = -1
        try:
            self._begin(name)
        except OSError as error:  # no descriptor or process is left; the next tick reports it
            self._deadline, self._problem = loop.now(), f"no resolver can be started: {error.strerror}"

    def _begin(self, name: str) -> None:
        reader, writer = os.pipe()
        try:
            if process_tree.fork() == 0:
                _be_child(name, writer)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._reader = reader
        self._loop.watch(reader, self._read)

    def due(self) -> float:
        """The loop's time at which the lookup is given up."""
        return self._deadline

    def tick(self) -> None:
        """After ``LIMIT_S``, give up: ``then`` gets the problem. Do not call it after the end of the lookup."""
        if self._loop.now() >= self._deadline:
            self._end(Found((), self._problem))

    def close(self) -> None:
        """Give up, and do not call ``then``."""
        if self._reader >= 0:
            self._loop.unwatch(self._reader)
            os.close(self._reader)
            self._reader = -1

    def _read(self) -> None:
        data = os.read(self._reader, CHUNK)
        self._received += data
        if not data:
            try:
                addresses, problem = json.loads(self._received)
            except ValueError:
                addresses, problem = (), "the resolver failed"
            self._end(Found(tuple(addresses), problem))

    def _end(self, result: Found) -> None:
        self.close()
        self._then(result)


def _be_child(name: str, writer: int) -> NoReturn:
    try:
        process_tree.die_with_parent()
        # The child ends itself by an alarm: a signal from the parent, by number, might hit another process.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        close_all_but((writer,))
        os.write(writer, to_text(resolve(name)).encode())
    finally:
        os._exit(0)


def resolve(name: str) -> Found:
    """Return the addresses of ``name``, in the resolver's order. This may block for any time."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Found((), f"{name} does not resolve: {getattr(error, 'strerror', None) or error}")
    return Found(tuple(dict.fromkeys(str(address[0]) for *_, address in answers)))


def family(address: str) -> int | None:
    """Address family of a numeric address; None for a name."""
    for number in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(number, address)
        except OSError:
            continue
        return number
    return None
