"""Looks at the jobs of a namespace, and changes them.

A job is the object that its kind represents it by (``ROOTS``); ``submit`` has labelled it, but one that was made by
hand is found by its name, too. Accounts differ in what they may read: kinds that are forbidden are left out and named,
and only if all are forbidden that is an error. Nothing is remembered between two commands: each looks at the cluster
again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Literal, NamedTuple

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.workload_kinds import BESIDE, ROOTS, WorkloadKind, at, nested
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, Patience, Sleep, WrongState, plural
from hvd_elastic_ext.jobs.reading.job_events import of_cluster, unix, why_not_made
from hvd_elastic_ext.jobs.reading.states import (
    FAILED,
    FINISHED,
    GONE,
    RUNNING,
    SLEEPING,
    SUCCEEDED,
    SUSPENDED,
    JobStatus,
    asked_for,
    seen,
    state_of,
)
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, LAUNCHER
from hvd_elastic_ext.jobs.rendering.render import BY, MANAGED, selector
from hvd_elastic_ext.launcher.sleep.replica_requests import BEFORE, Workload, change_request

LEFT: Final = (
    ("v1", "configmaps"),
    ("v1", "secrets"),
    ("v1", "services"),
    ("v1", "serviceaccounts"),
    *((kind.api_version, kind.plural) for kind in BESIDE),
    ("networking.k8s.io/v1", "networkpolicies"),
    ("rbac.authorization.k8s.io/v1", "rolebindings"),
    ("rbac.authorization.k8s.io/v1", "roles"),
)
"""Kinds of objects that a broken ``submit`` may leave without a job."""
LEAVES_S: Final = 60.0
"""Seconds for a launcher to make its last checkpoint and end, before its workers are deleted."""
LOOKS_S: Final = 2.0
"""Seconds between two reads of a job that a command waits for."""
KUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)


class NoSuchJob(UsageError):
    """There is no job of this name. The exit code is 1, as with kubectl. ``unread``: kinds of jobs that this account
    may not read."""

    exit_code = 1

    def __init__(self, why: str, unread: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.unread = tuple(unread)


class Found(NamedTuple):
    """Jobs, and the kinds of jobs that this account may not read."""

    jobs: list[JobStatus]
    unread: tuple[str, ...]


class NotReached(Permanent):
    """A job ended in another state than the awaited one, or the time limit passed."""


def all_of(cluster: Cluster, labels: str = "") -> list[JobStatus]:
    """Return every submitted job of the namespace (or of all) with these labels that this account may read, sorted by
    namespace and name."""
    return search(cluster, labels).jobs


def search(cluster: Cluster, labels: str = "") -> Found:
    """Return the jobs as :func:`all_of`, with the kinds that this account may not read."""
    wanted = ",".join(filter(None, (selector(), labels)))
    roots, unread = _of_each_kind(cluster, lambda kind: _roots(cluster, kind, wanted))
    pods: dict[str, list[Body]] = {}
    for each in cluster.listed("v1", "pods", JOB_LABEL) if roots else []:
        pods.setdefault(each["metadata"]["namespace"], []).append(each)
    jobs = []
    for root in roots:
        place = root["metadata"]["namespace"]
        jobs.append(seen(root, pods.get(place, []), _workers(cluster.within(place), root)))
    return Found(sorted(jobs, key=lambda job: (job.namespace, job.name)), unread)


def _of_each_kind(cluster: Cluster, ask: Callable[[WorkloadKind], list[Body]]) -> tuple[list[Body], tuple[str, ...]]:
    """Ask for jobs of every kind that the cluster has. Returns them, and the kinds that this account may not read.
    Raises :class:`ApiError` if it may read none.

    A server forbids also what it does not have, so which kinds it has is asked first.
    """
    jobs: list[Body] = []
    unread: list[str] = []
    refusal: ApiError | None = None
    read = 0
    for kind in ROOTS.values():
        try:
            if not kind.built_in and not cluster.has(kind.api_version, kind.plural):
                continue
            jobs += ask(kind)
            read += 1
        except ApiError as error:
            if error.reason is not Reason.FORBIDDEN:
                raise
            unread.append(kind.kind)
            refusal = error
    if refusal is not None and not read:
        raise refusal
    return jobs, tuple(unread)


def not_read(kinds: Sequence[str]) -> str:
    """Return a note about kinds of jobs that this account may not read; "" without any. Pure."""
    return f"your account may not read {' and '.join(f'{kind}s' for kind in kinds)}" if kinds else ""


def root_of(cluster: Cluster, name: str) -> Body:
    """Return the object that represents the job, also one made by hand. Raises :class:`NoSuchJob` if there is none."""
    roots, unread = _named(cluster, name)
    if roots:
        return roots[0]
    try:
        names = [job.name for job in all_of(cluster)]
        hint = nearest(name, names) if names else "nothing was submitted here"
    except ApiError as error:  # a user who may read one job may lack the right to list all jobs
        if not error.answered:
            raise
        hint = "its jobs could not be listed"
    raise NoSuchJob(
        "; ".join(filter(None, (f"there is no job {name} in namespace {cluster.namespace}", hint, not_read(unread)))),
        unread,
    )


def _named(cluster: Cluster, name: str) -> tuple[list[Body], tuple[str, ...]]:
    """Return all submitted jobs of this name, or else the first existing job of this name that was made by hand; and
    the kinds that this account may not read."""
    _check(name)

    def ask(kind: WorkloadKind) -> list[Body]:
        body = cluster.read(cluster.path(kind.api_version, kind.plural, name))
        return [] if body is None else [{**body, "apiVersion": kind.api_version, "kind": kind.kind}]

    roots, unread = _of_each_kind(cluster, ask)
    return [each for each in roots if _is_ours(each)] or roots[:1], unread


def _is_ours(root: Body) -> bool:
    return (root["metadata"].get("labels") or {}).get(MANAGED) == BY


def _check(name: str) -> None:
    """Refuse an invalid name. With an empty name, a path would mean all objects of a kind, and labels all jobs."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"NAME {name!r} is not the name of a job: small letters, digits, '-' and '.'")


