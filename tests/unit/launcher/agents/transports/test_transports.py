"""Starts of agents: directly, and over an ``ssh`` of a few lines, with a stand-in for the agent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from hvd_elastic_ext.core.secrets import OBSERVE_TOKEN
from hvd_elastic_ext.launcher.agents.transports import child_process, transports
from hvd_elastic_ext.launcher.agents.transports import ssh as known_hosts
from hvd_elastic_ext.launcher.agents.transports import ssh as ssh_carrier
from hvd_elastic_ext.launcher.agents.transports.child_process import Child
from hvd_elastic_ext.launcher.agents.transports.pod_exec import Pod, Stream
from hvd_elastic_ext.launcher.agents.transports.ssh import HostKeys, Ssh
from hvd_elastic_ext.launcher.agents.transports.transports import (
    LaunchResult,
    Local,
    PodTransport,
    SshTransport,
    TransportByName,
    end_line,
    join_line,
)
from tests.support import marks
from tests.support.waiting import wait_until

KEY = bytes(range(32))
SECONDS = 20

WAITING_AGENT = 'read line; echo up; cat; echo "still here" >&2; exec sleep 1000'


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put an ``ssh`` with this text in front of the real one. ``$host`` and ``$command`` are its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    parse = '[ "$1" = -G ] && exit; while [ "$1" != -- ]; do shift; done; host="$2"; command="$3"'
    return lambda text: program(folder / "ssh", f"{parse}\n{text}")


async def test_ends_are_seen_where_the_kernel_has_no_descriptor_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = program(tmp_path / "agent", "kill -9 $$")

    def missing(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    launch = await Local(agent).start("h1", b"x\n", remark=lambda text: None)
    assert (await launch.wait()).code == 137


async def test_what_cannot_be_started_is_an_end_and_no_error() -> None:
    launch = await Local("/nowhere/python").start("h1", b"x\n", remark=print)
    assert not launch.reached
    assert await launch.wait() == LaunchResult(
        transports.UNREACHABLE, reached=False, message="/nowhere/python: No such file or directory"
    )
    launch.close()


def test_lines_are_what_agents_are_told() -> None:
    line = join_line("job", "h1", key=KEY, launcher=("10.0.0.1", 7), incarnation=2, orphan_grace_s=60.0)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "do": "join",
        "job": "job",
        "host": "h1",
        "key": KEY.hex(),
        "launcher": ["10.0.0.1", 7],
        "incarnation": 2,
        "orphan_grace_s": 60.0,
    }
    usual = {"argv": ["train", ""], "env": {"TOKEN": "h\udcffnter2"}}
    more = join_line(
        "j", "h", key=KEY, launcher=("a", 7), incarnation=2, orphan_grace_s=6, argv=("train", ""), env=usual["env"]
    )
    assert usual.items() <= json.loads(more).items()
    end = {"do": "end", "job": "job", "host": "h1", "key": KEY.hex()}
    assert json.loads(end_line("job", "h1", key=KEY, grace_s=5.0)) == {**end, "grace_s": 5.0}


LAUNCHER = """
import asyncio, os, signal, sys
from hvd_elastic_ext.launcher.agents.transports.transports import Local

async def main():
    pid = asyncio.get_running_loop().create_future()
    def remark(text):
        if text.isdigit():
            pid.set_result(text)
    launch = await Local(sys.argv[1]).start("h1", b"x\\n", remark=remark)
    print(await pid, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    launch.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_an_agent_outlives_its_launcher(tmp_path: Path, how: str) -> None:
    agent = program(tmp_path / "agent", "echo $$; cat >/dev/null; touch $0.saw-the-end; exec sleep 1000")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LAUNCHER, agent, how], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    try:
        assert done.returncode == (-9 if how == "killed" else 0), done.stderr
        wait_until((tmp_path / "agent.saw-the-end").exists, what="the end of the agent's input")
        assert marks.start_time(pid) is not None
        assert os.getsid(pid) == pid
    finally:
        marks.kill([pid])


