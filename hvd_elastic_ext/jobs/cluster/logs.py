"""The output of a job: from its launcher, which has the output of all ranks, or else from its workers.

Following goes on over new pods, broken connections and an API server that is away: each line comes once, since the
server's time stamp of the last one says where to continue. A job without a launcher has as many sources as workers;
each is read in a thread, and the lines are marked with their pod.
"""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final, NamedTuple

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.core.workload_kinds import ROOTS
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, Patience, Sleep, WrongState
from hvd_elastic_ext.jobs.cluster.changes import LOOKS_S, pods_of, root_of
from hvd_elastic_ext.jobs.reading.states import FINISHED, PodStatus, pod, state_of
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, main_container

RETRY_S: Final = 1.0
"""Seconds before an interrupted log, or one that has not begun, is requested again."""
MAX_CUT: Final = 10
"""How often the rest of the log of a pod that has ended is requested again, if the connection breaks."""
MAX_QUEUED_LINES: Final = 1000
"""Most lines of all workers that wait to be printed; then the readers wait."""

_STAMP: Final = re.compile(r"(\d\S+?(?:Z|[+-]\d\d:\d\d)) (.*)", re.DOTALL)


class LogOptions(NamedTuple):
    """Which output to return."""

    follow: bool = False
    """Wait for new lines."""
    rank: int | None = None
    """Of one process only."""
    previous: bool = False
    """Of the container before its last restart."""
    tail: int | None = None
    """Only so many last lines."""
    since_s: int | None = None
    """Only of the last seconds."""
    since: str = ""
    """Only from a time on (RFC 3339)."""
    stamped: bool = False
    """With the time of each line."""
    pod: str = ""
    """Of this pod instead of the main ones."""
    container: str = ""
    """Of this container instead of the main one."""


def lines(
    cluster: Cluster,
    name: str,
    wanted: LogOptions,
    *,
    sleep: Sleep = time.sleep,
    patience: Patience | None = None,
) -> Iterator[str]:
    """Yield lines with their line ends. With ``follow``, includes pods that start later, and ends with the job, or with
    the named pod; an outage of the API server is waited for.

    Raises :class:`UsageError` for a job that does not exist or has no output yet.
    """
    waits = _Waits(sleep, patience or Patience(sleep=sleep))
    if wanted.previous:  # it has ended: nothing more comes
        wanted = wanted._replace(follow=False)
    root = root_of(cluster, name)
    waits.patience.answered()
    alone = not ROOTS[root["kind"]].has_launcher
    if alone and wanted.rank is not None:
        raise UsageError(f"{name} is a {root['kind']}, without a launcher that knows its ranks; leave --rank out")
    if wanted.pod:
        named = pod_named(cluster, root, wanted.pod)
        if wanted.rank is not None and pod(named).role != LAUNCHER:
            raise UsageError(
                f"pod {wanted.pod} does not tell ranks apart; only the launcher's does: leave out --rank or -i"
            )
        yield from _of_rank(_of_pod(cluster, named, wanted, waits), wanted)
        return
    if wanted.follow:
        job = FollowedJob(cluster, root, wanted, waits)
        yield from job.of_all() if alone else _of_rank(job.of_launchers(), wanted)
        return
    pods = _pods(cluster, root, alone=alone)
    if not pods:
        raise WrongState(f"{name} has no pods; hvd-elastic get {name} says why")
    if len(pods) > 1 and alone:
        yield from _of_all(cluster, pods, wanted, waits)
        return
    yield from _of_rank(_of_pod(cluster, max(pods, key=_age), wanted, waits), wanted)


class _Waits(NamedTuple):
    """How to wait for what comes later, and for a server that is away."""

    sleep: Sleep
    patience: Patience


