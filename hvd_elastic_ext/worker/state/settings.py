"""The launcher's settings for a worker, from the environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings, read once when the State is built."""

    host: str = ""
    """This machine's name as the launcher knows it (``HOROVOD_HOSTNAME``)."""

    journal: Path | None = None
    """Where to append what happened (``HVD_ELASTIC_WORKER_JOURNAL``); used only if the file exists."""

    sample: float = 1.0
    """Seconds between two journalled steps or commits (``HVD_ELASTIC_SAMPLE``); 0 journals each."""

    incarnation: int = 0
    """Number of the launcher that started this process (``HVD_ELASTIC_INCARNATION``)."""

    local_size: int = 1
    """Training processes on this host (``HOROVOD_LOCAL_SIZE``, or the number from torchrun, Open MPI or the plan)."""

    verify: bool = False
    """Whether to compare all shared state after every sync, by a hash (``HVD_ELASTIC_VERIFY=1``)."""

    last_commit: bool = False
    """Whether checkpoints are made, so that the end of training must be committed (``HVD_ELASTIC_LAST_COMMIT=1``)."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerSettings:
        """Read the settings. Raises :class:`UsageError` for an invalid sample interval."""
        path = environ.get("HVD_ELASTIC_WORKER_JOURNAL")
        return cls(
            host=environ.get("HOROVOD_HOSTNAME") or socket.gethostname(),
            journal=Path(path) if path else None,
            sample=_seconds(environ.get("HVD_ELASTIC_SAMPLE") or "1.0"),
            incarnation=_number("HVD_ELASTIC_INCARNATION", environ.get("HVD_ELASTIC_INCARNATION") or "0"),
            local_size=_local_size(environ),
            verify=environ.get("HVD_ELASTIC_VERIFY", "") not in ("", "0"),
            last_commit=environ.get("HVD_ELASTIC_LAST_COMMIT") == "1",
        )


def _seconds(text: str) -> float:
    value = durations.parse(text)
    if value is None:
        raise UsageError(
            f"environment variable HVD_ELASTIC_SAMPLE is {text!r}; write a time, such as 2s, or 0 for every step"
        )
    return value


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"environment variable {name} is {text!r}; it is a number, set by the launcher of the workers")
    return int(text)


def _local_size(environ: Mapping[str, str]) -> int:
    for name in ("HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if environ.get(name, "").isdigit():
            return max(1, int(environ[name]))
    planned = environ.get("HVD_ELASTIC_PLAN", "").split(",")  # set in a process that has not joined its job yet
    return max(1, int(planned[3])) if len(planned) == 6 and planned[3].isdigit() else 1
