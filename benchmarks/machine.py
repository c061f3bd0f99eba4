"""The machine and the versions of a run."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hvd_elastic_ext import __version__


@dataclass(frozen=True, slots=True)
class Machine:
    """``load``: the load average over 1, 5 and 15 minutes before the run."""

    cpu: str
    cores: int
    kernel: str
    python: str
    torch: str
    horovod: str
    ours: str
    load: tuple[float, float, float]

    def lines(self) -> list[str]:
        """Return two lines of text."""
        load = " ".join(f"{value:.2f}" for value in self.load)
        return [
            f"Machine: {self.cpu}, {self.cores} cores, {self.kernel}; load average before the run: {load}.",
            f"Versions: Python {self.python}, torch {self.torch}, Horovod {self.horovod}, hvd-elastic-ext {self.ours}.",
        ]


def this_machine() -> Machine:
    """Return the present state of the machine of this process."""
    return Machine(
        cpu=cpu_model(_text(Path("/proc/cpuinfo"))),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=_version("torch"),
        horovod=_version("horovod"),
        ours=__version__,
        load=os.getloadavg(),
    )


def cpu_model(cpuinfo: str) -> str:
    """Return the model that ``/proc/cpuinfo`` names, or else the architecture."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model") and value.strip():
            return " ".join(value.split())
    return platform.machine()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