async def test_what_is_said_is_passed_on_line_by_line_and_never_kept(tmp_path: Path) -> None:
    text = "printf 'a\\r\\n\\n'; printf '%010000d' 0; printf '\\nlast \\377'; sleep 0.1; printf ' words'"
    agent = program(tmp_path / "agent", text)
    remarks: list[str] = []
    launch = await Local(agent).start("h1", b"x\n", remark=remarks.append)
    ended = await launch.wait()
    assert ended.message == "last \ufffd words"
    assert remarks[0] == "a"
    assert "".join(remarks[1:-1]) == "0" * 10000
    assert max(map(len, remarks)) == child_process.MAX_LINE_BYTES


async def test_a_grandchild_that_holds_the_pipes_delays_nothing(tmp_path: Path) -> None:
    agent = program(tmp_path / "agent", "sleep 1000 & echo $!; echo failed >&2; exit 4")
    remarks: list[str] = []
    launch = await Local(agent).start("h1", b"x\n", remark=remarks.append)
    assert await launch.wait() == LaunchResult(4, reached=True, message="failed")
    (pid,) = (int(text) for text in remarks if text.isdigit())
    marks.kill([pid])


async def test_a_child_that_reads_nothing_takes_its_line_all_the_same(tmp_path: Path) -> None:
    agent = program(tmp_path / "agent", "exit 0")
    for _ in range(5):
        launch = await Local(agent).start("h1", b"x" * child_process.MAX_INPUT_BYTES, remark=print)
        assert (await launch.wait()).code == 0


# --- over ssh -------------------------------------------------------------------------------------


async def test_a_way_that_fails_is_told_with_what_ssh_said(ssh: Callable[[str], None]) -> None:
    said = "ssh: connect to host h1 port 22: Connection refused"
    ssh(f"echo '{said}' >&2; exit 255")
    launch = await SshTransport().start("h1", b"x\n", remark=lambda text: None)
    assert not launch.reached
    assert await launch.wait() == LaunchResult(255, reached=False, message=said)


async def test_the_name_says_which_way(tmp_path: Path, ssh: Callable[[str], None]) -> None:
    ssh("exit 255")
    agent = program(tmp_path / "agent", "exit 0")
    both = TransportByName(Local(agent), SshTransport(python=agent), is_near=lambda name: name == "near")
    near = await both.start("near", b"x\n", remark=lambda text: None)
    far = await both.start("far", b"x\n", remark=print)
    assert (await near.wait()).code == 0
    assert (await far.wait()).code == 255
    wrong = await both.start("a;b", b"x\n", remark=print)
    assert "host name" in (await wrong.wait()).message


async def test_a_limit_on_processes_is_one_hosts_trouble_and_keeps_nobody_elses_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "MAX_CONCURRENT_STARTS", 1)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def run(pod: Pod, words: Sequence[str]) -> Stream:
        raise AssertionError

    pods, ssh = PodTransport(run), SshTransport()
    way = TransportByName(Local(), pods, is_near=lambda _: False)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for transport in (pods, way):
            launch = await transport.start("w-0", b"x\n", remark=print)
            ended = await launch.wait()
            assert (ended.code, ended.reached) == (255, False)
            assert "start" in ended.message
        patched.setattr(subprocess.Popen, "_execute_child", refuse_to_fork)
        launch = await ssh.start("w-0", b"x\n", remark=print)
        assert (await launch.wait()).message == "Resource temporarily unavailable"


def refuse_to_fork(*_: object) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


async def test_a_defect_in_a_start_keeps_nobody_elses_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "MAX_CONCURRENT_STARTS", 1)

    def defect(*_: object, **__: object) -> None:
        raise LookupError

    way = SshTransport()
    monkeypatch.setattr(transports, "Launch", defect)
    for _ in range(2):
        with pytest.raises(LookupError):
            await way.start("w-0", b"x\n", remark=print)


