"""Agents by a real ``kubectl exec``, against as much of an API server as that needs."""

from __future__ import annotations

import asyncio
import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.core.agent_command import agent_command
from hvd_elastic_ext.launcher.pods import ROLE
from hvd_elastic_ext.launcher.transports import UNREACHABLE, Ended, ToPods
from tests.support import marks
from tests.support.podapi import PodApi, serving
from tests.support.waiting import wait_until

HOST = "w-0.job.jobs.svc"
ARGUMENTS = " ".join(agent_command("")[1:])


@functools.cache
def version() -> tuple[int, int]:
    """Of kubectl; (0, 0) if there is none."""
    if shutil.which("kubectl") is None:
        return (0, 0)
    done = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"Client Version: v(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@pytest.fixture(autouse=True)
def _kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    if version() < (1, 29):
        pytest.skip("needs a cluster's own tool, kubectl 1.29 or newer: https://kubernetes.io/docs/tasks/tools/")
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "true")  # which newer ones do by themselves


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodApi]:
    with serving(jobs={"w-0"}) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig", "default")))
        monkeypatch.setenv("HOME", str(tmp_path))  # where kubectl keeps what it has discovered
        yield server


@pytest.fixture
def agent(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "agent"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def launched(host: str, python: str) -> tuple[Ended, list[str]]:
    remarks: list[str] = []

    async def act() -> Ended:
        launch = await ToPods(python=python).start(host, b"0123456789\n", remark=remarks.append)
        return await asyncio.wait_for(launch.wait(), 60)

    return asyncio.run(act()), remarks


@pytest.mark.parametrize("code", [0, 3])
def test_an_agent_gets_its_line_and_how_it_ends_is_told(api: PodApi, agent: Callable[[str], str], code: int) -> None:
    ended, remarks = launched(
        HOST, agent(f'line=$(head -n 1); echo "got ${{#line}} bytes" >&2; echo "$*"; exit {code}')
    )
    assert ended == Ended(code, reached=True, last_words="got 10 bytes")
    assert sorted(remarks) == [ARGUMENTS, "got 10 bytes"]


def test_a_pod_that_is_not_there_is_named(api: PodApi) -> None:
    ended, _ = launched("w-9.job.jobs.svc", "true")
    assert (ended.code, ended.reached) == (UNREACHABLE, False)
    assert 'pods "w-9" not found; with --rsh pod' in ended.last_words


def test_a_launcher_that_may_not_is_told_which_rule_it_lacks(api: PodApi) -> None:
    api.forbidden = True
    ended, _ = launched(HOST, "true")
    assert (ended.code, ended.reached) == (UNREACHABLE, False)
    assert 'cannot create resource "pods/exec"' in ended.last_words
    assert ended.last_words.endswith(ROLE)


def test_without_a_cluster_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: PodApi) -> None:
    api.server_close()
    ended, _ = launched(HOST, "true")
    assert (ended.code, ended.reached) == (UNREACHABLE, False)
    assert "refused" in ended.last_words


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_connection_that_breaks_ends_the_input_and_not_the_agent(
    api: PodApi, agent: Callable[[str], str], tmp_path: Path, how: str
) -> None:
    text = 'read line; echo "pid $$"; cat >/dev/null; touch "$0.saw-the-end"; exec sleep 1000'

    async def act() -> None:
        said: asyncio.Queue[str] = asyncio.Queue()
        launch = await ToPods(python=agent(text)).start(HOST, b"x\n", remark=said.put_nowait)
        pid = int((await asyncio.wait_for(said.get(), 60)).removeprefix("pid "))
        if how == "kill":
            launch.kill()
        else:
            api.cut()
        ended = await asyncio.wait_for(launch.wait(), 60)
        assert (ended.code, ended.reached) == (137 if how == "kill" else UNREACHABLE, True)
        seen = tmp_path / "agent.saw-the-end"
        await asyncio.to_thread(wait_until, seen.exists, what="the end of the agent's input", timeout=60)
        assert marks.start_time(pid) is not None
        marks.kill([pid])

    asyncio.run(act())
