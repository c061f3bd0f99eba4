"""Runs code in a Python that has the import hook on its path."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from hvd_elastic_ext.worker import hook

HOOK = str(Path(hook.__file__).parent)


def python(code: str, *flags: str, path: str, link: socket.socket | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": path}
    if link is not None:
        env["HVD_ELASTIC_LINK"] = str(link.fileno())
    fds = [link.fileno()] if link is not None else []
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=env, pass_fds=fds, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