async def test_only_a_few_are_on_their_way_at_once(
    tmp_path: Path, ssh: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "MAX_CONCURRENT_STARTS", 2)
    monkeypatch.setattr(transports, "SLOW_START_S", 1000.0)
    doors = tmp_path / "doors"
    doors.mkdir()
    # Each waits until the test opens its door. Then h0 reaches its host and stays; the others fail.
    ssh(
        f"touch {doors}/$host.knocked; while [ ! -e {doors}/$host.open ]; do sleep 0.01; done\n"
        f'[ $host = h0 ] || exit 255; exec sh -c "$command"'
    )
    agent = program(tmp_path / "agent", WAITING_AGENT)

    def knocked() -> list[str]:
        return sorted(path.stem for path in doors.glob("*.knocked"))

    async def until_knocked(*hosts: str) -> None:
        while knocked() != list(hosts):
            await asyncio.sleep(0.005)

    transport = SshTransport(python=agent)
    starting = [
        asyncio.ensure_future(transport.start(f"h{number}", b"x\n", remark=lambda text: None)) for number in range(4)
    ]
    await until_knocked("h0", "h1")
    assert not starting[2].done()
    (doors / "h0.open").touch()  # reached: it does not count any more
    await until_knocked("h0", "h1", "h2")
    assert not starting[3].done()
    (doors / "h1.open").touch()  # ended
    await until_knocked("h0", "h1", "h2", "h3")
    for future in starting:
        launch = await future
        launch.close()
        await launch.wait()


async def test_a_configuration_of_ssh_that_cannot_be_read_in_time_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "ssh", "exec sleep 1000")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(known_hosts, "TIMEOUT_S", 0.1)
    own = psutil.Process()
    before = set(own.children())
    assert await ssh_carrier.host_keys(Ssh(tmp_path), "h1") == HostKeys()
    await asyncio.to_thread(wait_until, lambda: set(own.children()) <= before, what="the end of what was asked")


async def test_one_that_hangs_on_its_way_does_not_hold_up_others_for_ever(
    ssh: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "MAX_CONCURRENT_STARTS", 1)
    monkeypatch.setattr(transports, "SLOW_START_S", 0.05)
    ssh("exec sleep 1000")
    transport = SshTransport()
    launches = [await transport.start("h1", b"x\n", remark=print) for _ in range(3)]
    for launch in launches:
        launch.close()  # a process that only carries an agent's streams ends, too
        assert (await launch.wait()).code == 137


async def test_what_a_child_has_not_read_when_it_is_let_go_is_not_written_any_more(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    script = program(tmp_path / "child", f"read word <{go}; exit $(( $(wc -c) < {child_process.MAX_INPUT_BYTES} ))")
    running = Child([script], b"x" * child_process.MAX_INPUT_BYTES, on_line=lambda stream, text: None)
    await asyncio.sleep(0)
    running.close()
    await asyncio.to_thread(go.write_text, "now\n")
    assert await running.code == 1


@pytest.mark.parametrize("stdin", [False, True])
async def test_an_agent_of_this_machine_has_the_launchers_environment_without_its_token(
    *, stdin: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an agent has, processes of the job have."""
    monkeypatch.setenv(OBSERVE_TOKEN, "hush")
    monkeypatch.setenv("KEPT", "yes")
    heard: list[str] = []
    script = program(tmp_path / "child", "read line; env")
    with (tmp_path / "child").open() as file:
        given = file.fileno() if stdin else None
        running = Child([script], b"x\n", on_line=lambda _, text: heard.append(text), stdin=given)
        assert await running.code == 0
    assert "KEPT=yes" in heard
    assert not [line for line in heard if "hush" in line]


def test_a_child_may_be_let_go_and_its_end_is_still_seen(tmp_path: Path) -> None:
    script = program(tmp_path / "child", "cat >/dev/null; exit 5")

    async def act() -> None:
        heard: list[str] = []
        running = Child([script], b"x\n", on_line=lambda stream, text: heard.append(text))
        running.close()
        running.close()
        assert await running.code == 5
        running.kill()
        assert heard == []

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(act())
