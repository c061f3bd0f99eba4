"""Jobs of a namespace of a cluster, for the list. Their journals are in their pods, and are not read."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.jobs.cluster import api, changes
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.reading.states import FAILED, FINISHED, JobStatus
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER
from hvd_elastic_ext.launcher.cli.dashboard import PORT

LEAST_PAUSE_S: Final = 5.0
SHARE: Final = 10.0
"""The pause between two requests is this many times the duration of the last one."""


class Namespace:
    """Asks the API server while a page shows the list, within the limits of :data:`LEAST_PAUSE_S` and :data:`SHARE`."""

    def __init__(self, cluster: Cluster, *, mono: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._mono = cluster, mono
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._rows: list[dict[str, Any]] = []
        self._problem = ""

    def answer(self) -> dict[str, Any]:
        """Return the ``jobs`` of the last answer, and the ``problem`` that prevented a newer one. May take seconds."""
        with self._lock:
            began = self._mono()
            if began >= self._next:
                try:
                    jobs = changes.all_of(self._cluster)
                    self._rows, self._problem = rows(jobs, self._cluster.namespace), ""
                except ElasticError as error:
                    self._problem = str(error)
                ended = self._mono()
                self._next = ended + max(LEAST_PAUSE_S, SHARE * (ended - began))
            return {"namespace": self._cluster.namespace, "jobs": self._rows, "problem": self._problem}


def rows(jobs: Sequence[JobStatus], namespace: str) -> list[dict[str, Any]]:
    """Return a row for each job. Pure."""
    return [
        {
            "name": job.name,
            "kind": job.kind,
            "state": job.state,
            "failed": job.state == FAILED,
            "message": job.message,
            "ready": job.ready,
            "asked": job.asked,
            "created": job.created,
            "do": remedy(job, namespace),
        }
        for job in jobs
    ]


def remedy(job: JobStatus, namespace: str) -> str:
    """Return how to see more of a job than the list shows. Pure."""
    where = f"-n {shlex.quote(namespace)}"
    events = f"`hvd-elastic events {shlex.quote(job.name)} {where}` tells what happened"
    launcher = next((pod.name for pod in job.pods if pod.role == LAUNCHER and pod.phase == "Running"), None)
    if job.state in FINISHED or launcher is None:
        return f"Its journal is not read here: {events}."
    forward = f"`kubectl port-forward {where} {shlex.quote(launcher)} {PORT}`"
    return (
        f"Its journal is not read here: {events}. If its command is `hvd-elastic run --dashboard {PORT} …`, {forward} "
        f"leads to its page; `hvd-elastic logs {shlex.quote(job.name)} {where}` has the address."
    )


def of(namespace: str, kubeconfig: Path | None) -> Namespace:
    """Return the namespace that the options name. Raises :class:`UsageError` without a cluster."""
    return Namespace(api.found(kubeconfig, os.environ, namespace))
