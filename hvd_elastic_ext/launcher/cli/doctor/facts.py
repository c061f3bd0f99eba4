"""Facts of the doctor as values, between the modules that gather them and those that judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - measured, not written to

Steps = Mapping[str, Mapping[str, Any]]
"""What an interpreter said of each thing it tried, by name."""


@dataclass(frozen=True, slots=True)
class InterpreterReport:
    """What an interpreter said of itself: the last word of each step, and how it ended.

    ``code`` is its exit code (negative: the signal that ended it, 255: ssh
    failed, None: it did not end in time); ``stderr`` its last complaint.
    """

    steps: Steps
    code: int | None
    stderr: str = ""

    @property
    def crashed_in(self) -> str | None:
        """The step it died in, if it died in one."""
        return next((name for name, facts in self.steps.items() if facts.get("trying")), None)

    @property
    def hostname(self) -> str:
        """The machine's own hostname; empty if the interpreter did not report it."""
        return str(self.steps.get("python", {}).get("hostname", ""))

    @property
    def addresses(self) -> tuple[str, ...]:
        """What the machine takes its own hostname for; empty if it does not resolve."""
        return tuple(self.steps.get("python", {}).get("addresses", ()))


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host of the job as seen from here. ``answer`` is None for names of this machine: no ssh is needed."""

    name: str
    addresses: tuple[str, ...]
    answer: InterpreterReport | None


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Everything a finding may rest on. Sizes in bytes; None where it could not be learnt."""

    answer: InterpreterReport
    compiler: str | None
    cmake: str | None
    ssh: str | None
    shared_memory: int | None
    open_files: int
    directory: str
    writable: bool
    hosts: tuple[HostFacts, ...] = ()
