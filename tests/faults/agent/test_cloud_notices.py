"""A real agent whose cloud takes its host back, does not answer, or does not exist."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvd_elastic_ext.agent.notices.poller import cloud_of_firmware, firmware
from tests.contract.notices.test_looks import KINDS
from tests.faults.agent.launching import Begin, Launcher, Session, launching, python, socket_file
from tests.support import marks
from tests.support.metadata import AwsService, AzureService, GcpService, MetadataServer
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

OFTEN = """
from hvd_elastic_ext.agent.notices.poller import CLOUDS, class_of
for name in CLOUDS: class_of(name).every_s = 0.1
"""


def settings(source: str | None, server: MetadataServer[Any]) -> dict[str, str]:
    return {"notices_from": source, "metadata_url": server.url}


def children(agent: RunningProcess) -> list[int]:
    return [child.pid for child in psutil.Process(agent.pid).children()]


def child_of(agent: RunningProcess) -> int:
    """Return the child that asks the cloud: the only one of an agent without slots, after the end of its resolver."""
    return wait_until(lambda: len(found := children(agent)) == 1 and found[0], what="one child")


@pytest.mark.parametrize("cloud", ["aws", "azure"])  # tests/contract/notices has all clouds
def test_a_host_with_notice_from_its_cloud_is_going_until_the_notice_is_withdrawn(
    launcher: Launcher, begin: Begin, cloud: str
) -> None:
    service, give, within_s = KINDS[cloud]
    found = cloud == (
        cloud_of_firmware(firmware) or "azure"
    )  # if these tests run in a cloud, the agent finds that one itself
    with MetadataServer(service()) as server:
        launcher.options = settings("auto" if found else cloud, server)
        begin(launcher, preset=OFTEN)
        session = launcher.session()
        wait_until(lambda: server.calls, what="a question")
        give(server.service)
        going = session.wait_for("going")
        assert f"by {cloud}" in going["reason"].lower()
        assert within_s - 15 <= going["in_s"] <= within_s + 1
        session.order(python(0, "print('up')"))  # the agent still starts processes: the launcher decides about work
        assert session.wait_for("exited", 0)["code"] == 0
        server.service.withdraw()
        session.wait_for("staying", timeout=40)
        assert len(session.news("going")) == 1


def test_advice_is_no_notice_and_of_two_notices_the_earlier_deadline_counts(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    with MetadataServer(AzureService()) as server:
        launcher.options = settings("azure", server)
        begin(launcher, preset=OFTEN)
        session = launcher.session()
        server.service.schedule("Terminate", in_s=900.0)
        assert "deleted by Azure" in session.wait_for("advised")["reason"]
        server.service.withdraw()
        assert session.wait_for("advised", count=2)["reason"] is None
        assert not session.news("going")
        path = socket_file(tmp_path)
        path.with_name(f"{path.name}.notice").write_text("drained by Ops")
        assert session.wait_for("going")["reason"] == "drained by Ops"
        server.service.schedule("Preempt")
        assert "Azure" in session.wait_for("going", count=2)["reason"]
        server.service.withdraw()
        assert session.wait_for("going", count=3) == {"event": "going", "reason": "drained by Ops", "in_s": None}
        assert not session.news("staying")


def test_a_cloud_that_does_not_answer_is_reported_once_and_so_is_its_return(launcher: Launcher, begin: Begin) -> None:
    server: MetadataServer[GcpService] = MetadataServer(GcpService())
    launcher.options = settings("gcp", server)
    begin(launcher, preset=OFTEN)
    session = launcher.session()
    deaf = session.wait_for("notices_unavailable", timeout=60)
    assert deaf["source"] == "gcp"
    assert "refused" in deaf["reason"]
    with server:
        assert session.wait_for("notices_unavailable", count=2, timeout=60)["reason"] is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"notices_from": "amazon"}, "'amazon' is not a known cloud"),
        ({"metadata_url": "https://metadata"}, "is not an address"),
    ],
)
def test_invalid_settings_are_reported_and_training_continues(
    launcher: Launcher, begin: Begin, changes: dict[str, str], said: str
) -> None:
    launcher.options = {"notices_from": "aws", **changes}
    begin(launcher)
    session = launcher.session()
    assert said in session.wait_for("notices_unavailable")["reason"]
    session.order(python(0, "print('up')"))
    assert session.wait_for("exited", 0)["code"] == 0


def test_an_endpoint_that_hangs_delays_nothing(launcher: Launcher, begin: Begin) -> None:
    with MetadataServer(AzureService()) as server:
        server.faults.hang()
        launcher.options = settings("azure", server)
        begin(launcher)
        session = launcher.session()
        wait_until(lambda: server.faults.fired, what="a question")
        session.wait_for("beats", count=len(session.news("beats")) + 3)
        session.order(python(0, "print('up')"))
        assert session.wait_for("exited", 0)["code"] == 0


def test_a_killed_cloud_watcher_is_replaced_and_its_last_answer_holds(launcher: Launcher, begin: Begin) -> None:
    with MetadataServer(GcpService()) as server:
        server.service.preempt()
        launcher.options = settings("gcp", server)
        agent = begin(launcher)
        session = launcher.session()
        session.wait_for("going")
        first = child_of(agent)
        asked = len(server.calls)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: marks.start_time(first) is None and child_of(agent) != first, what="another")
        wait_until(lambda: len(server.calls) > asked + 1, what="its questions")
        server.service.withdraw()
        session.wait_for("staying")
        assert len(session.news("going")) == 1
        second = child_of(agent)
        agent.kill()
        agent.wait()
        wait_until(lambda: marks.start_time(second) is None, what="its end")


def test_a_host_may_name_the_address_of_its_cloud_itself(
    launcher: Launcher, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MetadataServer(GcpService()) as server:
        monkeypatch.setenv("HVD_ELASTIC_METADATA_URL", server.url)
        monkeypatch.setenv("HVD_ELASTIC_NOTICES_FROM", "aws")  # which cloud is asked is for the job to say
        launcher.options = {"notices_from": "gcp"}
        begin(launcher)
        server.service.preempt()
        launcher.session().wait_for("going")


def test_the_next_launcher_may_choose_another_cloud_or_none(launcher: Launcher, begin: Begin) -> None:
    with MetadataServer(GcpService()) as first, MetadataServer(AwsService()) as second:
        first.service.preempt()
        launcher.options = settings("gcp", first)
        agent = begin(launcher)
        launcher.session().wait_for("going")
        launcher.close()
        for server, source in ((second, "aws"), (first, None)):
            with launching(incarnation=launcher.incarnation + 1, key=launcher.key) as launcher:
                launcher.options = settings(source, server)
                begin(launcher)
                session = launcher.session()
                if source == "aws":
                    wait_until(lambda: second.calls, what="a question")
                    last(session, "staying")
                    second.service.interrupt()
                    session.wait_for("going")
                else:
                    last(session, "staying")
                    wait_until(lambda: not children(agent), what="nobody that looks", timeout=60)


def last(session: Session, event: str) -> None:
    """Check the last message about the host."""
    wait_until(lambda: [n["event"] for n in session.news("going", "staying")][-1:] == [event], what=event)
