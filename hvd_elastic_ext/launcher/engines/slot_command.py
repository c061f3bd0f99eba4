"""What an agent starts in a slot: the job's command, or the program that waits there for its world."""

from __future__ import annotations

import hashlib
import hmac
import sys
from collections.abc import Sequence

from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.engines import ENGINES
from hvd_elastic_ext.core.messages.slot_protocol import ENGINE, JOB, MARK, PROGRAM


def slot_command(engine: str, command: Sequence[str]) -> tuple[str, ...]:
    """The job's command, or a program that stands by until the rank of that command is known."""
    return tuple(command) if ENGINES[engine].in_place else (*module_command(sys.executable, PROGRAM), *command)


def slot_env(engine: str, *, job: str, mark: str) -> dict[str, str]:
    """Environment of that program. It holds no secret: orders are not encrypted."""
    return {} if ENGINES[engine].in_place else {ENGINE: engine, JOB: job, MARK: mark}


def mark_of(key: bytes) -> str:
    """A mark by which a host tells jobs apart. It is derived from the job's key and does not reveal it."""
    return hmac.new(key, b"ranks", hashlib.sha256).hexdigest()[:32]
