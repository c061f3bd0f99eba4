"""The output of a job: of its launcher, which has that of all ranks, or of its workers, where there is no launcher."""

from __future__ import annotations

import contextlib
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlencode

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, ClusterRefused, ClusterUnanswered
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
    before the last restart."""

    follow: bool = False
    rank: int | None = None
    previous: bool = False
    tail: int | None = None


def lines(cluster: Cluster, name: str, wanted: Wanted, *, sleep: Sleep = time.sleep) -> Iterator[str]:
    """Lines with their ends, as they come. A follower ends with the pods.

    Raises :class:`UsageError` for a job that is not there or has no output yet.
    """
    alone = root_of(cluster, name)["kind"] == NO_LAUNCHER
    if alone and wanted.rank is not None:
        raise UsageError(f"{name} is a {NO_LAUNCHER}, without a launcher that knows its ranks; leave --rank out")
    pods = _pods(cluster, name, alone=alone)
    while wanted.follow and not pods:
        sleep(AGAIN_S)
        pods = _pods(cluster, name, alone=alone)
    if not pods:
        raise UsageError(f"{name} has no pods; hvd-elastic get {name} says why")
    if len(pods) > 1 and alone:
        yield from _of_all(cluster, pods, wanted, sleep=sleep)
        return
    newest = max(pods, key=lambda each: str(each["metadata"].get("creationTimestamp")))
    found = _of_pod(cluster, newest, wanted, sleep=sleep)
    yield from (line for line in found if wanted.rank is None or of_rank(line, wanted.rank))


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
    """Lines of one pod's main container. Followed, each comes once, also if the connection breaks off."""
    name, container = body["metadata"]["name"], main_container({"spec": body["spec"]})["name"]
    path, last = cluster.path("v1", "pods", name, "log"), ""
    query = {"container": container, **({} if wanted.tail is None else {"tailLines": str(wanted.tail)})}
    if not wanted.follow:
        query |= {"previous": "true"} if wanted.previous else {}
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
                        yield text
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


def _ended(seen: PodSeen) -> bool:
    return seen.phase in ("Succeeded", "Failed")


def split(line: str) -> tuple[str, str]:
    """Time and text of a line with a time before it, "" without. Times of a node, in its zone, sort as text. Pure."""
    found = _STAMP.fullmatch(line)
    return (found[1], found[2]) if found else ("", line)