def look(cluster: Cluster, name: str) -> JobStatus:
    """Return one job. Raises :class:`NoSuchJob` if there is none."""
    root = root_of(cluster, name)
    found = seen(root, pods_of(cluster, root), _workers(cluster, root))
    return found if found.message or not found.waits_for_pods else replace(found, message=_refused(cluster, found))


def pods_of(cluster: Cluster, root: Body, *, role: str = "") -> list[Body]:
    """Return the pods of a job, of one role or of all. A job that was made by hand, or by ``convert``, may lack our
    labels; its operator's are the same."""
    name = root["metadata"]["name"]
    pods = cluster.listed("v1", "pods", selector(name, role=role))
    if pods or _is_ours(root):
        return pods
    return cluster.listed("v1", "pods", ROOTS[root["kind"]].selector(name, role=role))


def _refused(cluster: Cluster, job: JobStatus) -> str:
    """Return why the pods of a job are not made, as its newest warning says; "" if that is not known."""
    try:
        events = cluster.listed("v1", "events", fields="type=Warning")
    except ApiError as error:
        if not error.answered:
            raise
        return ""
    return why_not_made(of_cluster(events, job.name, ()), job.name, since=unix(job.created))


def _roots(cluster: Cluster, kind: WorkloadKind, labels: str) -> list[Body]:
    # Items of a list have no kind of their own.
    found = cluster.listed(kind.api_version, kind.plural, labels)
    return [{**each, "apiVersion": kind.api_version, "kind": kind.kind} for each in found]


def _workers_path(cluster: Cluster, root: Body, subresource: str = "") -> str:
    """Return the path of the object that makes a job's workers."""
    kind, name = ROOTS[root["kind"]].workers(root["metadata"]["name"])
    return cluster.path(kind.api_version, kind.plural, name, subresource)


def _workers(cluster: Cluster, root: Body) -> Body | None:
    """Return what makes a job's workers, if that is another object."""
    return cluster.read(_workers_path(cluster, root)) if ROOTS[root["kind"]].workers_in else None


