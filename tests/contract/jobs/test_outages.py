"""Long commands while the API server is away, and while it has just come back and knows no roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.jobs.cli import get
from hvd_elastic_ext.jobs.cluster import changes, logs, making
from hvd_elastic_ext.jobs.cluster.api import Cluster, Patience
from hvd_elastic_ext.jobs.cluster.logs import LogOptions
from hvd_elastic_ext.jobs.reading.states import RUNNING
from tests.support.jobs import example, rendered
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer

__all__ = ["kube"]

SAID = [
    "no answer from the API server: Connection refused; trying again for up to 600 s",
    "the API server answers again",
]


@pytest.fixture
def cluster(kube: KubeServer, tmp_path: Path) -> Cluster:
    """As an account with usual rights sees it: after a restart, only those are unknown for a while."""
    kube.clock.stop()
    token = kube.namespace_admin()
    made = Cluster(Access(str(kube.kubeconfig(tmp_path / "config", token=token))))
    making.create(made, list(rendered(example("statefulset")).objects))
    return made


class Outage:
    """A clock whose sleeps let a server go and come back: one step for each sleep."""

    def __init__(self, kube: KubeServer, *steps: Callable[[], object]) -> None:
        self.kube, self.steps = kube, list(steps)
        self.now = 0.0
        self.said: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.steps:
            self.steps.pop(0)()

    def patience(self) -> Patience:
        def say(line: str) -> None:
            # A connection that was being opened as the server went is reset.
            self.said.append(line.replace("Connection reset by peer", "Connection refused"))

        return Patience(say=say, sleep=self.sleep, clock=lambda: self.now)


def away(kube: KubeServer, after: Callable[[], object]) -> Outage:
    """It is away, comes back without roles, has them again, and then something happens."""
    return Outage(
        kube,
        kube.refuse,
        lambda: None,
        lambda: kube.restart(cold=1.0),
        lambda: None,
        lambda: kube.clock.advance(2),
        after,
    )


def runs(kube: KubeServer) -> None:
    kube.change("jobs", "digits", {"status": {"active": 1, "ready": 1}})


def test_wait_goes_on_after_an_outage_and_says_so_once(kube: KubeServer, cluster: Cluster) -> None:
    outage = away(kube, lambda: runs(kube))
    how = {"sleep": outage.sleep, "clock": lambda: outage.now, "patience": outage.patience()}
    assert changes.wait_for(cluster, "digits", (RUNNING,), **how) == RUNNING
    assert (outage.steps, outage.said) == ([], SAID)


def test_a_time_limit_holds_during_an_outage(kube: KubeServer, cluster: Cluster) -> None:
    outage = Outage(kube, kube.refuse)
    how = {"sleep": outage.sleep, "clock": lambda: outage.now, "patience": outage.patience()}
    with pytest.raises(ApiError, match=r"Connection refused|reset by peer"):
        changes.wait_for(cluster, "digits", (RUNNING,), within_s=30, **how)
    assert outage.now == pytest.approx(30)


@pytest.mark.parametrize("name", ["digits", None])
def test_a_watch_goes_on_after_an_outage(kube: KubeServer, cluster: Cluster, name: str | None) -> None:
    lines: list[str] = []
    outage = away(kube, lambda: runs(kube))

    class Seen(Exception):
        pass

    def write(line: str) -> None:
        lines.append(line)
        if "Running" in line:
            raise Seen

    with pytest.raises(Seen):
        get.watch(cluster, name, wide=False, write=write, sleep=outage.sleep, patience=outage.patience())
    assert [line.split()[2] for line in lines if line.startswith("digits ")] == ["Pending", "Running"]
    assert outage.said == SAID


def test_a_suspension_is_done_after_an_outage(kube: KubeServer, cluster: Cluster) -> None:
    kube.put("pods", bodies.pod("digits-x", labels={"hvd-elastic-job": "digits", "hvd-elastic-role": "launcher"}))
    outage = away(kube, lambda: kube.remove("pods", "digits-x"))
    changes.suspend(cluster, "digits", sleep=outage.sleep, patience=outage.patience())
    assert (outage.steps, outage.said) == ([], SAID)
    assert changes.look(cluster, "digits").asked == 0


@pytest.mark.parametrize("pod", ["", "digits-x"])
def test_a_follower_of_output_goes_on_after_an_outage(kube: KubeServer, cluster: Cluster, pod: str) -> None:
    kube.put("pods", bodies.pod("digits-x", labels={"hvd-elastic-job": "digits", "hvd-elastic-role": "launcher"}))
    kube.logs.write("digits-x", "one")
    outage = Outage(
        kube,
        lambda: None,
        lambda: kube.restart(cold=1.0),
        lambda: None,
        lambda: None,
        lambda: kube.clock.advance(2),
        lambda: kube.logs.write("digits-x", "two"),
    )
    how = {"sleep": outage.sleep, "patience": outage.patience()}
    lines = logs.lines(cluster, "digits", LogOptions(follow=True, pod=pod), **how)
    assert next(lines) == "one\n"
    kube.refuse()
    assert next(lines) == "two\n"
    assert (outage.steps, outage.said) == ([], SAID)


def test_a_right_to_logs_that_is_missing_is_told_at_once(kube: KubeServer, cluster: Cluster) -> None:
    kube.put("pods", bodies.pod("digits-x", labels={"hvd-elastic-job": "digits", "hvd-elastic-role": "launcher"}))
    first, *others = kube.get("clusterroles", "admin")["rules"]
    less = {**first, "resources": [each for each in first["resources"] if each != "pods/log"]}
    kube.change("clusterroles", "admin", {"rules": [less, *others]})
    outage = Outage(kube)
    with pytest.raises(ApiError, match='cannot get resource "pods/log"'):
        next(logs.lines(cluster, "digits", LogOptions(follow=True), sleep=outage.sleep, patience=outage.patience()))
    assert outage.now == 0


def test_a_server_that_was_never_there_is_told_at_once(kube: KubeServer, cluster: Cluster) -> None:
    outage = Outage(kube)
    with kube.down(), pytest.raises(ApiError):
        changes.wait_for(cluster, "digits", (RUNNING,), sleep=outage.sleep, patience=outage.patience())
    assert (outage.now, outage.said) == (0, [])


def test_a_token_that_was_replaced_is_read_again(kube: KubeServer, tmp_path: Path) -> None:
    token, (old, new) = tmp_path / "token", [kube.access.issue("me", "system:masters") for _ in range(2)]
    token.write_text(old)
    cluster = Cluster(Access(str(kube.kubeconfig(tmp_path / "config", token_file=token))))
    assert cluster.listed("v1", "pods") == []
    kube.access.revoke(old)
    with pytest.raises(ApiError, match="401 Unauthorized; your token is invalid, or has expired"):
        cluster.listed("v1", "pods")
    token.write_text(new)
    assert cluster.listed("v1", "pods") == []
