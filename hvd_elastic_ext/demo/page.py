"""The dashboard page of the demo's job: live, and as one file at the end.

The server is a child of the demo, not of the launcher, which the scenario kills. A pipe ends it with the demo in any
case. It gets the token in an environment variable, so that no command line and no file contains it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final, TextIO

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.demo.job import Folder
from hvd_elastic_ext.io import process_tree

NEEDED: Final = ("starlette", "uvicorn", "bokeh")
VARIABLE: Final = "HVD_ELASTIC_DASHBOARD_TOKEN"
ENDS_S: Final = 5.0
EXPORT_S: Final = 60.0


@contextlib.contextmanager
def served(folder: Folder, stream: TextIO, environ: Mapping[str, str]) -> Iterator[None]:
    """Print the page's address and serve the page; without the libraries for that print one line."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        stream.write(f"No live page of the job: pip install {' '.join(missing)}\n")
        stream.flush()
        yield
        return
    token = secrets.token_urlsafe(24)
    with socket.create_server(("127.0.0.1", 0)) as listening, folder.log.open("ab") as log:
        # Until the server has started, connections wait here.
        server = subprocess.Popen(
            [*_command(folder), "--inherit", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**environ, VARIABLE: token},
            pass_fds=(listening.fileno(),),
            start_new_session=True,  # Ctrl-C is for the demo
        )
        stream.write(f"Page of the job: http://127.0.0.1:{listening.getsockname()[1]}/#{token}\n")
        stream.flush()
    try:
        yield
    finally:
        process_tree.end_by_pipe(server, within_s=ENDS_S)


def export(folder: Folder) -> None:
    """Write the page into a file. Raises :class:`Permanent` if that fails."""
    command = [*_command(folder), "--export", str(folder.page)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=EXPORT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Permanent(f"the page of the job was not written within {EXPORT_S:g} s") from None
    if done.returncode:
        raise Permanent(f"the page of the job was not written: {done.stderr.strip() or f'exit code {done.returncode}'}")


def _command(folder: Folder) -> list[str]:
    words = ("dashboard", str(folder.journal), "--state-dir", str(folder.state))
    return [sys.executable, "-m", "hvd_elastic_ext.cli", *words]
