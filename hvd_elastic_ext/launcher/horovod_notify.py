"""Tell a Horovod worker that hosts have changed, without believing or waiting for what listens at its address.

Horovod's own client unpickles whatever answers, signed with a key that the
registration named, and waits for ever. Here the answer's signature is its
whole meaning, and every step has a timeout.
"""

from __future__ import annotations

import hmac
import io
import socket
import struct
from collections.abc import Iterable
from typing import Any, Final

from horovod.runner.common.util.network import Wire
from horovod.runner.common.util.secret import DIGEST_LENGTH, compute_digest
from horovod.runner.elastic.worker import HostsUpdatedRequest

TIMEOUT_S: Final = 5.0
"""For connecting, and for each part of the answer."""
MAX_ANSWER: Final = 64 * 1024

Place = tuple[str, int]


class WorkerClient:
    """One worker's notification service, at the first of ``places`` that answers."""

    def __init__(self, places: Iterable[Place], key: bytes, *, timeout_s: float = TIMEOUT_S) -> None:
        self._places = tuple(places)
        self._key = key
        self._timeout_s = timeout_s

    def notify_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Raises ``OSError`` if no place took the message and said so."""
        failure = OSError("the worker registered no address")
        for place in self._places:
            try:
                return self._send(place, HostsUpdatedRequest(timestamp, result))
            except OSError as error:
                failure = OSError(f"{place[0]}:{place[1]}: {error}")
        raise failure

    def _send(self, place: Place, request: HostsUpdatedRequest) -> None:
        with socket.create_connection(place, self._timeout_s) as connection, connection.makefile("rwb") as stream:
            Wire(self._key).write(request, stream)
            digest = _exactly(stream, DIGEST_LENGTH)
            (length,) = struct.unpack("i", _exactly(stream, 4))
            if not 0 <= length <= MAX_ANSWER:
                raise OSError(f"an answer of {length} bytes")
            if not hmac.compare_digest(digest, compute_digest(self._key, _exactly(stream, length))):
                raise OSError("an answer signed with another key")


def _exactly(stream: io.BufferedRWPair, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise OSError("the connection ended before the answer did")
    return data
