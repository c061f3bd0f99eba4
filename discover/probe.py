"""Asks the daemon over its socket file whether it is well: ``python -I -m discover.probe SOCKET /livez``.

For the probes of a container in which the daemon listens on a socket file only. A kubelet that asks by HTTP would need
a port that is open to the whole cluster. This module imports little, because it runs every few seconds.

Exit code: 0 if the daemon answers 200, 2 for wrong arguments, else 1. All but 0 come with one line on standard error.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence

WAIT = 4.0
"""Seconds to wait for the whole answer; a kubelet's ``timeoutSeconds`` should be longer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once, and return the exit code. ``argv`` has no program name; None takes the arguments of this process."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2 or not arguments[1].startswith("/"):
        sys.stderr.write("usage: python -I -m discover.probe SOCKET /livez|/startupz|/readyz\n")
        return 2
    path, target = arguments
    path = path.removeprefix("unix://")
    try:
        code, why = _asked(path, target)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{path}: {str(error) or type(error).__name__}\n")
        return 1
    if code == 200:
        return 0
    sys.stderr.write(f"{target}: {code} {why}\n")
    return 1


def _asked(path: str, target: str) -> tuple[int, str]:
    """Return the status and the body's first line. Raises ``OSError``, or ``ValueError`` for an answer of another
    program.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        until = time.monotonic() + WAIT
        connection.settimeout(WAIT)
        connection.connect(path)
        connection.sendall(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        while piece := _piece(connection, until):
            answer += piece
    head, _, body = answer.decode("utf-8", "replace").partition("\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise ValueError("no answer of hvd-discover")
    return int(words[1]), body.partition("\n")[0]


def _piece(connection: socket.socket, until: float) -> bytes:
    """Return the next bytes of an answer, empty at its end. Raises ``TimeoutError`` if none come before ``until``
    (monotonic seconds).
    """
    left = until - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("timed out")
    connection.settimeout(left)
    return connection.recv(4096)


if __name__ == "__main__":
    sys.exit(main())
