"""Workers that die, and hosts that come and go at the worst moments: training continues from the right step."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import sys
import termios
import time
from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from tests.faults.launcher.stepping_jobs import ANY_ENGINE, JOB, QUICK, TRAINEE, Training, training
from tests.support.pages import Answer, read_back
from tests.support.waiting import wait_until

__all__ = ["training"]

FIRST, SECOND, THIRD, FOURTH = HOSTS = ("localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3")
OUT_FOR_LONG: Final = ("--blacklist-cooldown-range", "120", "240")
"""With these options, a host that has failed does not return before the end of the test."""


def hosts_of(job: Training) -> set[str]:
    """Return the hosts of the newest world."""
    resizes = job.events("resized")
    return set(resizes[-1].get("hosts")) if resizes else set()


def sizes(job: Training) -> list[int]:
    return [record.get("size") for record in job.events("resized")]


def ended(job: Training) -> dict[str, str]:
    """Return the cause of the last end of a process on each host."""
    return {record.get("host"): record.get("cause") for record in job.events("exited")}


def wait_for_hosts(job: Training, *names: str) -> None:
    job.wait_for(f"a world of {', '.join(names)}", lambda: hosts_of(job) == set(names), timeout=90)


def come(moment: float) -> None:
    """Wait until a moment (mono): these tests depend on the times of events."""
    wait_until(lambda: time.monotonic() >= moment, what="the next turn", timeout=30)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.soak
def test_a_second_worker_killed_while_the_world_forms_again_costs_the_rest_no_more(training: Training) -> None:
    size = len(HOSTS)
    training.set_hosts(*(f"{name}:1" for name in HOSTS))
    with training.train("-np", str(size), *OUT_FOR_LONG):
        training.wait_for_size(size)
        pids = training.pids()
        with stopped(pids[FIRST]):  # so no other world can form before the second process is killed
            os.kill(pids[SECOND], signal.SIGKILL)
            training.wait_for("the first loss", lambda: set(ended(training)) == {SECOND})
            os.kill(pids[THIRD], signal.SIGKILL)
            training.wait_for("the second loss", lambda: set(ended(training)) == {SECOND, THIRD})
            assert sizes(training) == [size]
        training.wait_for_size(size - 2)
        assert {name: training.pids()[name] for name in pids} == pids  # no process was started again
    training.check_steps()
    assert hosts_of(training) == {FIRST, FOURTH}
    assert set(ended(training).values()) == {"crashed"}
    assert sizes(training) == [size, size - 2]


@pytest.mark.soak
def test_a_veteran_killed_right_after_a_join_leaves_its_state_with_the_newcomer(training: Training) -> None:
    training.set_hosts(f"{FIRST}:1")
    with training.train("-np", "1", *OUT_FOR_LONG, env={"PAUSE_S": "1"}):
        training.wait_for_size(1)
        veteran = training.pids()[FIRST]
        training.set_hosts(f"{FIRST}:1", f"{SECOND}:1")
        both = {FIRST, SECOND}  # a process may be killed after a step and before it has printed it
        training.wait_for("a step together", lambda: {s.host for s in training.shown() if s.size == 2} == both)
        os.kill(veteran, signal.SIGKILL)
        training.wait_for("the loss", lambda: ended(training) == {FIRST: "crashed"})
        training.wait_for_size(1)
    newcomer = [step for step in training.shown() if step.host == SECOND]
    together = [step.count for step in newcomer if step.size == 2]
    alone = [step.count for step in newcomer if step.size == 1]
    shown = [step.count for step in training.shown() if step.size == 2]
    commits = {together[0] - 1, *(count for count in shown if count % 5 == 0)}  # the first commit is that of the sync
    assert alone[0] - 1 in commits
    assert len(together) < 5
    training.check_steps()
    assert hosts_of(training) == {SECOND}


@pytest.mark.soak
def test_at_the_smallest_size_the_rest_waits_for_a_replacement_and_keeps_its_commit(training: Training) -> None:
    training.set_hosts(f"{FIRST}:1", f"{SECOND}:1")
    with training.train("-np", "2", "--min-np", "2", *OUT_FOR_LONG) as process:
        training.wait_for_size(2)
        pids = training.pids()
        training.set_hosts(f"{FIRST}:1")
        training.wait_for("the list", lambda: len(training.events("published")) == 2)
        training.wait_for_size(2)  # the removed host stays as long as there is no replacement
        os.kill(pids[SECOND], signal.SIGKILL)
        training.wait_for("the loss", lambda: set(ended(training)) == {SECOND})
        training.wait_for("the roll-back", lambda: training.events("rolled_back"))
        rolled_back_at = training.last("rolled_back").mono
        time.sleep(2.0)  # no event shows that nothing happens
        assert max(step.mono for step in training.shown()) < rolled_back_at
        assert process.popen.poll() is None
        training.set_hosts(f"{FIRST}:1", f"{THIRD}:1")
        training.wait_for_size(2)
        assert training.pids()[FIRST] == pids[FIRST]
    training.check_steps()
    assert hosts_of(training) == {FIRST, THIRD}
    assert set(ended(training)) == {SECOND}
    assert sizes(training) == [2, 2]


@pytest.mark.soak
def test_every_host_may_be_replaced_one_by_one_or_at_once(training: Training) -> None:
    training.set_hosts(f"{FIRST}:1", f"{SECOND}:1")
    with training.train("-np", "2", "--min-np", "2"):
        training.wait_for_size(2)
        for pair in ((SECOND, THIRD), (THIRD, FOURTH), (FIRST, SECOND)):
            training.set_hosts(*(f"{name}:1" for name in pair))
            wait_for_hosts(training, *pair)
            training.wait_for_size(2)
        training.wait_for("their ends", lambda: set(ended(training)) == set(HOSTS))
    training.check_steps()
    assert set(ended(training).values()) == {"told to leave"}
    assert not training.events("rolled_back", "struck")
    counts = [step.count for step in training.of_rank_0()]
    assert counts == list(range(1, len(counts) + 1))  # no step was lost or done twice


@ANY_ENGINE
@pytest.mark.alone
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_five_hosts_that_arrive_one_by_one_make_one_resize(training: Training) -> None:
    hosts = [f"{FIRST}:1"]
    training.set_hosts(*hosts)
    with training.train("-np", "1", "--settle", "12", env={"PAUSE_S": "0.2"}):
        training.wait_for_size(1)
        began = time.monotonic()
        for number in range(5):
            hosts.append(f"127.0.0.{number + 2}:1")
            training.set_hosts(*hosts)
            come(began + 2.0 * (number + 1))
        assert sizes(training) == [1]
        training.wait_for_size(6, timeout=150)
    assert len({record.get("host") for record in training.events("standby")}) == 5
    assert sizes(training) == [1, 6]
    training.check_steps()
    training.check_uninterrupted(FIRST)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_host_whose_worker_crashes_each_time_it_joins_backs_off_and_the_rest_trains_on(training: Training) -> None:
    script = training.directory / "train.py"
    text = TRAINEE.read_text()
    step = "            optimizer.zero_grad()\n"
    crash = f"            if HOST == {THIRD!r} and elastic.size() == 3: raise RuntimeError('no such device')\n"
    script.write_text(text.replace(step, crash + step))
    assert crash in script.read_text()
    training.set_hosts(f"{FIRST}:1", f"{SECOND}:1")
    options = (*QUICK, "--blacklist-cooldown-range", "1", "4", "--failure-budget", "3")
    options += ("--output-filename", training.directory / "output", "--engine", training.engine)
    with training.run("-np", "2", "--job", JOB, *options, sys.executable, script) as process:
        training.wait_for_size(2)
        pids = training.pids()
        training.set_hosts(f"{FIRST}:1", f"{SECOND}:1", f"{THIRD}:1")
        training.wait_for("five failures", lambda: len(training.events("struck")) >= 5, timeout=200)
        training.set_hosts(f"{FIRST}:1", f"{SECOND}:1")
        training.wait_for_size(2)
        assert process.popen.poll() is None
        assert {name: training.pids()[name] for name in pids} == pids
        why = Answer(THIRD, "no such device", "Fix what the end of its output says", output="no such device")
        read_back(training.journal, why, folder=training.state_dir)
    struck = training.events("struck")
    assert {record.get("host") for record in struck} == {THIRD}
    assert [record.get("cooldown_s") for record in struck[:5]] == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert len(sizes(training)) - 1 <= 2 * len(struck) + 1  # each time out and in again
    training.check_steps()


@ANY_ENGINE
@pytest.mark.soak
def test_a_host_that_comes_and_goes_every_second_costs_the_others_nothing(training: Training) -> None:
    training.set_hosts(f"{FIRST}:1")
    with training.train("-np", "1", "--settle", "2"):
        training.wait_for_size(1)
        began = time.monotonic()
        for turn in range(10):
            published = len(training.events("published"))
            training.set_hosts(f"{FIRST}:1", *([] if turn % 2 else [f"{SECOND}:1"]))
            training.wait_for("the list", lambda known=published: len(training.events("published")) > known)
            come(began + turn + 1)
        assert sizes(training) == [1]
        training.set_hosts(f"{FIRST}:1", f"{SECOND}:1")
        training.wait_for_size(2)  # now it stays, so it joins
    assert sizes(training) == [1, 2]
    assert set(ended(training).values()) <= {"told to leave"}
    assert not training.events("struck", "fenced")
    training.check_steps()
    training.check_uninterrupted(FIRST)


@ANY_ENGINE
@pytest.mark.soak
def test_a_host_that_is_removed_before_its_newcomer_is_in_costs_the_others_nothing(training: Training) -> None:
    training.set_hosts(f"{FIRST}:1")
    with training.train("-np", "1", "--settle", "30", env={"SLOW_HOST": SECOND, "BOOT_S": "60"}) as process:
        training.wait_for_size(1)
        training.set_hosts(f"{FIRST}:1", f"{SECOND}:1")
        process.wait_for("booting", timeout=60)
        training.set_hosts(f"{FIRST}:1", f"{THIRD}:1")
        training.wait_for("its end", lambda: ended(training) == {SECOND: "told to leave"})
        training.wait_for("the other's being parked", lambda: training.last("parked").get("host") == THIRD)
        training.set_hosts(f"{FIRST}:1")
        training.wait_for(
            "its end", lambda: set(ended(training).items()) == {(h, "told to leave") for h in (SECOND, THIRD)}
        )
        training.wait_for_size(1)
    assert sizes(training) == [1]
    assert not training.events("struck")
    training.check_steps()
    training.check_uninterrupted(FIRST)


# --- the connection between launcher and agent


class Wire:
    """An agent's end of its connection to the launcher, as a duplicate descriptor."""

    def __init__(self, worker: int) -> None:
        for process in psutil.Process(worker).parents():
            found = [c for c in process.net_connections("tcp4") if c.status == psutil.CONN_ESTABLISHED]
            if found:
                break
        self.agent = process.pid
        self._end = _dup_of(self.agent, found[0].fd)

    @property
    def unread(self) -> int:
        """Bytes that have arrived and that the agent has not read."""
        size = array.array("i", [0])
        fcntl.ioctl(self._end, termios.FIONREAD, size)
        return size[0]

    def lose(self) -> None:
        """Drop the data that has arrived, and the connection."""
        assert self._end.recv(1 << 20)
        self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def _dup_of(pid: int, descriptor: int) -> socket.socket:
    pidfd = os.pidfd_open(pid)
    try:
        own = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, descriptor, 0)  # pidfd_getfd
    finally:
        os.close(pidfd)
    if own < 0:
        pytest.skip("needs to take another process's descriptor: run as root, or with kernel.yama.ptrace_scope=0")
    return socket.socket(fileno=own)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_order_lost_with_its_connection_while_a_world_forms_is_given_again(training: Training) -> None:
    settle_s = 15.0  # from the newcomer's start, which has to be ready well before that
    training.set_hosts(f"{FIRST}:1")
    with training.train("-np", "1", "--settle", f"{settle_s:g}"):
        training.wait_for_size(1)
        for size, newcomer, deaf in ((2, SECOND, SECOND), (3, THIRD, FIRST)):
            training.set_hosts(*(f"{name}:1" for name in HOSTS[:size]))
            training.wait_for("the newcomer", lambda host=newcomer: training.last("parked").get("host") == host)
            ordered_at = training.last("spawned").mono + settle_s
            training.wait_for("the end of --settle", lambda at=ordered_at: time.monotonic() > at - 2.0)
            wire = Wire(training.pids()[deaf])
            with stopped(wire.agent):
                training.wait_for("its order", lambda wire=wire: wire.unread, timeout=9)
                wire.lose()
            training.wait_for_size(size)
    assert sizes(training) == [1, 2, 3]
    assert not training.events("struck", "fenced", "exited")
    training.check_steps()
    training.check_uninterrupted(FIRST)
