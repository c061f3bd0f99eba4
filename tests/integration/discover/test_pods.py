"""The daemon before an API server: what its files say, and when."""

import contextlib
import json
import logging
import socket
import subprocess
import threading
from typing import Any

import pytest

from tests.support.kube.bodies import mpi_worker_labels, node, pod
from tests.support.kube.fixtures import kube
from tests.support.waiting import wait_until

__all__ = ["kube"]

DEADLINE = 90.0
LABELS = mpi_worker_labels("job")


class Workers:
    """Pods whose addresses are of this machine, each on a node of its own, and what listens there."""

    def __init__(self, kube) -> None:
        self._kube = kube
        self._listening: dict[str, socket.socket] = {}
        self._holder = socket.socket()  # so that nobody else is given this port meanwhile
        self._holder.bind(("127.0.0.1", 0))
        self.port = self._holder.getsockname()[1]

    @staticmethod
    def ip(number: int) -> str:
        return f"127.0.9.{number}"

    def line(self, *numbers: int) -> str:
        return "".join(f"{self.ip(number)}:1\n" for number in numbers)

    def add(self, *numbers: int, listening: bool = True) -> None:
        for number in numbers:
            if listening:
                self.listen(number)
            self._kube.put("nodes", node(f"n{number}"))
            body = pod(f"w-{number}", node=f"n{number}", labels=LABELS, ip=self.ip(number))
            self._kube.put("pods", body)

    def listen(self, number: int) -> None:
        if number not in self._listening:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.ip(number), self.port))
            listener.listen()
            self._listening[number] = listener

    def close(self) -> None:
        for listener in (self._holder, *self._listening.values()):
            listener.close()


class Reader:
    """Reads a file all the time and keeps each text that differs from the one before."""

    def __init__(self, path) -> None:
        self.seen: list[str | None] = []
        self._path = path
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._done.wait(0.002):
            try:
                text = self._path.read_text()
            except FileNotFoundError:
                text = None
            if not self.seen or self.seen[-1] != text:
                self.seen.append(text)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


class Following:
    """What the daemon is told to do, and what it says."""

    def __init__(self, kube, workers: Workers, place) -> None:
        self.place = place
        self.options = ["--source", "kubernetes", "--kubeconfig", str(kube.kubeconfig(place.directory / "config"))]
        self.options += ["--job", "job", "--host-name", "{ip}", "--settle", "0.1"]
        self.options += ["--admission-probe", f"tcp:{workers.port}"]

    def daemon(self, *options: object):
        script = ["--hosts-file", str(self.place.hosts), "--script", str(self.place.directory / "hosts.sh")]
        return self.place.serve_here([*self.options, *script, *map(str, options)])

    def until(self, text: str) -> None:
        wait_until(
            lambda: self.place.published() == text,
            what=f"{text!r} published",
            timeout=DEADLINE,
            show=self.place.published,
        )

    def pushed(self) -> dict[str, Any]:
        status, body = self.place.get("/hosts")
        return json.loads(body) if status == 200 else {"hosts": [], "departing": []}

    def hosts(self) -> list[str]:
        """As they are pushed: unlike the file without a last survivor."""
        return [each["name"] for each in self.pushed()["hosts"]]


@pytest.fixture
def workers(kube):
    made = Workers(kube)
    yield made
    made.close()


@pytest.fixture
def following(kube, workers, place):
    return Following(kube, workers, place)


def test_rule_27_a_restart_never_shrinks_what_stands_before_it_knows(kube, workers, following, caplog):
    hosts = following.place.hosts
    hosts.parent.mkdir()
    hosts.write_text(workers.line(1, 2))  # as a daemon that was killed has left it
    workers.add(1, listening=False)  # who was published is not asked again
    with Reader(hosts) as reader, contextlib.ExitStack() as daemon:
        with kube.down():
            daemon.enter_context(following.daemon())
            wait_until(lambda: "keeping the hosts known so far" in caplog.text, what="the refusal", timeout=DEADLINE)
            assert following.place.get("/livez")[0] == 200
            assert following.place.get("/startupz")[0] == 503
        following.until(workers.line(1))
        wait_until(lambda: reader.seen[-1] == workers.line(1), what="the reader", timeout=DEADLINE)
        wait_until(lambda: following.place.get("/startupz")[0] == 200, what="startup", timeout=DEADLINE)
        workers.add(3)
        following.until(workers.line(1, 3))
        wait_until(lambda: reader.seen[-1] == workers.line(1, 3), what="the reader", timeout=DEADLINE)
        wait_until(lambda: following.hosts() == [workers.ip(1), workers.ip(3)], what="the push", timeout=DEADLINE)
    assert reader.seen == [workers.line(1, 2), workers.line(1), workers.line(1, 3)]


@pytest.mark.soak
def test_rule_20_the_last_survivor_stays_in_the_file_and_not_in_the_push(kube, workers, following):
    workers.add(1, 2)
    with following.daemon():
        following.until(workers.line(1, 2))
        with Reader(following.place.hosts) as reader:
            for number in (1, 2):
                kube.delete("pods", f"w-{number}", grace=600)
            wait_until(lambda: len(following.pushed()["departing"]) == 2, what="both departing", timeout=DEADLINE)
            assert following.pushed()["hosts"] == []
            wait_until(lambda: len(following.place.published().split()) == 1, what="one left", timeout=DEADLINE)
            survivor = following.place.published()
            wait_until(lambda: reader.seen[-1] == survivor, what="the reader", timeout=DEADLINE)
            workers.add(3)
            following.until(workers.line(3))
            wait_until(lambda: reader.seen[-1] == workers.line(3), what="the reader", timeout=DEADLINE)
    assert survivor in (workers.line(1), workers.line(2))
    assert reader.seen[-3:] == [survivor, survivor + workers.line(3), workers.line(3)]


def test_rule_27_28_without_pods_the_file_is_empty_and_the_daemon_ends_well_when_the_other_container_has(
    kube, following, caplog
):
    caplog.set_level(logging.INFO)
    own = pod("launcher-x", labels={})
    own["spec"]["containers"] = [{"name": "launcher"}, {"name": "discover"}]
    own["spec"]["restartPolicy"] = "Never"
    kube.put("pods", own)
    with following.daemon("--exit-with-container", "launcher", "--own-pod", "launcher-x") as daemon:
        following.until("")
        ran = subprocess.run([following.place.directory / "hosts.sh"], capture_output=True, text=True, check=True)
        assert ran.stdout == ""
        wait_until(lambda: following.place.get("/startupz")[0] == 200, what="startup", timeout=DEADLINE)
        ended = {"name": "launcher", "state": {"terminated": {"exitCode": 137}}}
        kube.change("pods", "launcher-x", {"status": {"containerStatuses": [ended]}})
        assert daemon.wait(DEADLINE) == 0
        assert "stopping: container launcher has ended with exit code 137; the published hosts stay" in caplog.text
        assert "--own-pod" not in caplog.text


@pytest.mark.soak
def test_as_an_init_container_that_is_no_sidecar_it_ends_with_the_remedy(kube, following, caplog):
    own = pod("launcher-x", labels={}, phase="Pending")
    own["spec"]["initContainers"] = [{"name": "discover"}]
    own["status"]["initContainerStatuses"] = [{"name": "discover", "state": {"running": {}}}]
    kube.put("pods", own)
    with following.daemon("--own-pod", "launcher-x") as daemon:
        assert daemon.wait(DEADLINE) == 2
        assert "init container discover, which is this one" in caplog.text
        assert "Traceback" not in caplog.text
