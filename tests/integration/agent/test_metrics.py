"""Real agents that Prometheus may ask."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.messages.wire import KEY_SIZE
from hvd_elastic_ext.launcher.agents.capacity import HeartbeatPace
from hvd_elastic_ext.launcher.agents.server import Control
from hvd_elastic_ext.launcher.agents.transports.transports import Local, join_line
from tests.integration.agent.test_with_the_control_port import Seen
from tests.support.waiting import wait_until


def read(port: int) -> dict[str, str]:
    """The samples, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def is_closed(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


class Agents:
    """Agents of one job on this machine, and a launcher that they serve."""

    def __init__(self, address: str) -> None:
        """``address``: where each of them answers Prometheus."""
        self.options: dict[str, Any] = {"orphan_grace_s": 20, "metrics": address}
        self.seen, self._key = Seen(), os.urandom(KEY_SIZE)
        self.control = Control(
            "job-1",
            self._key,
            incarnation=1,
            pace=HeartbeatPace(0.1),
            options=self.options,
            on_event=self.seen.take,
        )
        self.seen.failed = True  # no news is to be lost here
        self.remarks: list[str] = []
        self._told = asyncio.Event()
        self._launches: list[Any] = []

    async def start(self, host: str) -> None:
        at = ("127.0.0.1", await self.control.start("127.0.0.1")) if not self._launches else self._at
        self._at = at
        line = join_line("job-1", host, key=self._key, launcher=at, incarnation=1, orphan_grace_s=20)
        self._launches.append(await Local().start(host, line, remark=self._remark))
        await self.seen.joins(len(self._launches))

    def _remark(self, text: str) -> None:
        self.remarks.append(text)
        self._told.set()

    async def remark(self, pattern: str) -> str:
        while not (found := [match for text in self.remarks if (match := re.search(pattern, text))]):
            self._told.clear()
            await self._told.wait()
        return found[0][1]

    async def port(self) -> int:
        """Where the first host answers."""
        return int(await self.remark(r"host h1 answers Prometheus at port (\d+)"))

    async def end(self) -> None:
        for host in list(self.control.hosts):
            assert self.control.send(host, {"do": "finish"})
        for launch in self._launches:
            await launch.wait()
        await self.control.stop()


def test_a_real_agent_answers_with_what_runs_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def story() -> None:
        agents = Agents("127.0.0.1:0")
        await agents.start("h1")
        port = await agents.port()
        first = await asyncio.to_thread(read, port)
        assert first['hvd_elastic_agent_info{host="h1",name="job-1"}'] == "1.0"
        assert first["hvd_elastic_agent_connected"] == "1.0"
        assert 0 < float(first["hvd_elastic_agent_memory_ratio"]) < 1
        argv = ["sleep", "1000"]
        assert agents.control.send("h1", {"do": "start", "slot": 0, "argv": argv, "life": 1, "link": True})
        while (told := await asyncio.to_thread(read, port))['hvd_elastic_agent_processes{state="booting"}'] != "1.0":
            pass  # each look is a request
        assert told['hvd_elastic_agent_commit_memory_bytes{slot="0"}'] == "0.0"
        assert float(told["hvd_elastic_agent_heartbeats_total"]) >= 1
        assert agents.control.send("h1", {"do": "stop", "slot": 0})
        await agents.end()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_two_agents_with_one_port_go_on_and_the_second_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def story() -> None:
        agents = Agents(f"127.0.0.1:{port}")
        await agents.start("h1")
        await agents.start("h2")
        await agents.remark("(Address already in use)")
        told = await asyncio.to_thread(read, port)
        assert told['hvd_elastic_agent_info{host="h1",name="job-1"}'] == "1.0"
        assert agents.control.send("h2", {"do": "start", "slot": 0, "argv": ["true"], "life": 1})
        await agents.end()
        [line] = agents.remarks
        assert line.endswith(
            f"--agent-metrics 127.0.0.1:{port}: Address already in use; host h2 goes on without figures"
        )

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_launcher_that_takes_an_agent_over_says_anew_where_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def story() -> None:
        agents = Agents("127.0.0.1:0")
        await agents.start("h1")
        port = await agents.port()
        await asyncio.to_thread(read, port)
        agents.options["metrics"] = None
        await agents.start("h1")
        await asyncio.to_thread(wait_until, lambda: is_closed(port), what="an agent that has read the new welcome")
        await agents.end()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_agent_without_the_library_says_so_once_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('No module named prometheus_client')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    async def story() -> None:
        agents = Agents("127.0.0.1:0")
        await agents.start("h1")
        port = await agents.port()
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match="500") as refused:
                await asyncio.to_thread(read, port)
            refused.value.close()
        await agents.end()
        [line] = agents.remarks[1:]
        assert "install prometheus-client on host h1" in line

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_agent_that_nobody_asks_loads_no_library_for_it() -> None:
    code = (
        "import sys; import hvd_elastic_ext.agent.__main__, hvd_elastic_ext.agent.job; "
        "print([name for name in sys.modules if 'prometheus' in name or 'metrics' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