class FollowedJob:
    """The pods that write a job's output: those that exist, and those that start before the job ends."""

    def __init__(self, cluster: Cluster, root: Body, wanted: LogOptions, waits: _Waits) -> None:
        self._cluster, self._root, self._wanted, self._waits = cluster, root, wanted, waits
        self._known: set[str] = set()
        self._failed: ElasticError | None = None

    def of_launchers(self) -> Iterator[str]:
        """Yield lines of the newest launcher, then of each later one in turn."""
        first = True
        while True:
            ended = self._ended()  # checked before the look: pods that are found after the end are complete
            pods = self._new()
            for each in pods[-1:] if first else pods:
                yield from _of_pod(self._cluster, each, self._part(first), self._waits)
            first = first and not pods
            if ended and not pods:
                return
            if not pods:
                self._waits.sleep(RETRY_S)

    def of_all(self) -> Iterator[str]:
        """Yield lines of all pods as they come, each with the name of its pod in front."""
        readers = _Readers(self._cluster, self._waits)
        threading.Thread(target=self._look, args=(readers,), name="hvd-elastic logs", daemon=True).start()
        yield from readers.lines()
        if self._failed is not None:
            raise self._failed

    def _look(self, readers: _Readers) -> None:
        """Start a reader for each new pod until the job has ended."""
        first = True
        try:
            while True:
                ended = self._ended()
                pods = self._new()
                for each in pods:
                    readers.start(each, self._part(first))
                first = first and not pods
                if ended:
                    return
                self._waits.sleep(LOOKS_S if self._known else RETRY_S)
        except ElasticError as error:
            self._failed = error
        finally:
            readers.finish()

    def _new(self) -> list[Body]:
        """Return the pods that earlier calls did not return, the oldest first."""
        alone = not ROOTS[self._root["kind"]].has_launcher
        present = self._waits.patience.of(lambda: _pods(self._cluster, self._root, alone=alone))
        new = [each for each in present if each["metadata"]["uid"] not in self._known]
        self._known |= {each["metadata"]["uid"] for each in new}
        return sorted(new, key=_age)

    def _ended(self) -> bool:
        """Whether no more pods will start: the job has ended, or another job has its name. Raises :class:`NoSuchJob` if
        the job was deleted before it had any pod."""
        body = self._waits.patience.of(lambda: self._cluster.read(self._cluster.path_of(self._root)))
        if body is None and not self._known:
            root_of(self._cluster, self._root["metadata"]["name"])
        if body is None or body["metadata"]["uid"] != self._root["metadata"]["uid"]:
            return True
        return state_of({**body, "kind": self._root["kind"]})[0] in FINISHED

    def _part(self, first: bool) -> LogOptions:
        """Return the options for a pod. ``tail`` and ``since_s`` apply only to pods that existed at the first look."""
        return self._wanted if first else self._wanted._replace(tail=None, since_s=None)


def _age(body: Body) -> str:
    return str(body["metadata"].get("creationTimestamp"))


def pod_named(cluster: Cluster, root: Body, name: str) -> Body:
    """Return a pod of a job. Raises :class:`WrongState` if the job has no such pod."""
    pods, job = pods_of(cluster, root), root["metadata"]["name"]
    named = next((each for each in pods if each["metadata"]["name"] == name), None)
    if named is None:
        names = ", ".join(each["metadata"]["name"] for each in pods) or "none"
        raise WrongState(f"{job} has no pod {name!r}; its pods: {names}")
    return named


def container_of(body: Body, name: str) -> str:
    """Return the name of a container of a pod; without a name, of the main one. Raises :class:`WrongState` if there is
    no such container."""
    if not name:
        return str(main_container(body)["name"])
    containers = [
        str(each["name"]) for field in ("containers", "initContainers") for each in body["spec"].get(field) or ()
    ]
    if name not in containers:
        raise WrongState(f"pod {body['metadata']['name']} has no container {name!r}; there are {', '.join(containers)}")
    return name


def _of_rank(found: Iterator[str], wanted: LogOptions) -> Iterator[str]:
    """Keep only the lines of the wanted rank, and of these, unless they are followed, the last ``tail``."""
    if wanted.rank is None:
        return found
    rank = wanted.rank
    mine = (line for line in found if of_rank(split(line)[1] if wanted.stamped else line, rank))
    return mine if wanted.tail is None or wanted.follow else iter(deque(mine, wanted.tail))


def _pods(cluster: Cluster, root: Body, *, alone: bool) -> list[Body]:
    """Return the pods that write the job's output."""
    return pods_of(cluster, root, role="" if alone else LAUNCHER)


def of_rank(line: str, rank: int) -> bool:
    """Whether a line of the launcher is output of this rank. Pure."""
    return line.startswith((f"[{rank}]<stdout>:", f"[{rank}]<stderr>:"))


