"""Connections of another user: ``python many_connections.py HOST PORT COUNT drip|deaf``.

It prints "round" when all exist, and each time that all were used.

``drip`` sends a byte of a request from time to time. ``deaf`` sends requests and reads no answer. A connection that the
server closes is opened again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import time

NOBODY = 65534
ROUND_S = 1.0
"""Seconds for one round over all connections. Each is used rarely: only their number should be a load."""

WORDS = {
    "drip": b"G",
    "deaf": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
}


def main(host: str, port: int, count: int, how: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 256), hard))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    crowd = [_connected(host, port) for _ in range(count)]
    pause = 0.0
    while True:
        for place, connection in enumerate(crowd):
            if not _spoke(connection, how):
                connection.close()
                crowd[place] = _connected(host, port)
                _spoke(crowd[place], how)
            time.sleep(pause)
        print("round", flush=True)
        pause = ROUND_S / count


def _connected(host: str, port: int) -> socket.socket:
    connection = socket.socket()
    if how == "deaf":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(5)
    with contextlib.suppress(OSError):
        connection.connect((host, port))
    connection.setblocking(False)
    return connection


def _spoke(connection: socket.socket, how: str) -> bool:
    """Send the words. Return False if the other side has closed the connection."""
    try:
        connection.send(WORDS[how])
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


if __name__ == "__main__":
    how = sys.argv[4]
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), how)
