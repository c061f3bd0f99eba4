"""What an agent starts in a slot, by engine. Pure."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.slot_protocol import ENGINE, JOB, MARK, PROGRAM

HOROVOD = "horovod"


def slot_command(engine: str, command: Sequence[str]) -> tuple[str, ...]:
    """The job's command, or a program that stands by until that one's place is known."""
    return tuple(command) if engine == HOROVOD else (*module_command(sys.executable, PROGRAM), *command)


def slot_env(engine: str, *, job: str, mark: str) -> dict[str, str]:
    """What that program is told. Nothing secret: orders can be read on their way."""
    return {} if engine == HOROVOD else {ENGINE: engine, JOB: job, MARK: mark}