def _of_all(cluster: Cluster, pods: list[Body], wanted: LogOptions, waits: _Waits) -> Iterator[str]:
    """Yield lines of several pods, each with the name of its pod in front."""
    readers = _Readers(cluster, waits)
    for each in pods:
        readers.start(each, wanted)
    readers.finish()
    yield from readers.lines()


class _Readers:
    """Threads that each read one pod into a common queue. :meth:`lines` ends when all threads, and the caller that
    starts them (:meth:`finish`), have finished."""

    def __init__(self, cluster: Cluster, waits: _Waits) -> None:
        self._cluster, self._waits = cluster, waits
        self._waiting: queue.Queue[str | ElasticError | int] = queue.Queue(MAX_QUEUED_LINES)

    def start(self, body: Body, wanted: LogOptions) -> None:
        """Read one more pod."""
        self._waiting.put(1)
        threading.Thread(target=self._read, args=(body, wanted), name="hvd-elastic logs", daemon=True).start()

    def finish(self) -> None:
        """Note that one thread, or the caller, has finished."""
        self._waiting.put(-1)

    def lines(self) -> Iterator[str]:
        """Yield the lines of all pods. Writes errors of single pods to standard error."""
        left = 1
        while left:
            match self._waiting.get():
                case int(change):
                    left += change
                case str(line):
                    yield line
                case error:
                    sys.stderr.write(f"{error}\n")

    def _read(self, body: Body, wanted: LogOptions) -> None:
        try:
            for line in _of_pod(self._cluster, body, wanted, self._waits):
                self._waiting.put(f"[{body['metadata']['name']}] {line}")
        except ElasticError as error:
            self._waiting.put(error)
        finally:
            self.finish()


def _of_pod(cluster: Cluster, body: Body, wanted: LogOptions, waits: _Waits) -> Iterator[str]:
    """Yield lines of one container. With ``follow``, each line comes once, even if the connection breaks."""
    name, container = body["metadata"]["name"], container_of(body, wanted.container)
    path, last = cluster.path("v1", "pods", name, "log"), ""
    query = {"container": container, **_part(wanted)}
    if not wanted.follow:
        query |= {"previous": "true"} if wanted.previous else {}
        query |= {"timestamps": "true"} if wanted.stamped else {}
        yield from cluster.client.lines(path, query=query)
        return
    streams = Patience(say=lambda _: None, sleep=waits.sleep)  # who may read pods may lack the right to their logs
    ends = 0
    while True:
        more = {"follow": "true", "timestamps": "true"}
        cut = False
        try:
            for line in cluster.client.lines(path, query=query | more, follow=True):
                streams.answered()
                stamp, text = split(line)
                if not stamp or stamp > last:
                    last = stamp or last
                    yield line if wanted.stamped else text
        except ApiError as error:
            if error.reason is Reason.NOT_FOUND:
                return
            begins = error.status == HTTPStatus.BAD_REQUEST  # its container has not started
            away = last and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR  # its node
            if not error.answered:
                cut = True
                streams.answered()  # no refusal; one that comes now may be that of a server that has just started
            elif not (begins or away):
                cut = True
                if not streams.again(error):
                    raise
        else:
            streams.answered()
        if last:
            query = {"container": container, "sinceTime": last}
        now = waits.patience.of(lambda: cluster.read(cluster.path("v1", "pods", name)))
        if now is None or now["metadata"]["uid"] != body["metadata"]["uid"]:
            return
        if _ended(pod(now)):
            ends += 1
            if not cut or ends > MAX_CUT:
                return
        waits.sleep(RETRY_S)


def _part(wanted: LogOptions) -> dict[str, str]:
    """Return the query parameters of a log request. The server cannot select the last lines of one rank, so that is not
    requested."""
    tail = None if wanted.rank is not None and not wanted.follow else wanted.tail
    given = {"tailLines": tail, "sinceSeconds": wanted.since_s, "sinceTime": wanted.since or None}
    return {name: str(value) for name, value in given.items() if value is not None}


def _ended(seen: PodStatus) -> bool:
    return seen.phase in ("Succeeded", "Failed")


def split(line: str) -> tuple[str, str]:
    """Split a line into its time ("" without one) and text. Times of one node have one time zone, so they sort as text.
    Pure."""
    found = _STAMP.fullmatch(line)
    return (found[1], found[2]) if found else ("", line)
