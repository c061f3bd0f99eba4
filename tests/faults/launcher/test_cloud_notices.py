"""Whole jobs on hosts that ask their cloud: one host gets notice, the notice is withdrawn, and the last host stays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.faults.launcher.stepping_jobs import Training, training
from tests.support import namespaces
from tests.support.metadata import AwsService, GcpService, MetadataServer
from tests.support.nethosts import NetHost, NetHosts
from tests.support.waiting import wait_until

__all__ = ["training"]

BESIDE = "127.0.0.1"
LINK_LOCAL = "169.254.169.254"


def asking(server: MetadataServer[AwsService], processes: int) -> tuple[str, ...]:
    options = ("--notices-from", "aws", "--metadata-url", server.url)
    return ("-np", str(processes), "--heartbeat-timeout", "20", *options)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_spot_instance_leaves_without_losing_a_step_and_returns(
    training: Training,
) -> None:
    training.set_hosts("localhost:1", f"{BESIDE}:1")
    with MetadataServer(AwsService()) as server, training.train(*asking(server, 2)) as process:
        training.wait_for_size(2)
        wait_until(lambda: len(server.service.tokens) == 2, what="a session of each host")
        server.service.interrupt(in_s=300.0, session=1)  # of one of the two hosts: any of them
        training.wait_for("a world without it", lambda: training.causes()[-1] == "hosts removed")
        (notice,) = training.events("notice")
        gone = notice.get("host")
        (stays,) = {"localhost", BESIDE} - {gone}
        assert "terminated by AWS" in notice.get("reason")
        assert 200 < notice.get("deadline") - notice.mono <= 300
        training.wait_for_size(1)
        server.service.withdraw()
        training.wait_for("its return", lambda: training.causes()[-1] == "hosts added")
        training.wait_for_size(2)
        assert [each.get("host") for each in training.events("notice", "notice_over")] == [gone, gone]
        assert [record.get("steps_lost") for record in training.events("resized")[1:]] == [0, 0]

        training.set_hosts(f"{stays}:1")
        training.wait_for_size(1)
        server.service.schedule("system-reboot", in_s=86400.0)
        training.wait_for("the advice", lambda: training.events("advised"))
        assert "reboot" in training.events("advised")[0].get("reason")
        server.service.interrupt(in_s=90.0)
        training.wait_for("the notice", lambda: len(training.events("notice")) == 2)
        before = len(training.shown())
        training.wait_for("further steps", lambda: len(training.shown()) > before + 20)
        server.service.withdraw()
        training.wait_for("its end", lambda: len(training.events("notice_over")) == 2)
        assert process.returncode is None
    training.check_steps()
    training.check_uninterrupted(stays)
    assert training.causes() == ["start", "hosts removed", "hosts added", "hosts removed"]
    assert not training.events("struck", "notices_unavailable")


@contextlib.contextmanager
def metadata_of(host: NetHost) -> Iterator[GcpService]:
    """Run a metadata service on one host only, at the address that clouds use."""
    assert host.run(["ip", "address", "add", f"{LINK_LOCAL}/32", "dev", "lo"]).returncode == 0
    with MetadataServer(
        GcpService(), at=(LINK_LOCAL, 80), open_=lambda: namespaces.socket_in(host.namespace)
    ) as server:
        yield server.service


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_over_ssh_each_host_asks_its_cloud_and_a_preempted_one_leaves_in_time(
    training: Training, nethosts: Callable[[int], NetHosts]
) -> None:
    hosts = nethosts(2)
    training.popen = hosts.launcher.popen
    options = ("--heartbeat-timeout", "20", "--notices-from", "gcp", "--ssh-identity-file", str(hosts.identity))
    training.set_hosts("h1:1", "h2:1")
    with contextlib.ExitStack() as stack:
        _, second = (stack.enter_context(metadata_of(host)) for host in hosts)
        process = stack.enter_context(training.train("-np", "2", *options))
        training.wait_for_size(2)
        second.preempt()
        training.wait_for("a world without it", lambda: training.causes()[-1] == "hosts removed")
        training.wait_for_size(1)
        assert process.returncode is None
    (notice,) = training.events("notice")
    assert (notice.get("host"), "preempted" in notice.get("reason")) == ("h2", True)
    assert 15 < notice.get("deadline") - notice.mono <= 30
    training.check_steps()
    training.check_uninterrupted("h1")
    assert training.causes() == ["start", "hosts removed"]
    assert training.events("resized")[1].get("steps_lost") == 0
    assert not training.events("struck", "notices_unavailable")
