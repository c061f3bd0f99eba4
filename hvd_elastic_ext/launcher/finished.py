"""A job whose checkpoints say that it is done: the same command has nothing more to do."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.agent_command import module_command

log = logging.getLogger(__name__)

LOOK_S: Final = 30.0
"""How long the launcher's own look at a folder may take; hosts look there again before they load."""


SCRIPTS: Final = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini")
"""Endings of files in a command that say what is trained, and that training does not write."""
LARGEST: Final = 1 << 20
"""Bytes of such a file that is looked at."""


class Finished(NamedTuple):
    """The checkpoint that holds the end of training."""

    path: str
    step: int


def mark_of(command: Sequence[str]) -> str:
    """By what a checkpoint tells of which command it is the end: a longer training is another command.

    So is one whose scripts or settings have changed, as far as they stand in the command and can be read here.
    """
    words = [word.encode("utf-8", "surrogateescape") for word in command]
    texts = [_text(Path(word)) for word in command if word.endswith(SCRIPTS)]
    return hashlib.blake2b(b"\0".join([*words, *texts]), digest_size=8).hexdigest()


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= LARGEST else b""
    except OSError:
        return b""


def said(found: Finished, place: str) -> str:
    """What the user is told, and what they may do."""
    return (
        f"the job is done: step {found.step} is in {found.path}, by this very command and its scripts; "
        "to train on from there add --train-on, "
        f"to begin anew name another --checkpoint-dir, or remove {place}"
    )


def read(answer: Any, mark: str) -> Finished | None:
    """From the answer to ``held``: the newest checkpoint, if it is the end of the command of that ``mark``."""
    match answer:
        case {"newest": {"path": str(path), "step": int(step), "finished": str(finished)}} if mark and finished == mark:
            return Finished(path, step)
    return None


def find(place: str, mark: str) -> Finished | None:
    """Look from here, if ``place`` is a folder that can be seen from here; None also if that takes long, or fails."""
    if "://" in place or not any(Path(place).glob("*/manifest.json")):
        return None
    request = json.dumps({"do": "held", "place": place, "sides": {}, "urgent": True})
    command = module_command(sys.executable, "hvd_elastic_ext.checkpoint.errand")
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=LOOK_S, check=False)
        return read(json.loads(done.stdout), mark)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.info("%s cannot be looked at from here: %s", place, error)
        return None
