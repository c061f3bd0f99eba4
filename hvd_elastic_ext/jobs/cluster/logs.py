"""The output of a job: of its launcher, which has that of all ranks, or of its workers, where there is no launcher."""

from __future__ import annotations

import contextlib
import queue
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlencode

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, ClusterRefused, ClusterUnanswered, WrongState
from hvd_elastic_ext.jobs.cluster.changes import root_of
from hvd_elastic_ext.jobs.reading.states import PodSeen, pod
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, main_container
from hvd_elastic_ext.jobs.rendering.render import selector

AGAIN_S: Final = 1.0
"""Before a log that broke off, or has not begun, is asked for again."""
NO_LAUNCHER: Final = "PyTorchJob"
ROOM: Final = 1000
"""Lines of all workers that wait to be read."""

_STAMP: Final = re.compile(r"(\d\S+?(?:Z|[+-]\d\d:\d\d)) (.*)", re.DOTALL)

Sleep = Callable[[float], None]


class Wanted(NamedTuple):
    """What of the output. ``tail``: the last lines only; ``rank``: of one process only; ``previous``: of the container
    before the last restart; ``since_s``: of so many seconds only; ``since``: from a time on (RFC 3339); ``stamped``:
    with the time of each; ``pod`` and ``container``: of this one instead."""

    follow: bool = False
    rank: int | None = None
    previous: bool = False
    tail: int | None = None
    since_s: int | None = None
    since: str = ""
    stamped: bool = False
    pod: str = ""
    container: str = ""


def lines(cluster: Cluster, name: str, wanted: Wanted, *, sleep: Sleep = time.sleep) -> Iterator[str]:
    """Lines with their ends, as they come. A follower ends with the pods.

    Raises :class:`UsageError` for a job that is not there or has no output yet.
    """
    if wanted.previous:  # it has ended: nothing more comes
        wanted = wanted._replace(follow=False)
    alone = root_of(cluster, name)["kind"] == NO_LAUNCHER
    if alone and wanted.rank is not None:
        raise UsageError(f"{name} is a {NO_LAUNCHER}, without a launcher that knows its ranks; leave --rank out")
    if wanted.pod:
        yield from _of_rank(_of_pod(cluster, pod_named(cluster, name, wanted.pod), wanted, sleep=sleep), wanted)
        return
    pods = _pods(cluster, name, alone=alone)
    while wanted.follow and not pods:
        sleep(AGAIN_S)
        root_of(cluster, name)  # without a job there are none to wait for
        pods = _pods(cluster, name, alone=alone)
    if not pods:
        raise WrongState(f"{name} has no pods; hvd-elastic get {name} says why")
    if len(pods) > 1 and alone:
        yield from _of_all(cluster, pods, wanted, sleep=sleep)
        return
    newest = max(pods, key=lambda each: str(each["metadata"].get("creationTimestamp")))
    yield from _of_rank(_of_pod(cluster, newest, wanted, sleep=sleep), wanted)


def pod_named(cluster: Cluster, job: str, name: str) -> Body:
    """A pod of a job. Raises :class:`UsageError` if it is none of its."""
    found = cluster.listed("v1", "pods", selector(job))
    named = next((each for each in found if each["metadata"]["name"] == name), None)
    if named is None:
        there = ", ".join(each["metadata"]["name"] for each in found) or "none"
        raise WrongState(f"{job} has no pod {name!r}; its pods: {there}")
    return named


def container_of(body: Body, name: str) -> str:
    """A container of a pod; the main one without a name. Raises :class:`UsageError` if it has none of this name."""
    if not name:
        return str(main_container(body)["name"])
    there = [str(each["name"]) for field in ("containers", "initContainers") for each in body["spec"].get(field) or ()]
    if name not in there:
        raise WrongState(f"pod {body['metadata']['name']} has no container {name!r}; there are {', '.join(there)}")
    return name


