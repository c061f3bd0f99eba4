"""The load of this host: its processors, memory and GPUs. In a container with limits, it is the container's load.

Loaded only in an agent whose job asks for it. GPUs are looked at through ``nvidia-ml-py``, if that is installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.agent.descriptors import EventLoop
from hvd_elastic_ext.agent.host_facts import devices

REPORT_S: Final = 10.0
"""Seconds between two reports of the host's load."""
CGROUP: Final = "/sys/fs/cgroup"
PROC: Final = "/proc"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class LoadReports:
    """Reports the host's load to the launcher: ``tell`` sends an event."""

    def __init__(self, loop: EventLoop, *, tell: Callable[..., None]) -> None:
        self._loop, self._tell = loop, tell
        self._usage: Usage | None = None
        self._gpus: Gpus | None = None
        self._due = loop.now()

    def due(self) -> float:
        """The loop's time at which ``tick`` is needed next."""
        return self._due

    def tick(self) -> None:
        """Report the load, if it is due."""
        now = self._loop.now()
        if now < self._due:
            return
        self._due = now + REPORT_S
        if self._usage is None:
            self._usage = Usage()
        elif self._gpus is None:  # not at the first look: an unused driver starts slowly
            self._gpus = Gpus(devices())
        load = {**self._usage.look(now), **({} if self._gpus is None else self._gpus.report())}
        if load:
            self._tell("usage", **load)


class Usage:
    """The load of processors and memory. Processor time is compared between two looks."""

    def __init__(self, cgroup: str = CGROUP, proc: str = PROC, cores: int | None = None) -> None:
        self._cgroup, self._proc = cgroup, proc
        self._cores = cores or len(os.sched_getaffinity(0))
        self._last: tuple[float, float, float] | None = None

    def look(self, now: float) -> dict[str, float]:
        """Return ``cpu`` and ``memory``: shares (0 to 1) of the host's limits; values that cannot be read are left out.

        ``cpu`` is the mean since the last look; the first look does not return it.
        """
        shares = {}
        cpu, last = self._cpu(), self._last
        self._last = None
        if cpu is not None:
            used_s, cores = cpu
            self._last = (now, used_s, cores)
            if last is not None and now > last[0] and cores == last[2]:
                shares["cpu"] = round(min(1.0, max(0.0, (used_s - last[1]) / (now - last[0]) / cores)), 4)
        memory = self._memory()
        if memory is not None:
            shares["memory"] = round(memory, 4)
        return shares

    def _cpu(self) -> tuple[float, float] | None:
        """Return the used processor seconds, and the number of cores."""
        quota = self._read(f"{self._cgroup}/cpu.max").split()
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
            used = _values(self._read(f"{self._cgroup}/cpu.stat")).get("usage_usec")
            if used is not None and int(quota[0]) > 0 and int(quota[1]) > 0:
                return used / 1e6, int(quota[0]) / int(quota[1])
        fields = self._read(f"{self._proc}/stat").partition("\n")[0].split()
        if len(fields) < 8 or not all(field.isdigit() for field in fields[1:8]):
            return None
        user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
        return (user + nice + system + irq + softirq) / _TICKS, float(self._cores)

    def _memory(self) -> float | None:
        limit, used = (self._read(f"{self._cgroup}/memory.{name}").strip() for name in ("max", "current"))
        if limit.isdigit() and used.isdigit() and int(limit) > 0:
            cache = _values(self._read(f"{self._cgroup}/memory.stat")).get("inactive_file", 0)
            return min(1.0, max(0, int(used) - cache) / int(limit))
        meminfo = _values(self._read(f"{self._proc}/meminfo"))
        total, available = meminfo.get("MemTotal:"), meminfo.get("MemAvailable:")
        return None if not total or available is None else max(0.0, 1.0 - available / total)

    def _read(self, path: str) -> str:
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - pathlib takes long to load
                return file.read()
        except (OSError, ValueError):
            return ""


def _values(text: str) -> dict[str, int]:
    """Read lines with a name and a number each."""
    lines = [line.split() for line in text.splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2 and words[1].isdigit()}


# --- GPUs ------------------------------------------------------------------------------------------------


MISSING = "nvidia-ml-py is not installed there (pip install nvidia-ml-py)"


class Gpu(NamedTuple):
    """One device."""

    name: str
    busy: float
    """Share of the last moments, up to 1 s, in which it computed."""
    used: int
    """Bytes of its memory that are in use."""
    memory: int
    """Bytes of its memory."""


class Gpus:
    """``names``: the devices, as in ``CUDA_VISIBLE_DEVICES``. The library is loaded at the first look.

    ``problem``: why there is no value; "" if nothing has failed.
    """

    def __init__(self, names: str, library: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._names = [name.strip() for name in names.split(",") if name.strip()]
        self._library = library
        self._nvml: Any = None
        self.problem = ""

    def look(self) -> list[Gpu]:
        """Return every device; none if a value of one is unknown."""
        if not self._names or self.problem == MISSING:
            return []
        try:
            nvml = self._nvml or self._library()
        except ImportError:
            self.problem = MISSING
            return []
        try:
            if self._nvml is None:
                nvml.nvmlInit()
                self._nvml = nvml
            gpus = [self._one(name) for name in self._names]
        except nvml.NVMLError as error:  # for example, a part of a GPU has no such figure
            self.problem = f"NVML: {error}"
            return []
        self.problem = ""
        return gpus

    def report(self) -> dict[str, Any]:
        """Return the values for the launcher: ``gpu``, the mean load, and ``gpu_memory``, the share in use.

        Or ``gpu_unknown``, why these are not known; nothing for a host without GPUs.
        """
        if gpus := self.look():
            busy = sum(gpu.busy for gpu in gpus) / len(gpus)
            used = sum(gpu.used for gpu in gpus) / max(1, sum(gpu.memory for gpu in gpus))
            return {"gpu": round(min(1.0, max(0.0, busy)), 4), "gpu_memory": round(min(1.0, max(0.0, used)), 4)}
        return {"gpu_unknown": self.problem} if self.problem else {}

    def _one(self, name: str) -> Gpu:
        device, nvml = self._device(name), self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        return Gpu(name, nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100, memory.used, memory.total)

    def _device(self, name: str) -> Any:
        """A device by its number or UUID."""
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
