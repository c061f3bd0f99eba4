"""``run --dashboard``: the page of the job, served by a process of its own.

So reading the journal, and the requests of browsers, cannot slow down the launcher. The process ends with the launcher,
by a pipe.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io import process_tree
from hvd_elastic_ext.launcher.options.settings import LOOPBACK, ListenAddress

log = logging.getLogger(__name__)

PORT: Final = 8265
REQUIRED_PACKAGES: Final = ("starlette", "uvicorn", "bokeh")
VARIABLE: Final = "HVD_ELASTIC_DASHBOARD_TOKEN"
"""The variable with the token: other users can read command lines, but not variables."""
STOP_TIMEOUT_S: Final = 5.0
_ANY: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened at


@contextlib.contextmanager
def dashboard_process(address: ListenAddress | None, folder: Path, journal: Path) -> Iterator[None]:
    """Serve the page while the job runs. Raises :class:`UsageError` if that cannot be. None: nothing is served."""
    if address is None:
        yield
        return
    if missing := [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]:
        raise UsageError(f"--dashboard needs {', '.join(missing)}; pip install {' '.join(missing)}")
    token = secrets.token_urlsafe(24)
    with listening(address, where="--dashboard") as served:
        command = [sys.executable, "-m", "hvd_elastic_ext.cli", "dashboard", str(journal.absolute())]
        page = subprocess.Popen(
            [*command, "--state-dir", str(folder), "--inherit", str(served.fileno())],
            stdin=subprocess.PIPE,
            env={**os.environ, VARIABLE: token},
            pass_fds=(served.fileno(),),
            start_new_session=True,  # Ctrl-C is for the launcher, which ends it when the job has ended
        )
        log.info("dashboard: %s", page_url(served, token))
    try:
        yield
    finally:
        process_tree.end_by_pipe(page, within_s=STOP_TIMEOUT_S)


@contextlib.contextmanager
def listening(address: ListenAddress | None, *, where: str) -> Iterator[socket.socket]:
    """A socket that listens; None: at :data:`PORT` of this machine alone, or at a free port if that is taken.

    Raises :class:`UsageError` if that cannot be.
    """
    wanted = [ListenAddress(LOOPBACK, PORT), ListenAddress(LOOPBACK, 0)] if address is None else [address]
    served = None
    for each in wanted:
        try:
            family, _, _, _, found = socket.getaddrinfo(*each, type=socket.SOCK_STREAM)[0]
            served = socket.create_server(found[:2], family=family, backlog=64)
            break
        except OSError as error:  # also of a host that is not an address of this machine
            problem = f"{where} {each}: {error.strerror or error}; name another port"
    if served is None:
        raise UsageError(problem)
    with served:
        yield served


def page_url(served: socket.socket, token: str) -> str:
    """The URL to open. The token is the part after ``#``, which browsers do not send."""
    host, port = served.getsockname()[:2]
    host = socket.gethostname() if host in _ANY else host
    return f"http://{ListenAddress(host, port)}/#{token}"
