"""The output of a job, read and followed; a real server needs pods that run for this."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.jobs.cluster import changes, logs, making
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.cluster.logs import LogOptions
from tests.support.jobs import example, rendered
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

__all__ = ["kube"]

LAUNCHER = {"hvd-elastic-job": "digits", "hvd-elastic-role": "launcher"}


@pytest.fixture
def cluster(kube: KubeServer, tmp_path: Path) -> Cluster:
    return Cluster(Access(str(kube.kubeconfig(tmp_path / "config"))))


def launched(kube: KubeServer, cluster: Cluster) -> None:
    making.create(cluster, list(rendered(example("mpijob")).objects))
    kube.put("pods", bodies.pod("digits-launcher-x", labels=LAUNCHER))
    kube.put("pods", bodies.pod("digits-worker-0", labels={"hvd-elastic-job": "digits"}))


class Follower(threading.Thread):
    """Follows a log; what came so far is ``lines``."""

    def __init__(self, found: Iterator[str]) -> None:
        super().__init__(name="follower", daemon=True)
        self._found = found
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        for line in self._found:
            self.lines.append(line)


def ends(kube: KubeServer, plural: str, *, as_: str = "Succeeded") -> None:
    kube.change(plural, "digits", {"status": {"conditions": [bodies.condition(as_)]}})


def soon(_: float) -> None:
    time.sleep(0.01)


def test_the_launchers_output_is_that_of_all_ranks_or_of_one(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    kube.logs.write(
        "digits-launcher-x", "world of 2", "[0]<stdout>:a", "[10]<stdout>:b", "[1]<stderr>:c", "[1]<stdout>:ä"
    )
    assert "".join(logs.lines(cluster, "digits", LogOptions())).count("\n") == 5
    assert list(logs.lines(cluster, "digits", LogOptions(rank=1))) == ["[1]<stderr>:c\n", "[1]<stdout>:ä\n"]
    assert list(logs.lines(cluster, "digits", LogOptions(tail=1))) == ["[1]<stdout>:ä\n"]


def test_a_follower_gets_each_line_once_whatever_breaks_off(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    follower = Follower(logs.lines(cluster, "digits", LogOptions(follow=True), sleep=lambda _: None))
    kube.logs.write("digits-launcher-x", "one", "two")
    wait_until(lambda: len(follower.lines) == 2, what="two lines")
    kube.logs.cut()
    kube.logs.write("digits-launcher-x", "three")
    wait_until(lambda: len(follower.lines) == 3, what="three lines")
    kube.change("pods", "digits-launcher-x", {"status": {"phase": "Succeeded"}})
    ends(kube, "mpijobs")
    kube.logs.end("digits-launcher-x")
    follower.join(10)
    assert not follower.is_alive()
    assert follower.lines == ["one\n", "two\n", "three\n"]


def test_a_container_that_waits_to_start_is_waited_for_and_only_then(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    with pytest.raises(ApiError, match="is waiting to start"):
        list(logs.lines(cluster, "digits", LogOptions()))
    follower = Follower(logs.lines(cluster, "digits", LogOptions(follow=True), sleep=soon))
    wait_until(lambda: kube.counts.of("get", "pods") > 5, what="it asks again")
    kube.logs.write("digits-launcher-x", "begun")
    wait_until(lambda: follower.lines == ["begun\n"], what="the first line")
    ends(kube, "mpijobs", as_="Failed")
    kube.remove("pods", "digits-launcher-x")
    kube.logs.end("digits-launcher-x")
    follower.join(10)
    assert not follower.is_alive()


def test_a_follower_goes_on_with_a_launcher_that_comes_after_another(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    kube.logs.write("digits-launcher-x", "old", "one")
    follower = Follower(logs.lines(cluster, "digits", LogOptions(follow=True, tail=1), sleep=soon))
    wait_until(lambda: follower.lines == ["one\n"], what="the first one's last line")
    kube.change("pods", "digits-launcher-x", {"status": {"phase": "Failed"}})
    kube.logs.end("digits-launcher-x")
    kube.put("pods", bodies.pod("digits-launcher-y", labels=LAUNCHER))
    kube.logs.write("digits-launcher-y", "two", "three")
    wait_until(lambda: len(follower.lines) == 3, what="all lines of the second one")
    kube.change("pods", "digits-launcher-y", {"status": {"phase": "Succeeded"}})
    ends(kube, "mpijobs")
    kube.logs.end("digits-launcher-y")
    follower.join(10)
    assert not follower.is_alive()
    assert follower.lines == ["one\n", "two\n", "three\n"]


def test_a_follower_has_the_last_launcher_of_a_job_that_has_ended_meanwhile(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    kube.logs.write("digits-launcher-x", "one")
    follower = Follower(logs.lines(cluster, "digits", LogOptions(follow=True), sleep=soon))
    wait_until(lambda: follower.lines == ["one\n"], what="the first one's line")
    kube.put("pods", bodies.pod("digits-launcher-y", phase="Succeeded", labels=LAUNCHER))
    kube.logs.write("digits-launcher-y", "two")
    kube.logs.end("digits-launcher-y")
    ends(kube, "mpijobs")
    kube.remove("pods", "digits-launcher-x")
    kube.logs.end("digits-launcher-x")
    follower.join(10)
    assert not follower.is_alive()
    assert follower.lines == ["one\n", "two\n"]


def test_a_follower_has_workers_that_come_later_and_those_that_come_again(kube: KubeServer, cluster: Cluster) -> None:
    making.create(cluster, list(rendered(example("pytorchjob")).objects))
    mine = {"hvd-elastic-job": "digits"}
    follower = Follower(logs.lines(cluster, "digits", LogOptions(follow=True), sleep=soon))

    def says(pod: str, text: str, *, lines: int) -> None:
        kube.put("pods", bodies.pod(pod, labels=mine))
        kube.logs.write(pod, text)
        wait_until(lambda: len(follower.lines) == lines, what=text)

    says("digits-worker-0", "first", lines=1)
    kube.remove("pods", "digits-worker-0")
    kube.logs.end("digits-worker-0")
    says("digits-worker-1", "later", lines=2)  # while no other pod is there
    kube.logs.start("digits-worker-0")
    says("digits-worker-0", "again", lines=3)
    ends(kube, "pytorchjobs")
    for number in (0, 1):
        kube.change("pods", f"digits-worker-{number}", {"status": {"phase": "Succeeded"}})
        kube.logs.end(f"digits-worker-{number}")
    follower.join(10)
    assert not follower.is_alive()
    assert follower.lines == ["[digits-worker-0] first\n", "[digits-worker-1] later\n", "[digits-worker-0] again\n"]


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_a_follower_outlives_a_server_that_is_away(kube: KubeServer, cluster: Cluster, kind: str) -> None:
    making.create(cluster, list(rendered(example(kind)).objects))
    kube.put("pods", bodies.pod("digits-launcher-x", labels=LAUNCHER))
    kube.logs.write("digits-launcher-x", "one")
    asked = threading.Semaphore(0)

    def sleep(_: float) -> None:
        asked.release()
        time.sleep(0.01)

    follower = Follower(logs.lines(cluster, "digits", LogOptions(follow=True), sleep=sleep))
    wait_until(lambda: len(follower.lines) == 1, what="a line")
    with kube.down():
        while asked.acquire(blocking=False):
            pass
        for _ in range(4):
            assert asked.acquire(timeout=10)  # it has tried again
    kube.logs.write("digits-launcher-x", "two")
    wait_until(lambda: len(follower.lines) == 2, what="another line")
    ends(kube, f"{kind}s")
    kube.change("pods", "digits-launcher-x", {"status": {"phase": "Succeeded"}})
    kube.logs.end("digits-launcher-x")
    follower.join(10)
    assert not follower.is_alive()


def test_the_output_before_a_restart_is_the_previous_one(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    kube.logs.write("digits-launcher-x", "failed")
    kube.logs.start("digits-launcher-x")
    kube.logs.write("digits-launcher-x", "again")
    assert list(logs.lines(cluster, "digits", LogOptions(previous=True))) == ["failed\n"]
    assert list(logs.lines(cluster, "digits", LogOptions())) == ["again\n"]


def test_workers_of_a_job_without_a_launcher_are_read_together(kube: KubeServer, cluster: Cluster) -> None:
    making.create(cluster, list(rendered(example("pytorchjob")).objects))
    with pytest.raises(UsageError, match="digits has no pods; hvd-elastic get digits says why"):
        list(logs.lines(cluster, "digits", LogOptions()))
    for number in range(3):
        kube.put("pods", bodies.pod(f"digits-worker-{number}", labels={"hvd-elastic-job": "digits"}))
        kube.logs.write(f"digits-worker-{number}", "x")
    found = sorted(logs.lines(cluster, "digits", LogOptions()))
    assert found == [f"[digits-worker-{number}] x\n" for number in range(3)]
    with pytest.raises(UsageError, match="without a launcher that knows its ranks"):
        list(logs.lines(cluster, "digits", LogOptions(rank=0)))


def test_a_job_that_is_not_there_has_no_output(cluster: Cluster, kube: KubeServer) -> None:
    found: Any = logs.lines(cluster, "nobody", LogOptions(follow=True))
    with pytest.raises(UsageError, match="there is no job nobody"):
        next(found)


def test_a_part_of_the_output_is_what_was_asked_for(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    kube.logs.write("digits-launcher-x", "[0]<stdout>:a", "[1]<stdout>:b", "[0]<stdout>:c", "[1]<stdout>:d", "end")

    def said(**wanted: Any) -> list[str]:
        return [line.strip() for line in logs.lines(cluster, "digits", LogOptions(**wanted))]

    assert said(since_s=2) == ["[1]<stdout>:d", "end"]
    assert said(since="2026-01-01T00:00:04.000000000Z") == ["end"]
    assert said(stamped=True, tail=1) == ["2026-01-01T00:00:04.000000000Z end"]
    assert said(rank=0, tail=1) == ["[0]<stdout>:c"]  # of that rank
    assert said(rank=1, stamped=True) == [
        f"2026-01-01T00:00:0{at}.000000000Z [1]<stdout>:{each}" for at, each in ((1, "b"), (3, "d"))
    ]
    assert said(tail=0) == []
    assert said(tail=1, since="2026-01-01T00:00:00Z") == ["end"]
    assert said(tail=0, rank=1) == []


def test_another_pod_and_container_are_read_if_they_are_the_jobs(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    kube.put("pods", bodies.pod("other", labels={"hvd-elastic-job": "other"}))
    kube.logs.write("digits-worker-0", "mine")
    (container,) = (each["name"] for each in bodies.pod("x")["spec"]["containers"])
    assert list(logs.lines(cluster, "digits", LogOptions(pod="digits-worker-0", container=container))) == ["mine\n"]
    with pytest.raises(UsageError, match="digits has no pod 'other'; its pods: digits-launcher-x, digits-worker-0"):
        next(logs.lines(cluster, "digits", LogOptions(pod="other")))
    with pytest.raises(UsageError, match=f"pod digits-worker-0 has no container 'x'; there are {container}"):
        next(logs.lines(cluster, "digits", LogOptions(pod="digits-worker-0", container="x")))
    with pytest.raises(UsageError, match="pod digits-worker-0 does not tell ranks apart"):
        next(logs.lines(cluster, "digits", LogOptions(pod="digits-worker-0", rank=0)))
    kube.logs.write("digits-launcher-x", "[0]<stdout>:a", "[1]<stdout>:b")
    assert list(logs.lines(cluster, "digits", LogOptions(pod="digits-launcher-x", rank=1))) == ["[1]<stdout>:b\n"]


def test_a_previous_container_has_ended_so_nobody_follows_it(kube: KubeServer, cluster: Cluster) -> None:
    launched(kube, cluster)
    kube.logs.write("digits-launcher-x", "failed")
    kube.logs.start("digits-launcher-x")
    assert list(logs.lines(cluster, "digits", LogOptions(follow=True, previous=True))) == ["failed\n"]


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_a_follower_of_a_job_without_pods_ends_with_the_job(kube: KubeServer, cluster: Cluster, kind: str) -> None:
    making.create(cluster, list(rendered(example(kind)).objects))

    def sleep(_: float) -> None:
        changes.delete(cluster, "digits")

    with pytest.raises(UsageError, match="there is no job digits"):
        next(logs.lines(cluster, "digits", LogOptions(follow=True), sleep=sleep))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--tail=-2"], "--tail -2: it must be greater than or equal to -1"),
        (["--since", "soon"], "--since 'soon': write a time, such as --since 30s"),
        (["--since", "0"], "--since 0: it must be greater than 0"),
        (["--since-time", "today"], "--since-time 'today' is not a time; write it as 2026-01-31T07:00:00Z"),
        (["--since", "5m", "--since-time", "2026-01-31T07:00:00Z"], "not allowed with argument --since"),
        (["--rank=-1"], "--rank -1: ranks count from 0"),
    ],
)
def test_a_part_that_makes_no_sense_is_told(
    cluster: Cluster, tmp_path: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["logs", "digits", "--kubeconfig", str(tmp_path / "config"), *words]) == 2
    assert why in capsys.readouterr().err
