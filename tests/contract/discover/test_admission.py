"""What every admission probe promises: tried on real sockets, and on the one that tests use instead."""

import socket
import threading

import pytest

from discover.selection.damping import ProbeResults
from discover.sources.admission_probe import TcpProbe
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.hosts import Host
from tests.support.fake_admission import FakeAdmission
from tests.support.waiting import wait_until

DEADLINE = 60.0


class OverTcp:
    """Hosts are addresses of this machine, each with one port that is open or not."""

    def __init__(self) -> None:
        self._listening: dict[str, socket.socket] = {}
        self._holder = socket.socket()  # so that nobody else is given this port meanwhile
        self._holder.bind(("127.0.0.1", 0))
        self.port = self._holder.getsockname()[1]
        self.probe = TcpProbe(self.port, clock=SystemClock())

    def open(self, name: str) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((name, self.port))
        listener.listen()
        self._listening[name] = listener

    def shut(self, name: str) -> None:
        self._listening.pop(name).close()

    def close(self) -> None:
        self.probe.stop()
        for listener in (self._holder, *self._listening.values()):
            listener.close()


class InMemory:
    def __init__(self) -> None:
        self.probe = FakeAdmission()
        self.open, self.shut, self.close = self.probe.open, self.probe.shut, self.probe.stop


A, B = Host("127.0.7.1", 1, "uid-a"), Host("127.0.7.2", 1, "uid-b")


class Asking:
    """Asks as the source does: with everything that waits, whenever there may be news."""

    def __init__(self, kind) -> None:
        self.kind = kind
        self.calls = 0
        self.news = threading.Event()

    def start(self) -> None:
        self.kind.probe.start(self._changed)

    def _changed(self) -> None:
        self.calls += 1
        self.news.set()

    def ask(self, *wanted: Host, there: set[str] | None = None) -> ProbeResults:
        return self.kind.probe.follow(wanted, there=there or {host.uid for host in wanted})

    def until_admitted(self, host: Host, *wanted: Host) -> None:
        wait_until(lambda: self.ask(host, *wanted).admit(host), what=f"{host.name} admitted", timeout=DEADLINE)

    def until_refused(self, host: Host) -> str:
        return wait_until(lambda: self.ask(host).refused.get(host.uid), what=f"{host.name} refused", timeout=DEADLINE)


@pytest.fixture(params=[OverTcp, InMemory])
def kind(request):
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def asking(kind):
    made = Asking(kind)
    made.start()
    return made


def test_nobody_is_admitted_unasked(kind, asking):
    kind.open(A.name)
    assert not asking.ask(A).admit(A)


def test_who_answers_is_admitted_and_it_is_told(kind, asking):
    kind.open(A.name)
    asking.ask(A)
    assert asking.news.wait(DEADLINE)
    assert asking.ask(A).admit(A)


def test_a_host_that_does_not_answer_is_refused_with_a_reason(asking):
    asking.ask(A)
    assert asking.news.wait(DEADLINE)
    assert A.name in asking.ask(A).refused[A.uid]
    assert "refused" in asking.ask(A).refused[A.uid]


def test_who_answers_later_is_admitted_then(kind, asking):
    asking.until_refused(A)
    kind.open(A.name)
    asking.until_admitted(A)
    assert A.uid not in asking.ask(A).refused


def test_who_answered_once_is_admitted_for_life(kind, asking):
    kind.open(A.name)
    asking.until_admitted(A)
    kind.shut(A.name)
    for _ in range(10):
        assert asking.ask(A).admit(A)
    assert asking.ask(there={A.uid}).admit(A), "also while it is not asked for"


def test_a_publisher_that_hangs_delays_no_other(kind, asking):
    kind.open(B.name)
    asking.until_admitted(B, A)


def test_rule_22_a_new_uid_is_asked_anew_though_its_name_answered(kind, asking):
    kind.open(A.name)
    asking.until_admitted(A)
    again = Host(A.name, 1, "uid-a2")
    assert not asking.ask(again, there={A.uid, again.uid}).admit(again)
    kind.shut(A.name)
    third = Host(A.name, 1, "uid-a3")
    assert asking.until_refused(third)


def test_a_container_that_was_started_again_is_asked_anew(kind, asking):
    kind.open(A.name)
    asking.until_admitted(A)
    again = Host(A.name, 1, A.uid, life="another")
    assert not asking.ask(again, there={A.uid}).admit(again)
    asking.until_admitted(again)


def test_whose_pod_is_gone_is_forgotten(kind, asking):
    kind.open(A.name)
    asking.until_admitted(A)
    asking.until_refused(B)
    nothing = asking.ask(there={"another"})
    assert not nothing.admit(A)
    assert not nothing.refused


def test_answers_stay_what_they_were(kind, asking):
    before = asking.ask(A)
    kind.open(A.name)
    asking.until_admitted(A)
    assert not before.admit(A)


def test_nothing_is_told_once_it_was_stopped(kind, asking):
    asking.until_refused(A)
    kind.probe.stop()
    calls = asking.calls
    kind.open(A.name)
    asking.ask(A)
    assert asking.calls == calls
    kind.probe.stop()


def test_it_may_be_stopped_before_it_was_started(kind):
    kind.probe.stop()
