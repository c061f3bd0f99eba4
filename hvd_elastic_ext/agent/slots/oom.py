"""Finds out whether the kernel killed a process for lack of memory, by a counter of the cgroup or of the machine."""

from __future__ import annotations


class OutOfMemory:
    """Reads a counter of the kernel at each call. One object serves all processes of an agent."""

    def __init__(self, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self._files = [*_of_cgroup(f"{proc}/self/cgroup", cgroups), f"{proc}/vmstat"]
        self._explained = 0
        """Value of the counter up to which kills are attributed to ended processes."""

    def explains(self, before: int) -> bool:
        """Whether the kernel killed one process for memory. ``before``: :meth:`count` at its start. Each count explains
        one end."""
        first = max(before, self._explained)
        if self.count() <= first:
            return False
        self._explained = first + 1
        return True

    def count(self) -> int:
        """Number of processes killed so far; 0 if unknown."""
        for path in self._files:
            for words in _lines(path):
                if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
                    return int(words[1])
        return 0


def _of_cgroup(own: str, mounts: str) -> list[str]:
    """Return the possible files of the counter, for both versions of cgroups, also those of a container's root."""
    found = []
    for (line,) in _lines(own, separator=None):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [f"{mounts}{path.rstrip('/')}/memory.events", f"{mounts}/memory.events"]
        elif "memory" in controllers.split(","):
            found += [f"{mounts}/memory{path.rstrip('/')}/memory.oom_control", f"{mounts}/memory/memory.oom_control"]
    return found


def _lines(path: str, *, separator: str | None = " ") -> list[list[str]]:
    try:
        with open(path) as file:  # noqa: PTH123 - pathlib takes long to load
            lines = file.read().splitlines()
    except OSError:
        return []
    return [[line] if separator is None else line.split(separator) for line in lines]
