"""Jobs on a cluster: made, looked at, changed and ended from a laptop, by commands or from Python. Each folder may
import those below it::

    sdk, pipeline          the same as functions; a step of a Kubeflow pipeline
    cli, local             commands; a function as a job on this machine
    cluster                requests to an API server
    reading, conversion    objects of a cluster as values; objects of other projects as ours
    rendering              objects from a job
    spec                   one job, checked

Belongs here: the commands ``submit``, ``get``, ``logs`` and the others, what they share, and the same as functions
(``sdk``), which this module exports: :class:`Job`, :func:`submit`, :func:`get`, :func:`logs`, :func:`wait` and more.

Never here: what runs inside a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_elastic_ext.jobs.reading.job_events import EventLine
    from hvd_elastic_ext.jobs.reading.states import JobStatus, PodStatus
    from hvd_elastic_ext.jobs.sdk import all_jobs, delete, events, get, logs, resume, scale, submit, suspend, wait
    from hvd_elastic_ext.jobs.spec.job import Job, Toleration

__all__ = [
    "EventLine",
    "Job",
    "JobStatus",
    "PodStatus",
    "Toleration",
    "all_jobs",
    "delete",
    "events",
    "get",
    "logs",
    "resume",
    "scale",
    "submit",
    "suspend",
    "wait",
]

_WHERE = {
    "Job": "spec.job",
    "Toleration": "spec.job",
    "JobStatus": "reading.states",
    "PodStatus": "reading.states",
    "EventLine": "reading.job_events",
}


def __getattr__(name: str) -> Any:
    """Import each name at its first use: modules below this folder need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_WHERE.get(name, 'sdk')}"), name)
