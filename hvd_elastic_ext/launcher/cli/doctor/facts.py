"""Facts of the doctor as values, between the modules that gather them and those that judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - measured, not written to

Steps = Mapping[str, Mapping[str, Any]]
"""By name, what an interpreter reports of each thing that it tried."""


@dataclass(frozen=True, slots=True)
class InterpreterReport:
    """What an interpreter reports of itself: the last result of each step, and how it ended.

    ``code`` is its exit code (negative: the signal that ended it, 255: ssh failed, None: it did not end in time).
    ``stderr`` is the last line of its standard error.
    """

    steps: Steps
    code: int | None
    stderr: str = ""

    @property
    def crashed_in(self) -> str | None:
        """The step in which it crashed; None if it did not."""
        return next((name for name, facts in self.steps.items() if facts.get("trying")), None)

    @property
    def hostname(self) -> str:
        """The machine's own hostname; empty if the interpreter did not report it."""
        return str(self.steps.get("python", {}).get("hostname", ""))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the machine's own hostname; empty if it does not resolve."""
        return tuple(self.steps.get("python", {}).get("addresses", ()))


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host of the job as seen from here. ``answer`` is None for names of this machine: no ssh is needed."""

    name: str
    addresses: tuple[str, ...]
    answer: InterpreterReport | None


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """All facts for findings. Sizes are in bytes. None: unknown."""

    answer: InterpreterReport
    compiler: str | None
    cmake: str | None
    ssh: str | None
    shared_memory: int | None
    open_files: int
    directory: str
    writable: bool
    hosts: tuple[HostFacts, ...] = ()
