"""Broken links, hosts that cannot be reached, slow hosts: real ssh, and network namespaces as hosts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import pytest

from hvd_elastic_ext.core.journal import Record
from tests.faults.launcher.stepping_jobs import ANY_ENGINE, Training, training
from tests.support import marks
from tests.support.nethosts import NetHosts
from tests.support.pages import Answer, read_back
from tests.support.waiting import wait_until

__all__ = ["training"]

MakeHosts = Callable[[int], NetHosts]

PORT = 5555
ECHO = f"""
import socket, sys, threading
listener = socket.create_server(("", {PORT}))
print("listening", flush=True)

def echo(connection):
    while data := connection.recv(1000):
        connection.sendall(data)

while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
"""


def answered(training: Training) -> set[int]:
    """Return the numbers of the user's connections on which an answer came."""
    said = [step.user.split(",") for step in training.shown()]
    return {number for each in said for number, words in enumerate(each) if words == "still open"}


def unreachable(training: Training, host: str) -> list[Record]:
    """The strikes for attempts to reach a host that leave it out for a while."""
    struck = [each for each in training.events("struck") if each.get("host") == host]
    return [each for each in struck if each.get("cause") == "unreachable" and each.get("host_blocked")]


def over_ssh(training: Training, hosts: NetHosts) -> tuple[str, ...]:
    """Let the launcher run on the hosts' network. Return the options with which it can log in to all hosts."""
    training.popen = hosts.launcher.popen
    return ("--ssh-identity-file", str(hosts.identity))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_silent_host_is_cut_off_and_returns_with_its_network_link(training: Training, nethosts: MakeHosts) -> None:
    a_silent_host_is_cut_off_and_returns(training, nethosts)


def a_silent_host_is_cut_off_and_returns(training: Training, nethosts: MakeHosts) -> None:
    hosts, say = nethosts(2), training.directory / "say"
    options = ("--heartbeat-timeout", "5", *over_ssh(training, hosts))
    training.set_hosts("h1:1", "h2:1")
    env = {"USER_PORT": str(PORT), "SAY": str(say)}
    with hosts["h2"].popen([sys.executable, "-c", ECHO]) as echo:
        echo.wait_for("listening")
        with training.train("-np", "2", *options, env=env) as process:
            training.wait_for_size(2)
            old, cut_at = training.pids()["h2"], training.shown()[-1].mono
            hosts["h2"].cut()
            training.wait_for_size(1)
            assert marks.start_time(old) is not None  # it lives, and receives nothing
            assert {step.host for step in training.shown() if step.size == 1} == {"h1"}
            fenced = training.last("fenced")
            assert fenced.get("host") == "h2"
            assert "nothing was heard from it for" in fenced.get("reason")
            assert 4.5 < fenced.mono - cut_at < 40
            assert training.last("struck").get("subject") == "host h2"
            training.wait_for("attempts to reach it", lambda: unreachable(training, "h2"))
            training.wait_for_size(1)
            assert training.shown()[-1].user == "quiet,quiet"  # the user's own connections are open and without errors
            assert training.causes() == ["start", "worker failed"]
            hosts["h2"].restore()
            training.wait_for_size(2)
            wait_until(lambda: marks.start_time(old) is None, what="the end of the old process on h2", timeout=60)
            say.touch()
            training.wait_for("an answer on both", lambda: answered(training) == {0, 1})
            read_back(training.journal, Answer("h2", "nothing was heard from it for", "See whether h2 runs"))
    training.check_steps()
    assert training.causes() == ["start", "worker failed", "cooldown over"]
    assert "Traceback" not in process.stderr


@ANY_ENGINE
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_unreachable_newcomers_interrupt_no_rank_and_join_when_they_can(
    training: Training, nethosts: MakeHosts
) -> None:
    hosts = nethosts(2)
    options = over_ssh(training, hosts)
    for pid in [pid for pid in hosts["h2"].pids() if "sshd" in marks.command_line(pid)]:
        os.kill(pid, signal.SIGKILL)
    training.set_hosts("h1:1")
    with training.train("-np", "1", *options) as process:
        training.wait_for_size(1)
        training.set_hosts("h1:1", "h2:1", "nowhere:1")
        for host, why in {"h2": "Connection refused", "nowhere": "Could not resolve hostname"}.items():
            training.wait_for(f"an attempt to reach {host}", lambda host=host: unreachable(training, host))
            assert why in unreachable(training, host)[0].get("reason")
        training.wait_for_size(1)
        assert training.causes() == ["start"]
        refused = Answer("h2", "Connection refused", "`hvd-elastic doctor --host h2`")
        unknown = Answer("nowhere", "Could not resolve hostname", "`hvd-elastic doctor --host nowhere`")
        read_back(training.journal, refused, unknown)
        hosts["h2"].reboot()  # with sshd
        training.wait_for_size(2)
        training.check_uninterrupted("h1")
    training.check_steps()
    assert training.causes() == ["start", "hosts added"]
    assert "Traceback" not in process.stderr


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_newcomer_slower_than_gloos_timeout_joins_when_it_is_ready(training: Training) -> None:
    boot_s, timeout_s = 12, 5
    training.set_hosts("localhost:1", "127.0.0.1:1")
    env = {"SLOW_HOST": "127.0.0.2", "BOOT_S": str(boot_s)}
    with training.train("-np", "2", "--gloo-timeout-seconds", str(timeout_s), env=env) as process:
        training.wait_for_size(2)
        assert {marks.environment(pid)["HOROVOD_GLOO_TIMEOUT_SECONDS"] for pid in training.pids().values()} == {"5"}
        training.set_hosts("localhost:1", "127.0.0.1:1", "127.0.0.2:1")
        training.wait_for("the slow one's boot", lambda: len(training.events("spawned")) == 3)
        process.wait_for("booting")
        training.wait_for_size(3)
        spawned, parked = training.last("spawned").mono, training.last("parked").mono
        assert parked - spawned > boot_s > timeout_s
        assert training.longest_pause("localhost", since=spawned, until=parked) < timeout_s
    training.check_steps()
    training.check_uninterrupted("localhost")
    assert training.causes() == ["start", "hosts added"]
    assert not training.events("struck")
