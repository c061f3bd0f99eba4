"""What a job runs, for ``hvd-elastic replay``: it lies in the job's folder, since nobody else may write there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from hvd_elastic_ext.core.json_text import to_text


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """The program of a job that was started with ``--replay``."""

    command: tuple[str, ...]
    cwd: str
    """The folder in which it was started."""
    engine: str
    variables: Mapping[str, str]
    """Those before the command, but for secrets."""
    checkpoints: str | None
    """Where they go; None: none are made."""
    adopts: bool = False
    secrets: tuple[str, ...] = ()
    """The names of variables before the command whose values are not kept."""

    def encode(self) -> str:
        """Return it as text."""
        return to_text(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RecordedProgram:
        """Read what :meth:`encode` wrote. Raises ``ValueError``, ``TypeError`` or ``LookupError`` for others."""
        found = json.loads(text)
        checkpoints = found["checkpoints"]
        return cls(
            tuple(map(str, found["command"])),
            str(found["cwd"]),
            str(found["engine"]),
            {str(name): str(value) for name, value in found["variables"].items()},
            None if checkpoints is None else str(checkpoints),
            bool(found["adopts"]),
            tuple(map(str, found["secrets"])),
        )
