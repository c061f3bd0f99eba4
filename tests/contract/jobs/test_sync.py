"""Code that is too large for a ConfigMap gets into the launcher's pod: on our server, and with HVD_TEST_KUBECONFIG and
HVD_TEST_IMAGE (an image with sh, head, tar and sha256sum) on a real one, too."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.cli import attach, submit
from hvd_elastic_ext.jobs.cluster import changes, making, terminal
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.cluster.making import rendered_of, with_key
from hvd_elastic_ext.jobs.rendering.code import FITS, SENT
from hvd_elastic_ext.jobs.rendering.objects import templates
from hvd_elastic_ext.jobs.spec.job import Job
from tests.contract.kube.client import MERGE, STRATEGIC
from tests.contract.kube.conftest import Space
from tests.support.kube.execstreams import V4, V5
from tests.support.kube.server import KubeServer

IMAGE = "HVD_TEST_IMAGE"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    (made / "data").mkdir(parents=True)
    (made / "train.py").write_text("x = 1\n")
    (made / "data" / "large").write_bytes(os.urandom(FITS + 100_000))
    return made


class Pod:
    """The launcher's. On a server without a kubelet the test makes it, and ``place`` stands for its folder."""

    def __init__(self, space: Space, cluster: Cluster, place: Path, server: KubeServer | None) -> None:
        self.space, self.cluster, self.place, self.server = space, cluster, place, server
        self.name = "digits-launcher-x"
        place.mkdir()
        if server is not None:
            server.execs.place = lambda pod, container, words: [
                str(place) if each == "/code" else each for each in words
            ]

    def appears(self) -> None:
        if self.server is None:
            return
        root = changes.root_of(self.cluster, "digits")
        template = next(each for role, each in templates(root) if role == "launcher")
        body = {"kind": "Pod", "apiVersion": "v1", **template, "metadata": {**template["metadata"], "name": self.name}}
        body["spec"] = {**body["spec"], "nodeName": self.space.node()}
        self.space.api.done("POST", self.space.pods, body)

    def becomes(self, state: dict[str, Any]) -> None:
        if self.server is not None:
            said = {"name": SENT, "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": state}
            status = {"phase": "Pending", "initContainerStatuses": [said]}
            path = self.space.path("pods", self.name, "status")
            self.space.api.done("PATCH", path, {"status": status}, media=STRATEGIC)

    def has(self, name: str) -> bytes:
        if self.server is not None:
            pod = self.space.api.done("GET", f"{self.space.pods}/{self.name}").body
            words = [each.replace("$$", "$") for each in pod["spec"]["initContainers"][0]["command"]]
            subprocess.run([str(self.place) if each == "/code" else each for each in words], check=True, timeout=60)
            return (self.place / name).read_bytes()
        found = bytearray()
        body = attach.pod_of(self.cluster, "digits")
        words = ["cat", f"/code/{name}"]
        assert terminal.run(self.cluster, body, words, source=None, write=lambda _, data: found.extend(data)) == 0
        return bytes(found)


RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {"terminated": {"exitCode": 0, "reason": "Completed"}}