def scale(cluster: Cluster, name: str, workers: int) -> None:
    """Set the number of workers; 0 removes workers that outlive their job. Raises :class:`UsageError` for a number
    outside the limits of the job."""
    root = root_of(cluster, name)
    maker = _workers(cluster, root)
    job = seen(root, (), maker)
    low, high = job.least or 1, job.most
    if workers == 0 and maker is not None and job.state in FINISHED:
        cluster.ask("PATCH", _workers_path(cluster, root, "scale"), {"spec": {"replicas": 0}})
        return
    if workers < low or (high is not None and workers > high):
        raise UsageError(f"{name} was submitted for {low} to {'any number of' if high is None else high} workers")
    of_job = ROOTS[root["kind"]]
    kind, _ = of_job.workers(name)
    fixed = kind.fixed_in_kueue and KUEUE_LABEL in (at(maker, "metadata", "labels") or {})
    if fixed and workers != job.asked:
        # Kueue's webhook refuses another number, but it does not see the scale subresource. With that, Kueue would
        # delete the surplus pods again and again.
        raise UsageError(
            f"{name}: Kueue admits workers of a {kind.kind} as one group, whose number cannot change; submit it with "
            "another --workers, or as an MPIJob"
        )
    if kind.scaled_by:
        _scale_by_request(cluster, root, workers - (job.asked or 0))
    else:
        # Commands need the right to patch the job itself anyhow.
        path = _workers_path(cluster, root, "scale" if of_job.workers_in else "")
        cluster.ask("PATCH", path, nested(kind.replicas_at, workers))


def _scale_by_request(cluster: Cluster, root: Body, more: int) -> None:
    """Request a change by an object of its own: the et-operator ignores the number in a running job."""
    if not more:
        return
    name = root["metadata"]["name"]
    body = change_request(Workload(ROOTS[root["kind"]], name), more)
    body["metadata"]["labels"] = {JOB_LABEL: name}
    cluster.ask("POST", cluster.path_of({**body, "metadata": {"name": ""}}, named=False), body)


def suspend(cluster: Cluster, name: str, *, sleep: Sleep = time.sleep, patience: Patience | None = None) -> Body:
    """Suspend a job: its pods are deleted until it is resumed. Returns the job. Raises :class:`UsageError` if its kind
    cannot be suspended."""
    root = _suspendable(cluster, name)
    kind = ROOTS[root["kind"]]
    if not kind.workers_in:
        cluster.ask("PATCH", cluster.path_of(root), nested(kind.suspend_at, True))
        return root
    workers = asked_for(root, _workers(cluster, root))
    patience = patience or Patience(sleep=sleep)
    patience.of(lambda: cluster.ask("PATCH", cluster.path_of(root), nested(kind.suspend_at, True)))
    _wait_for_launcher(cluster, root, patience, sleep=sleep)  # its last checkpoint needs the workers
    note = {"metadata": {"annotations": {BEFORE: str(workers)}}} if workers else {}
    patience.of(lambda: cluster.ask("PATCH", _workers_path(cluster, root), {**note, "spec": {"replicas": 0}}))
    return root


def resume(cluster: Cluster, name: str) -> Body:
    """Resume a suspended job. Returns the job."""
    root = _suspendable(cluster, name)
    kind, maker = ROOTS[root["kind"]], _workers(cluster, root)
    if kind.workers_in and not asked_for(root, maker):
        noted = str(at(maker, "metadata", "annotations", BEFORE) or "")
        count = int(noted) if noted.isdecimal() else seen(root, ()).least or 1
        patch = {"metadata": {"annotations": {BEFORE: None}}, "spec": {"replicas": count}}
        cluster.ask("PATCH", _workers_path(cluster, root), patch)
    cluster.ask("PATCH", cluster.path_of(root), nested(kind.suspend_at, False))
    return root


def _suspendable(cluster: Cluster, name: str) -> Body:
    root = root_of(cluster, name)
    if why := ROOTS[root["kind"]].not_suspended:
        raise UsageError(f"{name} is a {root['kind']}: {why}")
    if KUEUE_LABEL in ((root["metadata"].get("labels")) or {}):
        raise UsageError(f"{name} is suspended by Kueue: change its LocalQueue, or the active field of its Workload")
    if (state := state_of(root)[0]) in FINISHED:
        raise WrongState(f"{name} has ended: {state}")
    return root


