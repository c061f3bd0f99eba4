"""The kubelets of tests: no silent errors, and no harm to other processes."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.kube.containers import Container, command
from tests.support.kube.fixtures import kube as kube  # a fixture
from tests.support.kube.kubelets import Kubelets
from tests.support.kube.server import KubeServer
from tests.support.nethosts import NetHosts
from tests.support.waiting import wait_until


class NoHosts(NetHosts):
    """A network without any."""

    def __init__(self) -> None: ...

    def __iter__(self):
        return iter(())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_the_loop_of_kubelets_is_kept(kube: KubeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    error = LookupError("a defect")

    def fail(*_: object) -> None:
        raise error

    with Kubelets(kube, NoHosts(), main=command(["true"])) as kubelets:
        assert kubelets.errors == []
        monkeypatch.setattr(kube, "all", fail)
        wait_until(lambda: kubelets.errors, what="the error")
        assert kubelets.errors == [error]


def test_a_signal_to_an_ended_container_hits_no_process_with_its_number() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    ended.pid = os.getpid()  # reused: by a process with a child of its own
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        container = Container.__new__(Container)
        container._outside, container.first = ended, stranger.pid
        container.kill()
        container.signal(9)
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.1)
    finally:
        stranger.kill()
        stranger.wait()
