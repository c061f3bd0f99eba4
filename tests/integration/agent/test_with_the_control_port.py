"""The launcher's own control port and transport with a real agent: joined, ordered, left, adopted, finished."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.wire import KEY_SIZE
from hvd_elastic_ext.launcher.agents.capacity import Pace
from hvd_elastic_ext.launcher.agents.server import AgentJoined, AgentLost, Control, ControlEvent, News
from hvd_elastic_ext.launcher.agents.transports.transports import Local, join_line


class Seen:
    """What a control port has told."""

    def __init__(self) -> None:
        self.events: list[ControlEvent] = []
        self.defect_over = ""
        """The news over which whoever takes them in raises, once."""
        self._changed = asyncio.Event()

    def take(self, event: ControlEvent) -> None:
        if isinstance(event, News) and event.news["event"] == self.defect_over:
            self.defect_over = ""
            raise ZeroDivisionError("ours")
        self.events.append(event)
        self._changed.set()

    def news(self, event: str) -> list[Any]:
        return [one.news for one in self.events if isinstance(one, News) and one.news["event"] == event]

    def joined(self) -> list[AgentJoined]:
        return [one for one in self.events if isinstance(one, AgentJoined)]

    async def until(self, condition: Callable[[], Any]) -> Any:
        while not (found := condition()):
            self._changed.clear()
            await self._changed.wait()
        return found


async def launcher(key: bytes, incarnation: int) -> tuple[Control, Seen, bytes]:
    seen = Seen()
    control = Control("job-1", key, incarnation=incarnation, pace=Pace(0.2), orphan_grace_s=20, on_event=seen.take)
    port = await control.start("127.0.0.1")
    line = join_line("job-1", "h1", key=key, launcher=("127.0.0.1", port), incarnation=incarnation, orphan_grace_s=20)
    return control, seen, line


def test_an_agent_serves_one_launcher_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    remarks: list[str] = []

    async def story() -> None:
        key = os.urandom(KEY_SIZE)
        first, seen, line = await launcher(key, 1)
        launch = await Local().start("h1", line, remark=remarks.append)
        (joined,) = await seen.until(seen.joined)
        assert joined.hello["facts"]["via"] == "lo"
        assert first.send("h1", {"do": "start", "slot": 0, "argv": ["sleep", "1000"], "life": 1, "link": True})
        await seen.until(lambda: seen.news("started"))
        await seen.until(lambda: seen.news("beats"))
        await first.stop()

        second, seen, line = await launcher(key, 2)
        handing_over = await Local().start("h1", line, remark=remarks.append)
        assert (await handing_over.wait()).code == 0
        assert "adopted" in remarks
        (joined,) = await seen.until(seen.joined)
        status = joined.hello["seats"]["0"]
        assert (status["life"], status["state"]) == (1, "running")
        assert second.send("h1", {"do": "kill", "slot": 0})
        (exited,) = await seen.until(lambda: seen.news("exited"))
        assert (exited["code"], exited["oom"]) == (137, False)
        assert second.send("h1", {"do": "finish"})
        await seen.until(lambda: [one for one in seen.events if isinstance(one, AgentLost)])
        assert (await launch.wait()).code == 137
        await second.stop()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_a_defect_of_the_launcher_lost_an_agent_tells_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def story() -> None:
        control, seen, line = await launcher(os.urandom(KEY_SIZE), 1)
        seen.defect_over = "exited"
        launch = await Local().start("h1", line, remark=lambda _: None)
        await seen.until(seen.joined)
        assert control.send("h1", {"do": "start", "slot": 0, "argv": ["sh", "-c", "exit 7"], "life": 1})
        _, again = await seen.until(lambda: len(seen.joined()) == 2 and seen.joined())
        status = again.hello["seats"]["0"]
        assert (status["life"], status["state"], status["code"]) == (1, "rest", 7)
        assert not seen.news("exited")
        assert [record.exc_info is not None for record in caplog.records] == [True]
        assert control.send("h1", {"do": "finish"})
        await launch.wait()
        await control.stop()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_orders_that_come_together_are_carried_out_in_their_order_and_a_bad_one_holds_none_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def story() -> None:
        control, seen, line = await launcher(os.urandom(KEY_SIZE), 1)
        launch = await Local().start("h1", line, remark=lambda remark: None)
        await seen.until(seen.joined)
        starts = [{"do": "start", "slot": slot, "argv": ["sh", "-c", f"exit {slot}"], "life": 1} for slot in (4, 5)]
        assert control.send("h1", {"do": "all", "orders": [starts[0], {"do": "dance"}, "x", starts[1]]})
        await seen.until(lambda: len(seen.news("exited")) == 2)
        assert [each["slot"] for each in seen.news("started")] == [4, 5]
        assert {each["slot"]: each["code"] for each in seen.news("exited")} == {4: 4, 5: 5}
        assert control.send("h1", {"do": "all", "orders": [{"do": "finish"}]})
        await seen.until(lambda: [one for one in seen.events if isinstance(one, AgentLost)])
        await launch.wait()
        await control.stop()

    asyncio.run(asyncio.wait_for(story(), 60))
