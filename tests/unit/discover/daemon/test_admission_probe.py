"""How hosts are probed: how often, how many at a time, and for how long one that hangs may hang."""

import logging
import queue
import socket
import threading

import pytest

from discover.daemon.admission_probe import FIRST_PAUSE, LONGEST_PAUSE, WARN_AFTER, TcpProbe, connect_error, parse_probe
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import Host
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until

DEADLINE = 60.0
CLOSED = "port 22: connection refused"


def host(number: int) -> Host:
    return Host(f"h{number}", 1, f"uid-{number}")


class Reached:
    """Stands for the network: each attempt waits until the test answers it."""

    def __init__(self) -> None:
        self.attempts: queue.Queue[tuple[str, queue.Queue[str]]] = queue.Queue()

    def __call__(self, name: str, port: int, *, timeout: float) -> str:
        answer: queue.Queue[str] = queue.Queue()
        self.attempts.put((name, answer))
        return answer.get(timeout=DEADLINE)

    def next(self) -> tuple[str, queue.Queue[str]]:
        return self.attempts.get(timeout=DEADLINE)


class Rig:
    def __init__(self, *, most: int = 16) -> None:
        self.clock = ManualClock()
        self.network = Reached()
        self.told = threading.Semaphore(0)
        self.probe = TcpProbe(22, clock=self.clock, most=most, connect_error=self.network)
        self.probe.start(self.told.release)

    def fail_next(self, why: str = CLOSED) -> None:
        """Let the next attempt fail, and wait until that is known."""
        _, answer = self.network.next()
        answer.put(why)

    def close(self) -> None:
        self.probe.stop()
        while not self.network.attempts.empty():
            self.network.next()[1].put(CLOSED)


@pytest.fixture
def rig():
    made = Rig()
    yield made
    made.close()


def follow(rig: Rig, *numbers: int):
    return rig.probe.follow([host(number) for number in numbers], there={host(number).uid for number in numbers})


def waits(rig: Rig) -> None:
    """Wait until nothing runs, so that what is due next depends on the clock alone."""
    wait_until(lambda: not rig.probe._running, what="no probe running", timeout=DEADLINE)


def test_a_failed_probe_is_repeated_after_its_pause_and_not_before(rig):
    follow(rig, 1)
    for failures in range(1, 5):
        rig.fail_next()
        waits(rig)
        rig.clock.advance(pause_after(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE) - 0.01)
        follow(rig, 1)
        with pytest.raises(queue.Empty):
            rig.network.attempts.get(timeout=0.05)
        rig.clock.advance(0.02)
    rig.fail_next("")
    wait_until(lambda: follow(rig, 1).admit(host(1)), what="admitted", timeout=DEADLINE)


def test_a_host_is_refused_with_the_reason_until_it_answers_and_admitted_while_its_pod_is_there(rig):
    before = follow(rig, 1)
    rig.fail_next()
    waits(rig)
    assert follow(rig, 1).refused == {"uid-1": CLOSED}
    rig.clock.advance(FIRST_PAUSE)
    rig.fail_next("")
    waits(rig)
    after = follow(rig, 1)
    assert after.admit(host(1))
    assert after.refused == {}
    assert not before.admit(host(1)), "answers stay what they were"
    assert rig.probe.follow([], there={"uid-1"}).admit(host(1)), "also while it is not asked for"
    assert not rig.probe.follow([], there={"another"}).admit(host(1)), "whose pod is gone is forgotten"


@pytest.mark.parametrize("again", [Host("h1", 1, "uid-1b"), Host("h1", 1, "uid-1", life="another")])
def test_rule_22_a_new_uid_or_container_is_asked_anew_though_its_name_answered(rig, again):
    there = {"uid-1", again.uid}
    follow(rig, 1)
    rig.fail_next("")
    waits(rig)
    assert follow(rig, 1).admit(host(1))
    assert not rig.probe.follow([again], there=there).admit(again)
    rig.fail_next("")
    waits(rig)
    assert rig.probe.follow([again], there=there).admit(again)


def test_at_most_so_many_are_probed_at_a_time_and_all_in_the_end():
    rig = Rig(most=3)
    try:
        numbers = range(20)
        follow(rig, *numbers)
        seen = set()
        pending = []
        for _ in numbers:
            pending.append(rig.network.next())
            seen.add(pending[-1][0])
            if len(pending) == 3:
                assert rig.network.attempts.empty()
                assert len(rig.probe._running) == 3
                pending.pop(0)[1].put("")
        for _, answer in pending:
            answer.put("")
        assert len(seen) == 20
        wait_until(lambda: len(follow(rig, *numbers).admitted) == 20, what="all admitted", timeout=DEADLINE)
    finally:
        rig.close()


