"""Jobs on a cluster, from Python: the same functions as the commands, with typed values instead of text.

Each function takes ``namespace`` and ``kubeconfig``, by default those that kubectl would use. All raise
:class:`UsageError` for an invalid argument or a job that does not exist, and :class:`ApiError` if the
API server refuses a request or does not answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.errors import ApiError as ApiError
from hvd_elastic_ext.jobs.cli import events as job_events
from hvd_elastic_ext.jobs.cluster import api, changes, making
from hvd_elastic_ext.jobs.cluster import logs as job_logs
from hvd_elastic_ext.jobs.cluster.changes import STATES, State
from hvd_elastic_ext.jobs.cluster.making import rendered_of, with_key
from hvd_elastic_ext.jobs.reading.job_events import EventLine
from hvd_elastic_ext.jobs.reading.states import JobStatus
from hvd_elastic_ext.jobs.spec.job import Job


def submit(job: Job, *, dry_run: bool = False, namespace: str = "", kubeconfig: Path | None = None) -> tuple[str, ...]:
    """Create a job. Returns a note for each option that has no equivalent in its kind. ``dry_run``: the server checks
    everything and creates nothing. If a folder (``sync``) is too large for a ConfigMap, waits until the launcher's pod
    runs, and sends the folder to it.
    """
    cluster = api.found(kubeconfig, os.environ, namespace)
    chosen = job if job.kind else job.on(making.kind_for(cluster, job.command))
    rendered = rendered_of(chosen)
    objects = with_key(rendered, chosen)
    if dry_run:
        making.try_out(cluster, objects)
    else:
        making.create(cluster, objects)
        if rendered.archive:
            making.send(cluster, job.name, rendered.archive)
    return rendered.notes


def get(name: str, *, namespace: str = "", kubeconfig: Path | None = None) -> JobStatus:
    """Return the present status of a job and its pods."""
    return changes.look(api.found(kubeconfig, os.environ, namespace), name)


def all_jobs(
    *, labels: str = "", everywhere: bool = False, namespace: str = "", kubeconfig: Path | None = None
) -> list[JobStatus]:
    """Return every job that was submitted to the namespace, or to any (``everywhere``). ``labels``: only jobs with
    these labels, such as ``team=a,tier!=b``."""
    cluster = api.found(kubeconfig, os.environ, namespace)
    return changes.all_of(cluster.within("") if everywhere else cluster, labels)


def logs(
    name: str,
    *,
    follow: bool = False,
    rank: int | None = None,
    previous: bool = False,
    tail: int | None = None,
    since_s: int | None = None,
    namespace: str = "",
    kubeconfig: Path | None = None,
) -> Iterator[str]:
    """Yield lines of a job's output, with their line ends, of all ranks or of one. ``follow``: until the job has ended;
    ``since_s``: only of the last seconds."""
    cluster = api.found(kubeconfig, os.environ, namespace)
    return job_logs.lines(cluster, name, job_logs.LogOptions(follow, rank, previous, tail, since_s=since_s))


def events(name: str, *, namespace: str = "", kubeconfig: Path | None = None) -> list[EventLine]:
    """Return the events of a job, the oldest first: Kubernetes Events of its pods, and rows of its launcher's
    journal."""
    return job_events.of_job(api.found(kubeconfig, os.environ, namespace), name).lines


def scale(name: str, workers: int, *, namespace: str = "", kubeconfig: Path | None = None) -> None:
    """Set the number of workers, within the job's limits."""
    changes.scale(api.found(kubeconfig, os.environ, namespace), name, workers)


def suspend(name: str, *, namespace: str = "", kubeconfig: Path | None = None) -> None:
    """Suspend a job: its launcher makes a checkpoint, then its pods are deleted until it is resumed."""
    changes.suspend(api.found(kubeconfig, os.environ, namespace), name)


def resume(name: str, *, namespace: str = "", kubeconfig: Path | None = None) -> None:
    """Resume a suspended job."""
    changes.resume(api.found(kubeconfig, os.environ, namespace), name)


def wait(
    name: str,
    state: State = "succeeded",
    *,
    timeout_s: float | None = None,
    namespace: str = "",
    kubeconfig: Path | None = None,
) -> str:
    """Wait until a job is in a state. Returns that state. Raises ``NotReached`` if the job ends in another state, or
    takes longer than ``timeout_s`` seconds (default: no limit)."""
    if state not in STATES:
        raise UsageError(f"state {state!r} is not one of {', '.join(STATES)}")
    cluster = api.found(kubeconfig, os.environ, namespace)
    return changes.wait_for(cluster, name, STATES[state], within_s=timeout_s)


def delete(name: str, *, namespace: str = "", kubeconfig: Path | None = None) -> bool:
    """Delete a job and all objects that were made for it. Return whether anything existed."""
    return bool(changes.delete(api.found(kubeconfig, os.environ, namespace), name))
