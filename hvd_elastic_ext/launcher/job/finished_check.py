"""Checks whether a job's checkpoints show that it is done: by its command and scripts, from this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.user_files import read_regular
from hvd_elastic_ext.launcher.checkpoints.finished import Finished, read

log = logging.getLogger(__name__)

LOOK_S: Final = 30.0
"""Longest time for the launcher's own look at a folder; hosts look there again before they load."""
SCRIPTS: Final = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini")
"""Endings of files in a command that define the training, and that training does not write."""
MAX_SCRIPT_BYTES: Final = 1 << 20
"""Larger files are not read."""


def mark_of(command: Sequence[str]) -> str:
    """Return a hash of the command, and of the scripts and settings in it. A checkpoint of the end of training has
    it."""
    words = [word.encode("utf-8", "surrogateescape") for word in command]
    texts = [_text(Path(word)) for word in command if word.endswith(SCRIPTS)]
    return hashlib.blake2b(b"\0".join([*words, *texts]), digest_size=8).hexdigest()


def _text(path: Path) -> bytes:
    try:
        return read_regular(path, most=MAX_SCRIPT_BYTES)  # a pipe is for the script itself to read
    except (OSError, ValueError):
        return b""


def find(place: str, mark: str) -> Finished | None:
    """Look for it, if ``place`` is a folder that is visible from here; None also where that takes long, or fails."""
    if "://" in place or not any(Path(place).glob("*/manifest.json")):
        return None
    request = to_text({"do": "held", "place": place, "sides": {}, "urgent": True})
    command = module_command(sys.executable, "hvd_elastic_ext.checkpoint.programs.agent_requests")
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=LOOK_S, check=False)
        return read(json.loads(done.stdout), mark)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.info("%s cannot be looked at from here: %s", place, error)
        return None
