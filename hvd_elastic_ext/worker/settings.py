"""What the launcher tells a worker through its environment."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Read once, when the State is built."""

    host: str
    """This machine's name as the launcher knows it (``HOROVOD_HOSTNAME``)."""

    journal: Path | None = None
    """Where to append what happened (``HVD_ELASTIC_WORKER_JOURNAL``); used only if the file exists."""

    sample: float = 1.0
    """Seconds between two journalled steps or commits (``HVD_ELASTIC_SAMPLE``); 0 journals each."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerSettings:
        """Raises :class:`UsageError` for a sample interval that is none."""
        path = environ.get("HVD_ELASTIC_WORKER_JOURNAL")
        return cls(
            host=environ.get("HOROVOD_HOSTNAME") or socket.gethostname(),
            journal=Path(path) if path else None,
            sample=_seconds(environ.get("HVD_ELASTIC_SAMPLE") or "1.0"),
        )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"environment variable HVD_ELASTIC_SAMPLE is {text!r}; write seconds, 0 for every step")
    return value
