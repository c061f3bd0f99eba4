"""Commands in pods of a job, with the streams of a user."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.jobs.cli import attach
from hvd_elastic_ext.jobs.cluster import making, terminal
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.support.jobs import example, rendered
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube, kube_tls
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

__all__ = ["kube", "kube_tls"]

MINE = {"hvd-elastic-job": "digits"}


@pytest.fixture(params=["kube", "kube_tls"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> KubeServer:
    found: KubeServer = request.getfixturevalue(request.param)
    found.put("pods", bodies.pod("digits-launcher-x", labels={**MINE, "hvd-elastic-role": "launcher"}))
    found.put("pods", bodies.pod("digits-worker-0", labels=MINE))
    found.put("pods", bodies.pod("digits-worker-1", labels=MINE, phase="Pending", ready=False))
    found.put("pods", bodies.pod("other", labels={"hvd-elastic-job": "other"}))
    return found


@pytest.fixture
def cluster(server: KubeServer, tmp_path: Path) -> Cluster:
    made = Cluster(Access(str(server.kubeconfig(tmp_path / "config"))))
    making.create(made, list(rendered(example("mpijob")).objects))
    return made


def ran(cluster: Cluster, *words: str, typed: bytes = b"", pod: str = "") -> tuple[int, bytes, bytes]:
    """Exit code, output and errors of a command whose input is this, and ends."""
    output: dict[int, bytes] = {1: b"", 2: b""}

    def write(channel: int, data: bytes) -> None:
        output[channel] += data

    source, into = os.pipe()
    writer = threading.Thread(target=_typed, args=(into, typed))
    writer.start()
    try:
        code = terminal.run(cluster, attach.pod_of(cluster, "digits", pod), words, source=source, write=write)
    finally:
        writer.join()
        os.close(source)
    return code, output[1], output[2]


def _typed(into: int, data: bytes) -> None:
    while data:
        data = data[os.write(into, data) :]
    os.close(into)


def test_a_command_has_the_users_streams_and_exit_code(cluster: Cluster) -> None:
    assert ran(cluster, "sh", "-c", "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")


def test_input_reaches_the_command_whole_and_ends(cluster: Cluster) -> None:
    typed = os.urandom(300_000)
    assert ran(cluster, "cat", typed=typed) == (0, typed, b"")


def test_the_launcher_is_meant_unless_a_pod_of_the_job_is_named(cluster: Cluster, server: KubeServer) -> None:
    ran(cluster, "true")
    ran(cluster, "true", pod="digits-worker-0")
    assert [pod.name for pod, _, _ in server.execs.commands] == ["digits-launcher-x", "digits-worker-0"]
    with pytest.raises(UsageError, match=r"digits has no pod 'other'; its pods: digits-launcher-x, digits-worker-0"):
        attach.pod_of(cluster, "digits", "other")
    with pytest.raises(UsageError, match="digits-worker-1 does not run; hvd-elastic get digits says why"):
        attach.pod_of(cluster, "digits", "digits-worker-1")


def test_a_terminal_gets_each_key_and_its_size_and_is_given_back_as_it_was(
    cluster: Cluster, server: KubeServer
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    before = termios.tcgetattr(theirs)
    taken = bytearray()
    seen: list[object] = []

    def write(_: int, data: bytes) -> None:
        taken.extend(data)
        if b"ready" in taken and not seen:
            session = server.execs.sessions()[0]
            wait_until(lambda: session.sizes, what="the size")  # it comes on a channel of its own
            seen.extend([*session.sizes, termios.tcgetattr(theirs)[3] & termios.ICANON])
            os.write(ours, b"\x03xy")  # Ctrl-C is the command's, not ours

    body = attach.pod_of(cluster, "digits")
    words = ["sh", "-c", "echo ready; head -c 3 | od -An -tx1"]
    try:
        assert terminal.run(cluster, body, words, source=theirs, write=write, terminal=True) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen == [{"Width": 111, "Height": 33}, 0]
    assert taken.split() == [b"ready", b"03", b"78", b"79"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_us_gives_the_terminal_back_as_it_was(cluster: Cluster, number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    handler = signal.signal(number, lambda *_: None)
    body = attach.pod_of(cluster, "digits")
    try:
        with pytest.raises(SystemExit, match=str(128 + number)):
            terminal.run(
                cluster, body, ["echo", "x"], source=theirs, write=lambda *_: signal.raise_signal(number), terminal=True
            )
        assert termios.tcgetattr(theirs) == before
    finally:
        signal.signal(number, handler)
        os.close(ours)
        os.close(theirs)


def test_a_command_that_cannot_be_run_is_told(cluster: Cluster, server: KubeServer) -> None:
    body = attach.pod_of(cluster, "digits")
    server.change("pods", "digits-launcher-x", {"status": {"phase": "Succeeded"}})
    with pytest.raises(terminal.NotAttached, match=r"pod digits-launcher-x: .*container not found"):
        terminal.run(cluster, body, ["true"], source=None, write=lambda *_: None)


def test_the_command_line_runs_a_shell_or_what_is_given(
    cluster: Cluster,
    server: KubeServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = ["--kubeconfig", str(tmp_path / "config")]
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert (
            cli.main(["attach", "digits", "-i", "digits-worker-0", *where, "--", "sh", "-c", "echo hello; exit 5"]) == 5
        )
        assert cli.main(["attach", "digits", *where]) == 0
        assert cli.main(["attach", "digits", *where, "exit 3"]) == 3
    assert capfd.readouterr().out == "hello\n"
    assert [words for _, _, words in server.execs.commands][1:] == [["sh"], ["sh", "-c", "exit 3"]]


def test_a_container_is_named_as_kubectl_names_it(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(tmp_path / "config")]
    words = ["attach", "digits", *where, "-c"]
    assert cli.main([*words, "x", "--", "true"]) == 1
    assert "pod digits-launcher-x has no container 'x'; there are worker" in capsys.readouterr().err
    assert cli.main(["attach", "digits", "ls", *where]) == 2  # or it would ask another cluster
    assert (
        "a command comes after --, with all that is its own: hvd-elastic attach NAME -- ls" in capsys.readouterr().err
    )


def test_a_closed_input_is_an_empty_one(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as with <&-
    words = ["attach", "digits", "--kubeconfig", str(tmp_path / "config"), "--", "sh", "-c", "exit 7"]
    assert cli.main(words) == 7
    assert sys.stdin.read() == ""
    sys.stdin.close()
