"""Small agents over the real wire, and a control port to which they connect over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from hvd_elastic_ext.core.messages.wire import AgentWire
from hvd_elastic_ext.launcher.agents.capacity import HeartbeatPace
from hvd_elastic_ext.launcher.agents.server import Control, ControlEvent

KEY = bytes(range(32))
JOB = "job"
INCARNATION = 3
OPTIONS = {"orphan_grace_s": 60.0}


def hello(host="h1", agent="a1", **changes):
    greeting = {"event": "hello", "job": JOB, "host": host, "agent": agent, "incarnation": 0, "pid": 7}
    return {**greeting, "facts": {}, "seats": {}, **changes}


class Agent:
    """The agent's end of a session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key=KEY) -> None:
        self.reader, self.writer = reader, writer
        self.wire = AgentWire(key)

    async def greet(self) -> None:
        while not self.wire.ready:
            data = await self.reader.read(1)
            assert data, "hung up on before the greeting"
            self.wire.feed(data)

    def say(self, message) -> None:
        self.writer.write(self.wire.seal(message))

    async def hear(self, count: int) -> list[dict]:
        heard = []
        while len(heard) < count:
            data = await self.reader.read(1000)
            assert data, f"hung up on after {heard}"
            heard += self.wire.feed(data)
        return heard

    async def is_hung_up_on(self) -> bool:
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        return True


class Scene:
    """A control port, and the events from it."""

    def __init__(self) -> None:
        self.events: list = []
        self.heed: Callable[[ControlEvent], None] = self.events.append
        self.control = Control(
            JOB,
            KEY,
            incarnation=INCARNATION,
            pace=HeartbeatPace(0.5),
            options=OPTIONS,
            on_event=lambda event: self.heed(event),
        )
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    async def agent(self, key=KEY) -> Agent:
        agent = Agent(*await self.connect(), key)
        await agent.greet()
        return agent

    async def joined(self, host="h1", agent="a1", **changes) -> Agent:
        newcomer = await self.agent()
        newcomer.say(hello(host, agent, **changes))
        (welcome,) = await newcomer.hear(1)
        assert welcome["do"] == "welcome"
        return newcomer

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def end(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.control.stop()


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    made.port = await made.control.start("127.0.0.1")
    try:
        yield made
    finally:
        await made.end()


@pytest.fixture
def made() -> AbstractAsyncContextManager[Scene]:
    """For ``async def`` tests, which get it entered."""
    return scene()
