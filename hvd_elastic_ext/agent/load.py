"""The load of this host: in a container with limits, the container's load, else the machine's."""

from __future__ import annotations

import os
from typing import Final

CGROUP: Final = "/sys/fs/cgroup"
PROC: Final = "/proc"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Usage:
    """Compares processor time between two looks."""

    def __init__(self, cgroup: str = CGROUP, proc: str = PROC, cores: int | None = None) -> None:
        self._cgroup, self._proc = cgroup, proc
        self._cores = cores or len(os.sched_getaffinity(0))
        self._last: tuple[float, float, float] | None = None

    def look(self, now: float) -> dict[str, float]:
        """Return ``cpu`` and ``memory``: shares (0 to 1) of the host's limits; values that cannot be read are left out.

        ``cpu`` is the mean since the last look; the first look does not return it.
        """
        found = {}
        cpu, last = self._cpu(), self._last
        self._last = None
        if cpu is not None:
            used_s, cores = cpu
            self._last = (now, used_s, cores)
            if last is not None and now > last[0] and cores == last[2]:
                found["cpu"] = round(min(1.0, max(0.0, (used_s - last[1]) / (now - last[0]) / cores)), 4)
        memory = self._memory()
        if memory is not None:
            found["memory"] = round(memory, 4)
        return found

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
        known = _values(self._read(f"{self._proc}/meminfo"))
        total, there = known.get("MemTotal:"), known.get("MemAvailable:")
        return None if not total or there is None else max(0.0, 1.0 - there / total)

    def _read(self, path: str) -> str:
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - pathlib takes long to load
                return file.read()
        except (OSError, ValueError):
            return ""


def _values(text: str) -> dict[str, int]:
    """Read lines with a name and a number each."""
    words = [line.split() for line in text.splitlines()]
    return {each[0]: int(each[1]) for each in words if len(each) >= 2 and each[1].isdigit()}
