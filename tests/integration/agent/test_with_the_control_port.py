"""The launcher's own control port and transport with a real agent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.messages.wire import KEY_SIZE
from hvd_elastic_ext.launcher.agents.capacity import HeartbeatPace
from hvd_elastic_ext.launcher.agents.server import Control, ControlEvent
from hvd_elastic_ext.launcher.agents.transports.transports import Local, join_line
from hvd_elastic_ext.launcher.driver.events import AgentJoined, News


class Seen:
    """What a control port has told. The first news of an exit is lost by a defect."""

    def __init__(self) -> None:
        self.joined: list[AgentJoined] = []
        self.failed = False
        self._changed = asyncio.Event()

    def take(self, event: ControlEvent) -> None:
        if isinstance(event, News) and event.news["event"] == "exited" and not self.failed:
            self.failed = True
            raise ZeroDivisionError("ours")
        self.joined += [event] if isinstance(event, AgentJoined) else []
        self._changed.set()

    async def joins(self, count: int) -> AgentJoined:
        while len(self.joined) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.joined[count - 1]


def test_what_a_defect_of_the_launcher_lost_an_agent_tells_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def story() -> None:
        seen, key = Seen(), os.urandom(KEY_SIZE)
        control = Control(
            "job-1", key, incarnation=1, pace=HeartbeatPace(0.2), options={"orphan_grace_s": 20}, on_event=seen.take
        )
        at = ("127.0.0.1", await control.start("127.0.0.1"))
        line = join_line("job-1", "h1", key=key, launcher=at, incarnation=1, orphan_grace_s=20)
        launch = await Local().start("h1", line, remark=lambda _: None)
        await seen.joins(1)
        assert control.send("h1", {"do": "start", "slot": 0, "argv": ["sh", "-c", "exit 7"], "life": 1})
        status = (await seen.joins(2)).hello["seats"]["0"]
        assert (status["life"], status["state"], status["code"]) == (1, "rest", 7)
        assert [record.exc_info is not None for record in caplog.records] == [True]
        assert control.send("h1", {"do": "finish"})
        await launch.wait()
        await control.stop()

    asyncio.run(asyncio.wait_for(story(), 60))