def _of_rank(found: Iterator[str], wanted: Wanted) -> Iterator[str]:
    """Lines of one rank; of them the last ones, where all are there."""
    if wanted.rank is None:
        return found
    rank = wanted.rank
    mine = (line for line in found if of_rank(split(line)[1] if wanted.stamped else line, rank))
    return mine if wanted.tail is None or wanted.follow else iter(deque(mine, wanted.tail))


def _pods(cluster: Cluster, name: str, *, alone: bool) -> list[Body]:
    """Those with the job's output."""
    return cluster.listed("v1", "pods", selector(name, role="" if alone else LAUNCHER))


def of_rank(line: str, rank: int) -> bool:
    """Whether a line of the launcher is output of this rank. Pure."""
    return line.startswith((f"[{rank}]<stdout>:", f"[{rank}]<stderr>:"))


def _of_all(cluster: Cluster, pods: list[Body], wanted: Wanted, *, sleep: Sleep) -> Iterator[str]:
    """Lines of several pods, with the pod before each."""
    waiting: queue.Queue[str | Permanent | None] = queue.Queue(ROOM)

    def work(each: Body) -> None:
        try:
            for line in _of_pod(cluster, each, wanted, sleep=sleep):
                waiting.put(f"[{each['metadata']['name']}] {line}")
        except Permanent as error:
            waiting.put(error)
        finally:
            waiting.put(None)

    for each in pods:
        threading.Thread(target=work, args=(each,), name="hvd-elastic logs", daemon=True).start()
    left = len(pods)
    while left:
        match waiting.get():
            case None:
                left -= 1
            case str(line):
                yield line
            case error:
                sys.stderr.write(f"{error}\n")


def _of_pod(cluster: Cluster, body: Body, wanted: Wanted, *, sleep: Sleep) -> Iterator[str]:
    """Lines of one container of a pod. Followed, each comes once, also if the connection breaks off."""
    name, container = body["metadata"]["name"], container_of(body, wanted.container)
    path, last = cluster.path("v1", "pods", name, "log"), ""
    query = {"container": container, **_part(wanted)}
    if not wanted.follow:
        query |= {"previous": "true"} if wanted.previous else {}
        query |= {"timestamps": "true"} if wanted.stamped else {}
        yield from cluster.lines(f"{path}?{urlencode(query)}", follow=False)
        return
    while True:
        more = {"follow": "true", "timestamps": "true"}
        with contextlib.suppress(ClusterUnanswered):
            try:
                for line in cluster.lines(f"{path}?{urlencode(query | more)}", follow=True):
                    stamp, text = split(line)
                    if not stamp or stamp > last:
                        last = stamp or last
                        yield line if wanted.stamped else text
            except ClusterRefused as error:
                if error.code == HTTPStatus.NOT_FOUND:
                    return
                if error.code != HTTPStatus.BAD_REQUEST:  # its container waits to start
                    raise
        if last:
            query = {"container": container, "sinceTime": last}
        there = cluster.read(cluster.path("v1", "pods", name))
        if there is None or there["metadata"]["uid"] != body["metadata"]["uid"] or _ended(pod(there)):
            return
        sleep(AGAIN_S)


def _part(wanted: Wanted) -> dict[str, str]:
    """What of the output a server is asked for; the last lines of one rank only it cannot tell."""
    tail = None if wanted.rank is not None and not wanted.follow else wanted.tail
    given = {"tailLines": tail, "sinceSeconds": wanted.since_s, "sinceTime": wanted.since or None}
    return {name: str(value) for name, value in given.items() if value is not None}


def _ended(seen: PodSeen) -> bool:
    return seen.phase in ("Succeeded", "Failed")


def split(line: str) -> tuple[str, str]:
    """Time and text of a line with a time before it, "" without. Times of a node, in its zone, sort as text. Pure."""
    found = _STAMP.fullmatch(line)
    return (found[1], found[2]) if found else ("", line)
