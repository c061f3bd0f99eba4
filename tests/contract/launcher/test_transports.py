"""What every way of starting an agent promises: directly, over ssh, by the API server's exec.

``ssh`` is a stand-in that runs commands on this machine, and so is the API server; what is real over ssh is in
``tests/integration/launcher``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_ext.core.commands import HAS_CODE, WANTS_CODE, agent_command
from hvd_elastic_ext.io.code.files import Code
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.launcher.agents.transports import child_process, transports
from hvd_elastic_ext.launcher.agents.transports.pod_exec import by_exec
from hvd_elastic_ext.launcher.agents.transports.transports import (
    LaunchResult,
    Local,
    PodTransport,
    SshTransport,
    Transport,
    code_line,
    join_line,
)
from tests.support import marks
from tests.support.kube import bodies, statuses
from tests.support.kube.execstreams import V4, V5
from tests.support.kube.fixtures import kube_tls as kube_tls  # a fixture
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

SECONDS = 60
ARGUMENTS = " ".join(agent_command("")[1:])
HOST = "w-1"
FAKE_SSH = Path(__file__).parents[2] / "support" / "fake_ssh.py"
WAITING = 'read line; echo "pid $$"; cat >/dev/null; touch "$0.saw-the-end"; exec sleep 1000'

Make = Callable[[str], Transport]
"""A way that starts the program with this text instead of an agent."""


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def quiet(text: str) -> None:
    """Take a remark."""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "ssh", f'exec {sys.executable} {FAKE_SSH} "$@"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "ssh"


@pytest.fixture
def pods(kube_tls: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeServer:
    """An API server, which ``$KUBECONFIG`` names, with a pod."""
    kube_tls.put("pods", bodies.pod(HOST))
    monkeypatch.setenv("KUBECONFIG", str(kube_tls.kubeconfig(tmp_path / "kubeconfig")))
    return kube_tls


def to_pods(python: str = sys.executable) -> PodTransport:
    return PodTransport(by_exec(Access(os.environ["KUBECONFIG"])), python=python)


def over_ssh(python: str = sys.executable) -> SshTransport:
    return SshTransport(python=python)


WAYS: dict[str, Callable[[str], Transport]] = {
    "directly": Local,
    "over ssh": over_ssh,
    "by exec": to_pods,
    "by exec of an older server": to_pods,
}


@pytest.fixture(params=WAYS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "over ssh":
        request.getfixturevalue("ssh")
    if request.param.startswith("by exec"):
        server = request.getfixturevalue("pods")
        server.execs.protocols = (V4,) if "older" in request.param else (V5, V4)
    return lambda text: WAYS[request.param](program(tmp_path / "agent", text))


async def test_an_agent_gets_its_line_and_what_it_says_and_how_it_ends_is_told(make: Make) -> None:
    remarks: list[str] = []
    way = make('line=$(head -n 1); echo "got ${#line} bytes" >&2; echo "args $*"')
    launch = await way.start(HOST, b"0123456789\n", remark=remarks.append)
    assert await launch.wait() == LaunchResult(0, reached=True, message="got 10 bytes")
    assert launch.reached
    assert sorted(remarks) == [f"args {ARGUMENTS}", "got 10 bytes"]
    launch.close()


@pytest.mark.parametrize(("ending", "code"), [("exit 1", 1), ("exit 3", 3), ("exec false", 1)])
async def test_the_exit_code_and_the_message_of_an_agent_are_its_own(make: Make, ending: str, code: int) -> None:
    way = make(f"echo 'no launcher there' >&2; {ending}")
    launch = await way.start(HOST, b"x\n", remark=quiet)
    assert await launch.wait() == LaunchResult(code, reached=True, message="no launcher there")


async def test_no_secret_is_an_argument_or_in_the_environment(make: Make) -> None:
    key = bytes(range(32))
    line = join_line("job", HOST, key=key, launcher=("10.0.0.1", 7), incarnation=2, orphan_grace_s=60.0)
    before = set(marks.pids())
    said: asyncio.Queue[str] = asyncio.Queue()
    launch = await make(WAITING).start(HOST, line, remark=said.put_nowait)
    pid = int((await said.get()).removeprefix("pid "))
    ours = [each for each in set(marks.pids()) - before if marks.environment(each).get(marks.MARK)]
    assert pid in ours
    for each in ours:
        assert key.hex() not in marks.command_line(each)
        assert key.hex() not in str(marks.environment(each))
    launch.close()
    marks.kill([pid])
    await launch.wait()


async def test_the_end_of_a_launch_ends_what_it_hears_and_an_agent_that_has_joined_lives_on(
    make: Make, tmp_path: Path
) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    way = make(WAITING)
    launch = await way.start(HOST, b"x\n", remark=said.put_nowait)
    pid = int((await said.get()).removeprefix("pid "))
    launch.close()
    if not isinstance(way, Local):
        assert (await launch.wait()).code == 128 + signal.SIGKILL
    seen = tmp_path / "agent.saw-the-end"
    await asyncio.to_thread(wait_until, seen.exists, what="the end of the agent's input", timeout=60)
    assert marks.start_time(pid) is not None
    marks.kill([pid])


async def test_the_longest_line_is_taken(make: Make) -> None:
    line = b"x" * (child_process.MAX_INPUT_BYTES - 1) + b"\n"
    launch = await make("sleep 0.2; head -n 1 | wc -c >&2").start(HOST, line, remark=quiet)
    assert await launch.wait() == LaunchResult(0, reached=True, message=str(child_process.MAX_INPUT_BYTES))


async def test_waiting_may_be_given_up(make: Make) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    launch = await make(WAITING).start(HOST, b"x\n", remark=said.put_nowait)
    pid = int((await said.get()).removeprefix("pid "))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(launch.wait(), 0.01)
    launch.close()
    marks.kill([pid])
    assert (await launch.wait()).code == 137


# --- code -------------------------------------------------------------------------------------------

RECEIVER = 'read first; echo "${#first}" >"$0.first"; echo %s; head -c %d >"$0.code"; read line; echo "line $line" >&2'
CODE = Code(b"names", "5a" * 32, os.urandom(300_000).replace(b"\0", b"1"))


@pytest.mark.parametrize(("said", "size"), [(HAS_CODE, 0), (WANTS_CODE, len(CODE.archive))])
async def test_a_host_elsewhere_gets_the_code_that_it_asks_for_before_its_line(
    make: Make, tmp_path: Path, said: str, size: int
) -> None:
    remarks: list[str] = []
    way = make(RECEIVER % (said, size))
    if isinstance(way, Local):
        way = make('read line; echo "line $line" >&2')
    launch = await way.start(HOST, b"the key\n", remark=remarks.append, code=CODE)
    assert await launch.wait() == LaunchResult(0, reached=True, message="line the key")
    assert remarks == ["line the key"]
    if not isinstance(way, Local):
        assert int((tmp_path / "agent.first").read_text()) == len(code_line(CODE, Path.cwd())) - 1
        assert (tmp_path / "agent.code").read_bytes() == CODE.archive[:size]


async def test_code_that_cannot_be_brought_to_a_host_ends_its_start_with_the_reason(make: Make) -> None:
    way = make(f"read first; echo {WANTS_CODE}; head -c {len(CODE.archive)} >/dev/null; echo 'disk full' >&2; exit 1")
    if isinstance(way, Local):
        return  # this machine has the code
    launch = await way.start(HOST, b"x\n", remark=quiet, code=CODE)
    assert await launch.wait() == LaunchResult(1, reached=True, message="disk full")


# --- what is elsewhere ------------------------------------------------------------------------------

FAR: dict[str, Callable[..., Transport]] = {"ssh": over_ssh, "exec": to_pods}


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "--kubeconfig=x", "h1 h2", "", "a;b", "a:1"])
@pytest.mark.parametrize("far", FAR)
async def test_what_is_no_host_name_never_comes_near_a_command(
    ssh: Path, pods: KubeServer, far: str, host: str
) -> None:
    program(ssh, f"touch {ssh}.ran")
    launch = await FAR[far]().start(host, b"x\n", remark=quiet)
    ended = await launch.wait()
    assert (ended.code, ended.reached) == (transports.UNREACHABLE, False)
    assert "host name" in ended.message
    launch.close()
    assert not Path(f"{ssh}.ran").exists()
    assert pods.counts.connections == 0


@pytest.mark.parametrize("far", FAR)
async def test_a_host_without_our_interpreter_was_reached_all_the_same(ssh: Path, pods: KubeServer, far: str) -> None:
    launch = await FAR[far]("/nowhere/python").start(HOST, b"x\n", remark=quiet)
    ended = await launch.wait()
    assert (ended.code, ended.reached) == (127, True)
    assert "/nowhere/python" in ended.message


async def test_only_a_few_exec_are_on_their_way_at_once(pods: KubeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "MAX_CONCURRENT_STARTS", 1)
    pods.faults.on("get", "pods").answer(statuses.internal("no"))
    pods.hanging = True
    way = to_pods()
    first = await way.start(HOST, b"x\n", remark=quiet)
    second = asyncio.ensure_future(way.start(HOST, b"x\n", remark=quiet))
    while not pods.counts.connections:
        await asyncio.sleep(0.005)
    assert not second.done()
    pods.hanging = False
    for launch in (first, await second):
        assert not (await launch.wait()).reached
