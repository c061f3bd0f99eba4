"""Ports for programs that have to be told one before they listen."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A free port of 127.0.0.1 below those that the system hands out by itself: nobody gets it before it is used."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
