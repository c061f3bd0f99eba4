"""Agents of pods that are only names of this machine: what their ``preStop`` tells, and what ends with them."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Collection
from pathlib import Path

import psutil

from hvd_elastic_ext.agent import prestop
from hvd_elastic_ext.core.commands import is_agent
from tests.support import marks
from tests.support.processes import RUN_MARK


def of_pod(name: str, within: Collection[str]) -> list[int]:
    """Agents that have started processes for the host of this pod, below what carries one of the marks ``within``."""
    found = set()
    for pid in marks.marked(RUN_MARK, within.__contains__):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get("HOROVOD_HOSTNAME", "").partition(".")[0] == name:
                agents = [each.pid for each in process.parents() if is_agent(each.cmdline())]
                found.update(agents[-1:])  # the others are its forks
    return sorted(found)


def tell(pids: Collection[int], *, deadline: float) -> None:
    """As ``hvd_elastic_ext.agent.prestop`` does to all agents that it sees: in a pod, its own alone."""
    notice = json.dumps({"reason": prestop.REASON, "deadline": deadline})
    for pid in pids:
        for path in prestop.notice_files(pid):
            Path(f"{path}.new").write_text(notice)
            Path(f"{path}.new").replace(path)
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).send_signal(signal.SIGTERM)


def run(pids: Collection[int]) -> bool:
    """Whether one of them still does."""
    return any(marks.start_time(pid) is not None for pid in pids)


def kill(pids: Collection[int]) -> None:
    """With all that they have started, as with the end of their pod."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            marks.kill([pid, *(each.pid for each in root.children(recursive=True))])