@pytest.fixture
def pod(space: Space, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Pod:
    real = request.node.callspec.params["api"] == "real"
    if real and not os.environ.get(IMAGE):
        pytest.skip(f"set {IMAGE} to an image with sh, head, tar and sha256sum that the cluster can pull")
    return Pod(space, cluster, tmp_path / "place", None if real else request.getfixturevalue("_ours"))


def submitted(cluster: Cluster, folder: Path) -> bytes:
    """Make a job; what its launcher's pod waits for."""
    image = os.environ.get(IMAGE, "example.org/none:1")
    job = Job(name="digits", image=image, command=("python", "train.py"), kind="statefulset", sync=str(folder))
    rendered = rendered_of(job)
    making.create(cluster, list(with_key(rendered, job)))
    return rendered.archive


def between(*acts: Callable[[], object]) -> Callable[[float], None]:
    """What happens while something is waited for."""
    left = list(acts)

    def sleep(seconds: float) -> None:
        if left:
            left.pop(0)()
        else:
            time.sleep(seconds)  # on a real cluster pods take their time

    return sleep


@pytest.mark.parametrize("protocols", [(V5, V4), (V4,)])
def test_code_is_sent_once_and_whole_when_the_launchers_pod_waits_for_it(
    pod: Pod, cluster: Cluster, folder: Path, protocols: tuple[str, ...]
) -> None:
    archive, said = submitted(cluster, folder), []
    sleep = between()
    if pod.server is not None:
        pod.server.execs.protocols = protocols
        starting = {"waiting": {"reason": "PodInitializing"}}
        sleep = between(pod.appears, lambda: pod.becomes(starting), lambda: pod.becomes(RUNNING))
    assert making.send(cluster, "digits", archive, report=said.append, sleep=sleep)
    assert said[0] == "waiting to send the code: the launcher's pod is not made yet"
    if pod.server is not None:
        assert said[1:] == [f"waiting to send the code: {pod.name}: {why}" for why in ("Pending", "PodInitializing")]
        assert len(pod.server.execs.commands) == 1
        pod.becomes(ENDED)
    assert pod.has("train.py") == b"x = 1\n"
    assert pod.has("data/large") == (folder / "data" / "large").read_bytes()
    assert not making.send(cluster, "digits", archive, sleep=sleep)


@pytest.fixture
def waiting(pod: Pod, cluster: Cluster, folder: Path) -> Pod:
    """The pod of a job whose submit was interrupted."""
    if pod.server is None:
        pytest.skip("what a pod waits for is made up")
    submitted(cluster, folder)
    pod.appears()
    pod.becomes(RUNNING)
    return pod


def test_code_that_did_not_get_there_is_sent_by_hand_and_other_files_are_refused(
    waiting: Pod, config: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(config)]
    assert cli.main(["get", "digits", *where]) == 0
    assert "it waits for its code: hvd-elastic sync digits FOLDER" in capfd.readouterr().out
    (folder / "train.py").write_text("x = 2\n")
    assert cli.main(["sync", "digits", str(folder), *where]) == 2
    assert "has others (" in capfd.readouterr().err
    (folder / "train.py").write_text("x = 1\n")
    assert cli.main(["sync", "digits", str(folder), *where]) == 0
    assert "bytes of code sent" in capfd.readouterr().out
    assert waiting.has("train.py") == b"x = 1\n"


def test_a_submit_that_is_interrupted_says_how_the_code_is_sent_later(
    waiting: Pod, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(making, "send", stopped)
    with pytest.raises(KeyboardInterrupt):
        submit.hand_over(cluster, "digits", b"x", folder="my code")
    again = f"hvd-elastic sync digits 'my code' -n {cluster.namespace}"
    assert capfd.readouterr().err == f"digits waits for its code; to send it: {again}\n"


def test_a_pod_that_cannot_unpack_says_why(waiting: Pod, cluster: Cluster, folder: Path) -> None:
    waiting.place.rmdir()
    waiting.place.write_text("a file, so that nothing can be in it\n")
    with pytest.raises(making.NotSent, match=r"unpacking ended with 1: mkdir: .*; the image needs sh, head, tar"):
        making.send(cluster, "digits", making.packed_code(folder))


def test_a_job_without_code_to_send_and_one_that_has_ended_are_told(
    pod: Pod, cluster: Cluster, folder: Path, space: Space
) -> None:
    if pod.server is None:
        pytest.skip("what a pod waits for is made up")
    (folder / "data" / "large").unlink()
    assert submitted(cluster, folder) == b""
    ended = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    path = space.path("jobs", "digits", "status", group="batch/v1")
    space.api.done("PATCH", path, ended, media=MERGE)
    with pytest.raises(UsageError, match="digits has ended"):
        making.send(cluster, "digits", b"x")
    pod.appears()
    with pytest.raises(UsageError, match="does not wait for code"):
        making.send(cluster, "digits", b"x")
