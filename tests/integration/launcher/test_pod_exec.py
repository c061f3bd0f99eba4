"""Agents in pods, and what goes wrong between: refusals, silence, connections that break or stand still."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import socketserver
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import websocket

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.access import Access, Endpoint
from hvd_elastic_ext.io.kube.client import Client
from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.io.kube.exec import StreamTimeouts, connected
from hvd_elastic_ext.launcher.agents.transports.pod_exec import KEEP_S, ROLE, by_exec
from hvd_elastic_ext.launcher.agents.transports.transports import UNREACHABLE, LaunchResult, PodTransport
from tests.support import marks, rights
from tests.support.clock import ManualClock
from tests.support.kube import bodies, statuses
from tests.support.kube.fixtures import kube as kube  # a fixture
from tests.support.kube.fixtures import kube_tls as kube_tls  # a fixture
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

HOST = "w-0.job.jobs.svc"
EXEC = "/api/v1/namespaces/jobs/pods/w-0/exec?command=true&stdin=true"
BRISK = StreamTimeouts(answer=10.0, ping=0.1, unanswered=600, keepalive=60.0)
WAITING = 'read line; echo "pid $$"; cat >/dev/null; touch "$0.saw-the-end"; exec sleep 1000'


@pytest.fixture
def agent(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "agent"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def pods(kube_tls: KubeServer) -> KubeServer:
    """An API server with a pod."""
    kube_tls.put("pods", bodies.pod("w-0", namespace="jobs"))
    return kube_tls


def access(server: KubeServer, folder: Path, **how: object) -> Access:
    return Access(str(server.kubeconfig(folder / "kubeconfig", **how)))  # type: ignore[arg-type]


def to_pods(access: Access, python: str = "true", *, pace: StreamTimeouts = BRISK) -> PodTransport:
    return PodTransport(by_exec(access, timeouts=pace), python=python)


def ended(transport: PodTransport, host: str = HOST) -> LaunchResult:
    """Start an agent and wait for its end."""

    async def act() -> LaunchResult:
        launch = await transport.start(host, b"0123456789\n", remark=lambda text: None)
        return await asyncio.wait_for(launch.wait(), 90)

    return asyncio.run(act())


def grant(server: KubeServer, granted: frozenset[rights.Right]) -> str:
    """A token of an account that may do this, and nothing else."""
    space = {"namespace": "jobs"}
    server.put("roles", {"metadata": {"name": "r", **space}, "rules": rights.rules(granted)})
    subjects = [{"kind": "ServiceAccount", "name": "launcher", **space}]
    binding = {"roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}
    server.put("rolebindings", {"metadata": {"name": "r", **space}, **binding})
    return server.access.issue_for("jobs", "launcher")


def refused(words: LaunchResult) -> str:
    assert (words.code, words.reached) == (UNREACHABLE, False)
    assert "\n" not in words.message
    return words.message


# --- who may, and where -----------------------------------------------------------------------------


@pytest.mark.parametrize("create_too", [False, True])
def test_the_rights_of_the_manifest_suffice_and_each_is_needed(
    pods: KubeServer, tmp_path: Path, create_too: bool
) -> None:
    pods.execs.create_too = create_too
    transport = to_pods(access(pods, tmp_path, token=grant(pods, rights.EXEC)))
    assert ended(transport) == LaunchResult(0, reached=True, message="")
    for right in sorted(rights.EXEC):
        if right.verb == "create" and not create_too:
            continue
        transport = to_pods(access(pods, tmp_path, token=grant(pods, rights.EXEC - {right})))
        words = refused(ended(transport))
        assert f'cannot {right.verb} resource "{right.resource}"' in words
        assert f"; {ROLE}: " in words


def test_the_namespace_is_that_of_the_name_or_else_that_of_the_credentials(pods: KubeServer, tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "namespace").write_text("jobs\n")
    found = Access(account=account)
    assert found.namespace == "jobs"
    transport = to_pods(access(pods, tmp_path, namespace="jobs"))
    assert ended(transport, "w-0").code == 0
    elsewhere = to_pods(access(pods, tmp_path, namespace="default"))
    words = refused(ended(elsewhere, "w-0"))
    assert "; with --rsh pod" in words
    assert words.endswith('pods "w-0" not found')
    assert ended(elsewhere, HOST).code == 0


@pytest.mark.parametrize(
    ("phase", "said"),
    [("Pending", 'unable to upgrade connection: container not found ("worker")'), ("Failed", "pod jobs/w-0: it has")],
)
def test_a_pod_that_does_not_run_is_unreachable(pods: KubeServer, tmp_path: Path, phase: str, said: str) -> None:
    pods.put("pods", bodies.pod("w-0", namespace="jobs", phase=phase))
    assert said in refused(ended(to_pods(access(pods, tmp_path))))
    assert pods.execs.commands == []


def test_a_server_without_a_known_protocol_is_unreachable(pods: KubeServer, tmp_path: Path) -> None:
    pods.execs.protocols = ("v6.channel.k8s.io",)
    assert "the API server says 403" in refused(ended(to_pods(access(pods, tmp_path))))


def test_a_client_certificate_works_and_no_request_has_the_input_line(pods: KubeServer, tmp_path: Path) -> None:
    assert pods.authority is not None
    pair = pods.authority.client("me", "system:masters")
    assert ended(to_pods(access(pods, tmp_path, client=pair))).code == 0
    requests = [f"{seen.path} {seen.query}" for seen in pods.counts.seen()]
    assert len(requests) == 2
    assert not any("0123456789" in request for request in requests)


# --- credentials ------------------------------------------------------------------------------------


async def test_each_command_uses_the_current_token_and_outlives_it(
    pods: KubeServer, tmp_path: Path, agent: Callable[[str], str]
) -> None:
    token = tmp_path / "token"
    first, second = pods.access.issue("launcher", "system:masters"), pods.access.issue("launcher", "system:masters")
    token.write_text(first)
    transport = to_pods(access(pods, tmp_path, token_file=token), agent("read line; echo up; exec cat"))
    said: asyncio.Queue[str] = asyncio.Queue()
    launch = await transport.start(HOST, b"x\n", remark=said.put_nowait)
    assert await said.get() == "up"
    pods.access.revoke(first)
    late = await transport.start(HOST, b"x\n", remark=said.put_nowait)
    words = refused(await late.wait())
    assert words.startswith("the API server says 401 Unauthorized")
    token.write_text(second)
    renewed = await transport.start(HOST, b"x\n", remark=said.put_nowait)
    assert await said.get() == "up"
    for each in (launch, renewed):
        each.close()
        assert (await each.wait()).code == 137


@dataclass(frozen=True, slots=True)
class Slow(Access):
    """Tells when it is read, and waits until it may be."""

    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    may: threading.Event = field(default_factory=threading.Event)
    times: list[float] = field(default_factory=list)

    def configuration(self) -> Any:
        self.times.append(time.monotonic())
        self.asked.release()
        assert self.may.wait(60)
        return Access(self.kubeconfig).configuration()


def test_credentials_are_read_once_for_pods_that_start_together_and_again_later(
    pods: KubeServer, tmp_path: Path
) -> None:
    slow, clock = Slow(access(pods, tmp_path).kubeconfig), ManualClock()
    slow.may.set()
    transport = PodTransport(by_exec(slow, timeouts=BRISK, clock=clock), python="true")

    async def act() -> None:
        launches = [await transport.start(HOST, b"x\n", remark=print) for _ in range(6)]
        assert [(await launch.wait()).code for launch in launches] == [0] * 6

    asyncio.run(act())
    assert len(slow.times) == 1
    clock.advance(KEEP_S)
    asyncio.run(act())
    assert len(slow.times) == 2


def test_refused_credentials_are_read_again_at_once(pods: KubeServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    tokens = [pods.access.issue("launcher", "system:masters") for _ in range(2)]
    token.write_text(tokens[0])
    slow = Slow(access(pods, tmp_path, token_file=token).kubeconfig)
    slow.may.set()
    transport = PodTransport(by_exec(slow, timeouts=BRISK, clock=(clock := ManualClock())), python="true")
    assert ended(transport).code == 0
    clock.advance(KEEP_S / 2)
    pods.access.revoke(tokens[0])
    token.write_text(tokens[1])
    assert ended(transport).code == 0
    assert len(slow.times) == 2
    pods.access.revoke(tokens[1])
    assert "the API server says 401" in refused(ended(transport))


def test_credentials_that_never_come_do_not_block_a_start_for_ever(pods: KubeServer, tmp_path: Path) -> None:
    slow = Slow(access(pods, tmp_path).kubeconfig)
    transport = PodTransport(by_exec(slow, timeouts=StreamTimeouts(answer=0.2)), python="true")

    async def act() -> None:
        first = await transport.start(HOST, b"x\n", remark=print)
        assert await asyncio.to_thread(slow.asked.acquire, timeout=60)
        second = await transport.start(HOST, b"x\n", remark=print)
        assert "what reads them has not ended for 0.2 s" in refused(await second.wait())
        first.close()
        slow.may.set()

    try:
        asyncio.run(act())
    finally:
        slow.may.set()


@pytest.mark.parametrize("text", ["", "two\nlines", "ümlaut"])
def test_a_malformed_token_is_not_repeated(pods: KubeServer, tmp_path: Path, text: str) -> None:
    token = tmp_path / "token"
    token.write_text(text)
    words = refused(ended(to_pods(access(pods, tmp_path, token_file=token))))
    assert "credentials cannot be read" in words or "401" in words or "403" in words
    assert not text or text not in words


def test_a_server_with_another_certificate_authority_gets_no_token(pods: KubeServer, tmp_path: Path) -> None:
    before = access(pods, tmp_path)
    client, door = Client(before), Endpoint.of(before.configuration())
    pods.rotate_ca()
    words = refused(ended(to_pods(before)))
    assert "no answer from https://127.0.0.1" in words
    assert "certificate verify failed" in words
    with pytest.raises(ApiError, match="certificate verify failed"):  # nor is a command sent there
        connected(client, door, EXEC, timeouts=BRISK)
    assert pods.counts.of() == 0


@pytest.mark.parametrize(
    ("cluster", "well"),
    [
        ({"certificate-authority": None, "insecure-skip-tls-verify": True}, True),
        ({"tls-server-name": "kubernetes.default.svc"}, True),
        ({"tls-server-name": "elsewhere"}, False),
    ],
)
def test_a_kubeconfig_says_how_a_server_is_verified(
    pods: KubeServer, tmp_path: Path, cluster: dict[str, object], well: bool
) -> None:
    path = pods.kubeconfig(tmp_path / "kubeconfig")
    whole = json.loads(path.read_text())
    described = {**whole["clusters"][0]["cluster"], **cluster}
    whole["clusters"][0]["cluster"] = {name: value for name, value in described.items() if value is not None}
    path.write_text(json.dumps(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client's, of connections that nobody vouches for
        end = ended(to_pods(Access(str(path))))
    assert (end.code == 0) is well
    client, door = Client(Access(str(path))), Endpoint.of(Access(str(path)).configuration())
    if not well:
        with pytest.raises(ApiError, match="certificate verify failed"):
            connected(client, door, EXEC, timeouts=BRISK)


def test_a_proxy_is_used_except_for_excluded_hosts(
    pods: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = access(pods, tmp_path)
    with proxy() as (port, asked):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        assert ended(to_pods(config)).code == 0
        assert asked == [f"127.0.0.1:{pods.port}"] * 2
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,127.0.0.0/8")
        assert ended(to_pods(config)).code == 0
        assert len(asked) == 2


@contextlib.contextmanager
def proxy() -> Iterator[tuple[int, list[str]]]:
    """One that connects whoever asks; its port, and whom it was asked for."""
    asked: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            target = self.rfile.readline().decode().split()[1]
            while self.rfile.readline().strip():
                pass
            asked.append(target)
            host, _, port = target.rpartition(":")
            with socket.create_connection((host, int(port))) as there:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                pairs = {self.connection: there, there: self.connection}
                while True:
                    for each in select.select(list(pairs), [], [])[0]:
                        if not (data := each.recv(1 << 16)):
                            return
                        pairs[each].sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield server.server_address[1], asked
        finally:
            server.shutdown()
            serving.join()


def test_a_redirected_command_does_not_send_its_token_on(pods: KubeServer, tmp_path: Path, kube: KubeServer) -> None:
    error = statuses.ApiError({"code": 302, "reason": "Found", "message": "elsewhere"})
    pods.faults.on("get", "pods/exec").answer(error, Location=f"ws://127.0.0.1:{kube.port}/api/v1")
    refused(ended(to_pods(access(pods, tmp_path))))
    assert kube.counts.connections == 0


def test_a_connection_counts_only_if_the_server_switches_protocols(
    pods: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    class Redirected(websocket.WebSocket):
        """As some versions are after a redirect that they are not to follow."""

        def connect(self, *_: Any, **__: Any) -> None:
            self.connected = True

        def getstatus(self) -> int:
            return 302

        def shutdown(self) -> None:
            closed.append(True)

    monkeypatch.setattr(websocket, "WebSocket", Redirected)
    client, door = Client(access(pods, tmp_path)), Endpoint.of(access(pods, tmp_path).configuration())
    with pytest.raises(ApiError, match="the API server says 302"):
        connected(client, door, EXEC, timeouts=BRISK)
    assert closed == [True]


# --- a server that is not well ----------------------------------------------------------------------


def test_a_server_that_is_down_is_named(pods: KubeServer, tmp_path: Path) -> None:
    with pods.down():
        words = refused(ended(to_pods(access(pods, tmp_path))))
    assert words == f"no answer from {pods.url}: Connection refused"


@pytest.mark.parametrize("what", ["pods", "pods/exec"])
async def test_a_silent_server_is_given_up_and_delays_no_other_host(
    pods: KubeServer, tmp_path: Path, what: str
) -> None:
    pods.faults.on("get", what).hang()
    transport = to_pods(access(pods, tmp_path), pace=StreamTimeouts(answer=1.0))
    launch = await transport.start(HOST, b"x\n", remark=print)
    waiting, turns = asyncio.ensure_future(launch.wait()), 0
    while not waiting.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert refused(waiting.result()) == f"no answer from {pods.url}: it has sent no data for 1 s"
    assert turns > 3  # the loop went on


@pytest.mark.parametrize("what", ["pods", "pods/exec"])
async def test_a_start_that_is_cancelled_while_the_server_is_silent_ends_at_once(
    pods: KubeServer, tmp_path: Path, what: str
) -> None:
    hang = pods.faults.on("get", what).hang()
    transport = to_pods(access(pods, tmp_path), pace=StreamTimeouts(answer=1.0))
    launch = await transport.start(HOST, b"x\n", remark=print)
    await asyncio.to_thread(hang.wait)
    launch.close()
    assert (await launch.wait()).code == 137
    assert pods.execs.commands == []


@pytest.mark.parametrize("what", ["pods", "pods/exec"])
@pytest.mark.parametrize("how", ["reset", "busy", "html", "garbage"])
def test_malformed_answers_are_reported_in_one_line(pods: KubeServer, tmp_path: Path, what: str, how: str) -> None:
    plan = pods.faults.on("get", what)
    if how == "html":
        plan.answer_raw(502, b"<html>\nbad gateway\n</html>")
    elif how == "garbage":
        plan.answer_raw(200, b"\x00}{")
    else:
        getattr(plan, how)()
    words = refused(ended(to_pods(access(pods, tmp_path))))
    expected = {"reset": "no answer from", "busy": "429", "html": "the API server says 502: <html> bad", "garbage": ""}
    assert expected[how] in words


# --- a connection that breaks, or stands still ------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "cut"])
async def test_a_connection_that_breaks_ends_the_input_and_not_the_agent(
    pods: KubeServer, tmp_path: Path, agent: Callable[[str], str], how: str
) -> None:
    transport = to_pods(access(pods, tmp_path), agent(WAITING))
    said: asyncio.Queue[str] = asyncio.Queue()
    launch = await transport.start(HOST, b"x\n", remark=said.put_nowait)
    pid = int((await said.get()).removeprefix("pid "))
    (launch.close if how == "close" else pods.execs.cut)()
    end = await launch.wait()
    assert (end.code, end.reached) == (137 if how == "close" else UNREACHABLE, True)
    assert how == "close" or end.message.startswith("the connection to the pod was lost")
    assert said.empty()  # it is not news: agents that have joined do without
    seen = tmp_path / "agent.saw-the-end"
    await asyncio.to_thread(wait_until, seen.exists, what="the end of the agent's input", timeout=60)
    assert marks.start_time(pid) is not None
    marks.kill([pid])


async def test_a_server_that_hangs_later_is_noticed(
    pods: KubeServer, tmp_path: Path, agent: Callable[[str], str]
) -> None:
    transport = to_pods(access(pods, tmp_path), agent(WAITING), pace=StreamTimeouts(ping=0.1, unanswered=5))
    said: asyncio.Queue[str] = asyncio.Queue()
    launch = await transport.start(HOST, b"x\n", remark=said.put_nowait)
    pid = int((await said.get()).removeprefix("pid "))
    (session,) = pods.execs.sessions()
    session.silent.set()
    end = await launch.wait()
    assert (end.code, end.reached) == (UNREACHABLE, True)
    assert "lost: 5 pings were not answered" in end.message
    marks.kill([pid])
    session.silent.clear()


async def test_pings_keep_the_connection_of_a_quiet_agent_open(
    pods: KubeServer, tmp_path: Path, agent: Callable[[str], str]
) -> None:
    async def quiet_for(seconds: float, pace: StreamTimeouts) -> tuple[int, bool]:
        """How often the server was pinged, and whether it has cut the stream."""
        transport = to_pods(access(pods, tmp_path), agent("read line; echo up; exec cat"), pace=pace)
        said: asyncio.Queue[str] = asyncio.Queue()
        launch = await transport.start(HOST, b"x\n", remark=said.put_nowait)
        assert await said.get() == "up"
        session = pods.execs.sessions()[-1]
        waiting = asyncio.ensure_future(launch.wait())
        await asyncio.wait([waiting], timeout=seconds)
        cut = waiting.done()
        launch.close()
        await waiting
        session.kill()
        return session.pings, cut

    pods.execs.idle_s = 3.0  # launcher, server and agent share a machine that may be busy
    pings, cut = await quiet_for(4.5, StreamTimeouts(ping=0.2, unanswered=600, keepalive=0.4))
    assert pings >= 3
    assert not cut
    pods.execs.idle_s = 1.0
    pings, cut = await quiet_for(60.0, StreamTimeouts(ping=0.2, unanswered=600, keepalive=60.0))
    assert pings >= 3
    assert cut  # pings alone do not count


async def test_an_agent_that_writes_faster_than_the_launcher_reads_loses_nothing(
    pods: KubeServer, tmp_path: Path, agent: Callable[[str], str]
) -> None:
    count = 40_000  # times 1,000 characters: more than all buffers on the way hold
    transport = to_pods(access(pods, tmp_path), agent(f"read line; seq -f %01000g {count}; touch $0.done; exit 5"))
    lines: list[str] = []
    launch = await transport.start(HOST, b"x\n", remark=lines.append)
    await asyncio.to_thread(pods.execs.wait_for, 1)
    time.sleep(1.0)  # the loop stands still
    assert not (tmp_path / "agent.done").exists()
    assert await launch.wait() == LaunchResult(5, reached=True, message=f"{count:01000d}")
    assert lines == [f"{number:01000d}" for number in range(1, count + 1)]


# --- no cluster -------------------------------------------------------------------------------------


def test_without_a_cluster_the_error_names_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"not a pod, and ~/\.kube/config does not exist; for --rsh pod let KUBECONFIG"
    ):
        PodTransport.found({})
    with pytest.raises(UsageError, match="/nowhere does not exist"):
        PodTransport.found({"KUBECONFIG": "/nowhere"})


def test_missing_credentials_make_a_host_unreachable(tmp_path: Path) -> None:
    words = refused(ended(to_pods(Access(account=tmp_path))))
    assert f"{tmp_path}: " in words
