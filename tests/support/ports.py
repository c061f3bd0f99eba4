"""Ports for programs that need a port number before they listen."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """Return a free port of 127.0.0.1 below those that the system assigns itself, so that no other program gets it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