def _wait_for_launcher(cluster: Cluster, root: Body, patience: Patience, *, sleep: Sleep) -> None:
    for _ in range(int(LEAVES_S / LOOKS_S)):
        if not patience.of(lambda: pods_of(cluster, root, role=LAUNCHER)):
            return
        sleep(LOOKS_S)


def delete(cluster: Cluster, name: str) -> list[str]:
    """Delete a job and all objects that were made for it. Returns the names of the objects that its owner references do
    not delete.

    Dependents are deleted here, too: the cluster deletes them later, and until then ``submit`` refuses their names.
    """
    deleted, gone = [], set[str]()
    roots, _ = _named(cluster, name)
    for root in roots:
        if cluster.delete(cluster.path_of(root)):
            deleted.append(f"{plural(root['kind'])}/{name}")
        gone.add(str(root["metadata"].get("uid")))
    for version, kind in LEFT:
        for each in _left(cluster, version, kind, name):
            path = cluster.path(version, kind, each["metadata"]["name"])
            owners = {str(owner.get("uid")) for owner in each["metadata"].get("ownerReferences") or ()}
            if owners <= gone and cluster.delete(path) and not owners:
                deleted.append(f"{kind}/{each['metadata']['name']}")
    return deleted


def _left(cluster: Cluster, version: str, kind: str, name: str) -> list[Body]:
    """Return the objects of a kind that were made for a job; none if this account may not list them: the cluster
    deletes them with the job."""
    try:
        return cluster.listed(version, kind, f"{selector(name)},{selector()}")
    except ApiError as error:
        if error.reason is not Reason.FORBIDDEN:
            raise
        return []


State = Literal["finished", "succeeded", "failed", "running", "sleeping", "suspended", "deleted"]

STATES: Final[dict[State, tuple[str, ...]]] = {
    "finished": FINISHED,
    "succeeded": (SUCCEEDED,),
    "failed": (FAILED,),
    "running": (RUNNING,),
    "sleeping": (SLEEPING,),
    "suspended": (SUSPENDED,),
    "deleted": (GONE,),
}
"""The states that a command may wait for, and those of a job that they mean."""


def wait_for(
    cluster: Cluster,
    name: str,
    states: Collection[str],
    *,
    within_s: float | None = None,
    sleep: Sleep = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str], object] = lambda line: None,
    patience: Patience | None = None,
) -> str:
    """Wait until a job is in one of ``states``, and return that state. ``report`` takes a line at each look.

    Raises :class:`NotReached` if it ended in
    another state or takes longer than ``within_s`` seconds, and :class:`NoSuchJob` if there is no such job."""
    _check(name)
    patience = patience or Patience(sleep=sleep, clock=clock)
    ends = None if within_s is None else clock() + within_s
    kind = ""
    while True:
        try:
            answer = look_again(cluster, name, kind)
        except ApiError as error:
            if patience.again(error, until=ends):
                continue
            raise
        patience.answered()
        state = GONE if isinstance(answer, NoSuchJob) else answer.state
        if state in states:
            if isinstance(answer, NoSuchJob) and answer.unread and not kind:
                patience.say(f"{name} was not seen; {not_read(answer.unread)}")
            return state
        if isinstance(answer, NoSuchJob):
            if not kind:
                raise answer
            raise NotReached(f"{name}: {GONE}")
        kind = answer.kind
        message = f"{': ' if state in FINISHED else '; '}{answer.message}" if answer.message else ""
        if state in FINISHED:
            raise NotReached(f"{name}: {state}{message}")
        if ends is not None and within_s is not None and clock() >= ends:
            raise NotReached(f"{name}: still {state} after {round(within_s, 1):g} s{message}")
        report(f"waiting for {name}: {state}{message}")
        sleep(LOOKS_S if ends is None else min(LOOKS_S, max(0.0, ends - clock())))


def look_again(cluster: Cluster, name: str, kind: str) -> JobStatus | NoSuchJob:
    """Return the job, or that there is none. ``kind``: what it was before; while that may not be read, it is not known
    to be gone."""
    try:
        return look(cluster, name)
    except NoSuchJob as error:
        if kind in error.unread:
            why = f"{name} cannot be read any more: your account may not read {kind}s"
            raise ApiError(Reason.FORBIDDEN, why, status=HTTPStatus.FORBIDDEN) from None
        return error
