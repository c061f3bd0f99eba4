"""Agents of pods that are only names of this machine: their ``preStop`` notice and their end."""

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
    """Return the agents that have started processes for the host of this pod. Only processes with one of the marks
    ``within`` count.
    """
    found = set()
    for pid in marks.marked(RUN_MARK, within.__contains__):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get("HOROVOD_HOSTNAME", "").partition(".")[0] == name:
                agents = [each.pid for each in process.parents() if is_agent(each.cmdline())]
                found.update(agents[-1:])  # the others are forks of this one
    return sorted(found)


def tell(pids: Collection[int], *, deadline: float) -> None:
    """Give agents the notice of ``preStop``, as ``hvd_elastic_ext.agent.prestop`` does in a pod. ``deadline``: in Unix
    seconds.
    """
    notice = json.dumps({"reason": prestop.REASON, "deadline": deadline})
    for pid in pids:
        for path in prestop.notice_files(pid):
            Path(f"{path}.new").write_text(notice)
            Path(f"{path}.new").replace(path)
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).send_signal(signal.SIGTERM)


def run(pids: Collection[int]) -> bool:
    """Whether one of these processes still runs."""
    return any(marks.start_time(pid) is not None for pid in pids)


def kill(pids: Collection[int]) -> None:
    """Kill these processes and all that they have started, as the end of their pod does."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            marks.kill([pid, *(each.pid for each in root.children(recursive=True))])
