"""Programs that an agent runs beside training, stopped before they do anything.

If a test found a program and stopped it, the program could be at any point by then, or have ended. So a program that
should stop does so itself, at the start of its interpreter.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROGRAM: Final = "hvd_elastic_ext.checkpoint.programs.agent_requests"
WANTED: Final = "wanted"

_CODE: Final = f"""
import contextlib, json, os, signal, sys

def stops(folder):
    try:
        request = json.loads(os.pread(0, 1 << 24, 0))
    except OSError:
        return False  # it is not an agent's: its request comes by a pipe
    try:
        with open(os.path.join(folder, {WANTED!r})) as file:
            wanted = request["do"] in file.read().split()
    except FileNotFoundError:
        wanted = False
    if "commit" not in request:
        return wanted
    # All programs that work on one commit stop, or none: the first one to begin decides.
    decided = os.path.join(folder, "-".join(map(str, [request["do"], *request["commit"]])))
    draft = f"{{decided}}.{{os.getpid()}}"
    with open(draft, "w") as file:
        file.write(str(wanted))
    with contextlib.suppress(FileExistsError):
        os.link(draft, decided)
    with open(decided) as file:
        return file.read() == "True"

if any({PROGRAM!r} in word for word in sys.orig_argv) and stops(os.path.dirname(__file__)):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


class Stopping:
    """``env``: for the process that starts the programs or their agents. ``folder``: is created."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_CODE)
        self._wanted = folder / WANTED
        self.env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}

    @contextlib.contextmanager
    def of(self, *do: str) -> Iterator[None]:
        """Stop the programs that begin within the context and that have to ``do`` one of these."""
        draft = self._wanted.with_suffix(".new")
        draft.write_text(" ".join(do))
        draft.replace(self._wanted)
        yield
        self._wanted.unlink()