def test_many_hanging_probes_delay_others_by_one_attempt_only():
    rig = Rig(most=2)
    try:
        follow(rig, 1, 2, 3)
        hanging = [rig.network.next() for _ in range(2)]
        hanging[0][1].put("no answer in time")
        name, answer = rig.network.next()
        answer.put("")
        assert {name} == {"h1", "h2", "h3"} - {each[0] for each in hanging}
        hanging[1][1].put("no answer in time")
    finally:
        rig.close()


def test_a_host_that_is_no_longer_wanted_is_not_probed_until_it_is(rig):
    follow(rig, 1)
    rig.fail_next()
    waits(rig)
    rig.probe.follow([], there={"uid-1"})
    rig.clock.advance(10.0)
    with pytest.raises(queue.Empty):
        rig.network.attempts.get(timeout=0.05)
    follow(rig, 1)
    rig.fail_next()


def test_an_answer_for_a_pod_that_went_meanwhile_is_nothing(rig):
    follow(rig, 1)
    _, answer = rig.network.next()
    rig.probe.follow([], there={"uid-2"})
    answer.put("")
    waits(rig)
    assert not follow(rig, 2).admit(host(1))


def test_the_same_failure_again_is_no_news(rig):
    follow(rig, 1)
    rig.fail_next()
    assert rig.told.acquire(timeout=DEADLINE)
    waits(rig)
    rig.clock.advance(FIRST_PAUSE)
    rig.fail_next()
    waits(rig)
    assert not rig.told.acquire(blocking=False)
    rig.clock.advance(2 * FIRST_PAUSE)
    rig.fail_next("h1 does not resolve: name or service not known")
    assert rig.told.acquire(timeout=DEADLINE)


def test_one_that_keeps_failing_is_named_once(rig, caplog):
    caplog.set_level(logging.WARNING)
    follow(rig, 1)
    for failures in range(1, WARN_AFTER + 3):
        rig.fail_next(f"h1 {CLOSED}")
        waits(rig)
        rig.clock.advance(pause_after(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE))
    assert [record.getMessage() for record in caplog.records] == [
        f"admission: h1 {CLOSED}; not added before it answers (--admission-probe)"
    ]


def test_stopping_does_not_wait_for_one_that_hangs_and_its_answer_is_not_told(rig):
    clock = SystemClock()
    follow(rig, 1)
    _, answer = rig.network.next()
    began = clock.mono()
    rig.probe.stop()
    took = clock.mono() - began
    answer.put("")
    assert took < 1.9, f"{took:.1f} s"
    waits(rig)
    assert not rig.told.acquire(blocking=False)


def test_a_name_that_does_not_resolve_is_said_to_be_that(monkeypatch):
    def resolve(*_args, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert (
        connect_error("w-0.job.ns.svc", 22, timeout=1.0) == "w-0.job.ns.svc does not resolve: name or service not known"
    )


def test_a_port_refuses_until_somebody_listens():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        refused = f"127.0.0.1 (127.0.0.1) port {port}: connection refused"
        assert connect_error("127.0.0.1", port, timeout=10.0) == refused
        listener.listen()
        assert connect_error("127.0.0.1", port, timeout=10.0) == ""


def test_a_port_that_does_not_answer_is_given_up_in_time():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        # A queue that is full drops further connections in silence, as a firewall does.
        waiting = [socket.socket() for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            assert (
                connect_error("127.0.0.1", port, timeout=0.2) == f"127.0.0.1 (127.0.0.1) port {port}: no answer in time"
            )
        finally:
            for each in waiting:
                each.close()


@pytest.mark.parametrize(("value", "port"), [("tcp:22", 22), ("tcp:65535", 65535), ("none", None)])
def test_what_to_probe_is_a_port_or_nothing(value, port):
    assert parse_probe(value) == port


@pytest.mark.parametrize("value", ["tcp", "tcp:0", "tcp:65536", "udp:22", "tcp:٢٢"])
def test_other_probes_are_refused_in_one_line(value):
    with pytest.raises(UsageError, match=r"write tcp:PORT, the port being 1 to 65535, or none$"):
        parse_probe(value)
