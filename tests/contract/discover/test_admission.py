"""The admission probe on real sockets: hosts are addresses of this machine, each with one port, open or not."""

import contextlib
import socket
import threading

import pytest

from discover.daemon.admission_probe import TcpProbe
from discover.verdicts.damping import ProbeResults
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.hosts import Host
from tests.support.waiting import wait_until

DEADLINE = 60.0
A, B = Host("127.0.7.1", 1, "uid-a"), Host("127.0.7.2", 1, "uid-b")


class Asking:
    """Asks as the source does: with everything that waits, whenever there may be news."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        holder = stack.enter_context(socket.socket())  # so that nobody else is given this port meanwhile
        holder.bind(("127.0.0.1", 0))
        self.port = holder.getsockname()[1]
        self.news = threading.Event()
        self.probe = TcpProbe(self.port, clock=SystemClock())
        stack.callback(self.probe.stop)
        self.probe.start(self.news.set)

    def open(self, host: Host) -> socket.socket:
        listener = self._stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.name, self.port))
        listener.listen()
        return listener

    def ask(self, *wanted: Host, there: set[str] | None = None) -> ProbeResults:
        return self.probe.follow(wanted, there=there or {host.uid for host in wanted})

    def until_admitted(self, host: Host, *wanted: Host) -> None:
        wait_until(lambda: self.ask(host, *wanted).admit(host), what=f"{host.name} admitted", timeout=DEADLINE)

    def until_refused(self, host: Host) -> str:
        return wait_until(lambda: self.ask(host).refused.get(host.uid), what=f"{host.name} refused", timeout=DEADLINE)


@pytest.fixture
def asking():
    with contextlib.ExitStack() as stack:
        yield Asking(stack)


def test_a_host_is_refused_with_a_reason_until_it_answers_and_admitted_for_life(asking):
    before = asking.ask(A)
    assert not before.admit(A)
    assert asking.news.wait(DEADLINE)
    assert A.name in asking.until_refused(A)
    assert "refused" in asking.until_refused(A)
    listener = asking.open(A)
    asking.until_admitted(A, B)
    assert A.uid not in asking.ask(A).refused
    assert not before.admit(A), "answers stay what they were"
    listener.close()
    for _ in range(10):
        assert asking.ask(A).admit(A)
    assert asking.ask(there={A.uid}).admit(A), "also while it is not asked for"
    assert not asking.ask(there={"another"}).admit(A), "whose pod is gone is forgotten"


@pytest.mark.parametrize("again", [Host(A.name, 1, "uid-a2"), Host(A.name, 1, A.uid, life="another")])
def test_rule_22_a_new_uid_or_container_is_asked_anew_though_its_name_answered(asking, again):
    listener = asking.open(A)
    asking.until_admitted(A)
    listener.close()
    assert not asking.ask(again, there={A.uid, again.uid}).admit(again)
    wait_until(lambda: asking.ask(again, there={A.uid, again.uid}).refused, what="a refusal", timeout=DEADLINE)
    asking.open(A)
    asking.until_admitted(again)


def test_nothing_is_told_once_it_was_stopped(asking):
    asking.until_refused(A)
    asking.probe.stop()
    asking.news.clear()
    asking.open(A)
    asking.ask(A)
    assert not asking.news.is_set()
    asking.probe.stop()
