"""Which agents of a job still live on this machine after its launcher was killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path

from hvd_elastic_ext.core.commands import job_mark, socket_name
from hvd_elastic_ext.io import process_tree


class AgentState(Enum):
    """What is known of the processes on a host."""

    LIVE = "an agent of the job lives there"
    ENDED = "the host is this machine, and no agent of the job lives"
    UNKNOWN = "the host is another machine"


def agents_here(key: bytes) -> dict[str, int]:
    """By name of its socket, the pid of each agent of the job with this key on this machine, of this user's."""
    ours = (int(name.name) for name in Path("/proc").iterdir() if name.name.isdigit())
    return found_in({pid: process_tree.open_files(pid) for pid in ours if pid != os.getpid()}, key)


def found_in(files: Mapping[int, Iterable[str]], key: bytes) -> dict[str, int]:
    """The same, by the open files of processes: an agent holds its notice file, and so do its forks. Pure."""
    folder, found = f".{job_mark(key)}", dict[str, int]()
    for pid, paths in sorted(files.items()):
        for path in map(Path, paths):
            if path.parent.name.endswith(folder) and path.suffixes[-2:] == [".sock", ".notice"]:
                found.setdefault(path.name.removesuffix(".notice"), pid)
    return found


def agent_states(
    hosts: Iterable[str], agents: Mapping[str, int], is_here: Callable[[str], bool]
) -> dict[str, AgentState]:
    """The state of the processes on each host. ``agents``: see :func:`agents_here`. ``is_here`` may take long."""
    return {
        host: AgentState.LIVE
        if socket_name(host) in agents
        else AgentState.ENDED
        if is_here(host)
        else AgentState.UNKNOWN
        for host in hosts
    }
