"""The control port over real sockets, with agents of a few lines made of the same wire."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.wire import MAX_FIRST, MAX_FRAME, AgentWire, WireError
from hvd_elastic_ext.launcher import sessions
from hvd_elastic_ext.launcher.control import AgentJoined, AgentLost, Control, News, Superseded, counted, hello_error

KEY = bytes(range(32))
JOB = "job"
INCARNATION = 3
SECONDS = 10


def hello(host="h1", agent="a1", **changes):
    greeting = {"event": "hello", "job": JOB, "host": host, "agent": agent, "incarnation": 0, "pid": 7}
    return {**greeting, "facts": {}, "seats": {}, **changes}


class Agent:
    """The other end of a session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key=KEY) -> None:
        self.reader, self.writer = reader, writer
        self.wire = AgentWire(key)

    async def greet(self) -> None:
        while not self.wire.ready:
            self.wire.feed(await self.reader.read(1))

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
    """A control and what came of it."""

    def __init__(self) -> None:
        self.events: list = []
        self.control = Control(JOB, KEY, incarnation=INCARNATION, heartbeat_s=0.5, on_event=self.events.append)
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


def play(act: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        async with scene() as made:
            await asyncio.wait_for(act(made), SECONDS)

    asyncio.run(run())


def test_an_agent_joins_talks_and_is_talked_to() -> None:
    async def act(made: Scene) -> None:
        agent = await made.agent()
        agent.say(hello())
        assert await agent.hear(1) == [
            {"do": "welcome", "incarnation": INCARNATION, "heartbeat_s": 0.5, "orphan_grace_s": 60.0}
        ]
        agent.say({"event": "beats", "slots": {}})
        agent.say({"event": "exited", "slot": 1})
        assert made.control.hosts == ("h1",)
        assert made.control.send("h1", {"do": "stop", "slot": 1})
        assert not made.control.send("h2", {"do": "stop", "slot": 1})
        assert await agent.hear(1) == [{"do": "stop", "slot": 1}]
        await made.until(lambda: len(made.events) == 3)
        assert made.events == [
            AgentJoined("h1", hello()),
            News("h1", {"event": "beats", "slots": {}}),
            News("h1", {"event": "exited", "slot": 1}),
        ]
        assert not made.control.refused

    play(act)


def test_an_agent_that_hangs_up_is_lost() -> None:
    async def act(made: Scene) -> None:
        agent = await made.joined()
        agent.writer.close()
        await made.until(lambda: len(made.events) == 2)
        assert made.events[1] == AgentLost("h1", "the agent hung up")
        assert made.control.hosts == ()
        assert not made.control.send("h1", {"do": "finish"})

    play(act)


def test_the_same_agent_may_connect_again_before_its_loss_was_seen() -> None:
    async def act(made: Scene) -> None:
        first = await made.joined(agent="a1")
        second = await made.joined(agent="a1", seats={"0": {}})
        assert await first.is_hung_up_on()
        assert made.control.send("h1", {"do": "finish"})
        assert await second.hear(1) == [{"do": "finish"}]
        assert made.events == [AgentJoined("h1", hello()), AgentJoined("h1", hello(seats={"0": {}}))]

    play(act)


def test_another_agent_of_the_host_takes_the_place_of_the_first() -> None:
    async def act(made: Scene) -> None:
        first = await made.joined(agent="a1")
        await made.joined(agent="a2")
        assert await first.is_hung_up_on()
        assert made.events == [
            AgentJoined("h1", hello(agent="a1")),
            AgentLost("h1", "another agent has taken its place"),
            AgentJoined("h1", hello(agent="a2")),
        ]

    play(act)


def test_a_loss_is_told_before_the_return_even_if_both_come_at_once() -> None:
    async def act(made: Scene) -> None:
        agent = await made.agent()
        await made.joined(agent="a1")
        made.control.drop("h1", "silent")
        assert made.control.hosts == ()
        assert not made.control.send("h1", {"do": "finish"})
        agent.say(hello(agent="a1"))
        await agent.hear(1)
        assert made.events[1:] == [AgentLost("h1", "silent"), AgentJoined("h1", hello(agent="a1"))]

    play(act)


def test_a_newer_launcher_is_told_and_its_agents_are_let_go() -> None:
    async def act(made: Scene) -> None:
        agent = await made.agent()
        agent.say(hello(incarnation=INCARNATION + 1))
        assert await agent.is_hung_up_on()
        assert made.events == [Superseded(INCARNATION + 1)]

    play(act)


def test_an_agent_that_obeyed_this_launcher_before_is_welcome() -> None:
    async def act(made: Scene) -> None:
        await made.joined(incarnation=INCARNATION)

    play(act)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"event": "beats"}, "no hello"),
        ({"job": "other"}, "another job"),
        ({"host": "-oProxyCommand=x"}, "no valid host"),
        ({"host": 7}, "no valid host"),
        ({"agent": ""}, "no agent"),
        ({"agent": "x" * 65}, "no agent"),
        ({"incarnation": True}, "no incarnation"),
        ({"incarnation": "4"}, "no incarnation"),
        ({"facts": None}, "lacks"),
        ({"seats": []}, "lacks"),
    ],
)
def test_a_hello_that_is_none_is_named(change, why) -> None:
    assert hello_error(hello(), job=JOB) is None
    assert why in hello_error({**hello(), **change}, job=JOB)


def signed_by_another_job(agent: Agent) -> None:
    agent.wire._key = bytes(32)
    agent.wire._sealer, _ = agent.wire._keyed(bytes(32))
    agent.say(hello())


STRANGERS = {
    "unsigned": lambda agent: agent.writer.write(bytes(32) + struct.pack(">I", 40) + bytes(40)),
    "http": lambda agent: agent.writer.write(b"GET / HTTP/1.1\r\nHost: launcher.example.com\r\n\r\n"),
    "oversized": lambda agent: agent.writer.write(bytes(32) + struct.pack(">I", MAX_FIRST + 1)),
    "another job": signed_by_another_job,
    "wrong job name": lambda agent: agent.say(hello(job="other")),
    "no hello": lambda agent: agent.say({"event": "beats", "slots": {}}),
    "hangs up": lambda agent: agent.writer.close(),
}


@pytest.mark.parametrize("act", STRANGERS.values(), ids=STRANGERS)
def test_strangers_are_refused_counted_and_named_once(act, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(made: Scene) -> None:
        for number in range(3):
            stranger = await made.agent()
            act(stranger)
            await made.until(lambda number=number: made.control.refused.total() == number + 1)
            assert await stranger.is_hung_up_on()
        assert made.events == []
        assert len(made.control.refused) == 1

    with caplog.at_level(logging.WARNING):
        play(scenario)
    told, in_all = (record.getMessage() for record in caplog.records)
    assert told.startswith("control port: refused 127.0.0.1: ")
    assert in_all == told.replace("refused 127.0.0.1:", "turned away in all: 3 ×")


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda agent: agent.writer.write(struct.pack(">I", 40) + bytes(40)), "not signed"),
        (lambda agent: agent.writer.write(struct.pack(">I", MAX_FRAME + 1)), "too large"),
        (lambda agent: agent.say({"slot": 0}), "no news"),
        (lambda agent: agent.say({"event": 7}), "no news"),
        (lambda agent: agent.say(hello()), "no news"),
    ],
)
def test_a_session_ends_at_the_first_thing_wrong_with_it(say, why) -> None:
    async def act(made: Scene) -> None:
        agent = await made.joined()
        say(agent)
        agent.writer.write(b"\0")
        assert await agent.is_hung_up_on()
        await made.until(lambda: len(made.events) == 2)
        assert isinstance(made.events[1], AgentLost)
        assert why in made.events[1].reason
        assert made.control.refused.total() == 1

    play(act)


def test_what_was_recorded_is_of_no_use_later() -> None:
    async def act(made: Scene) -> None:
        agent = await made.agent()
        said = agent.wire.seal(hello())
        agent.writer.write(said)
        await agent.hear(1)
        reader, writer = await made.connect()
        writer.write(said)
        assert await Agent(reader, writer).is_hung_up_on()
        assert len(made.events) == 1

    play(act)


def test_counts_of_the_refused_stand_in_one_line_the_most_frequent_first() -> None:
    assert counted({"too late": 1, "not signed": 50}) == "50 × not signed; 1 × too late"


def test_who_says_nothing_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELLO_S", 0.05)

    async def act(made: Scene) -> None:
        reader, writer = await made.connect()
        writer.write(b"x")
        assert await Agent(reader, writer).is_hung_up_on()
        assert made.control.refused == {"it did not say who it is within 0.05 s": 1}

    play(act)


def test_a_crowd_waits_and_those_who_only_stand_there_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_STRANGERS", 4)
    monkeypatch.setattr(sessions, "HURRIED_S", 0.05)

    async def act(made: Scene) -> None:
        for _ in range(8):
            await made.connect()
        agents = [await made.joined(host=f"h{number}") for number in range(20)]
        assert len(agents) == len(made.events) == 20
        assert made.control.refused.total() >= 5

    play(act)


def test_many_agents_at_once_are_all_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_STRANGERS", 8)

    async def act(made: Scene) -> None:
        await asyncio.gather(*(made.joined(host=f"h{number}") for number in range(100)))
        assert len(made.control.hosts) == 100
        assert not made.control.refused

    play(act)


def test_an_agent_that_does_not_read_is_hung_up_on_and_never_waited_for() -> None:
    async def act(made: Scene) -> None:
        agent = await made.joined()
        order = {"do": "tell", "text": "x" * (1 << 20)}
        sent = 0
        while made.control.send("h1", order):
            sent += 1
            assert sent < 100
            await asyncio.sleep(0)
        assert sent > sessions.MAX_UNSENT >> 20
        await made.until(lambda: len(made.events) == 2)
        assert made.events[1] == AgentLost("h1", "the agent does not read its orders")
        assert await agent.is_hung_up_on()

    play(act)


def test_orders_larger_than_the_network_takes_at_once_arrive_whole_and_in_order() -> None:
    async def act(made: Scene) -> None:
        agent = await made.joined()
        orders = [{"do": "tell", "number": number, "text": "x" * (3 << 20)} for number in range(2)]
        assert all(made.control.send("h1", order) for order in orders)
        assert await agent.hear(2) == orders
        with pytest.raises(WireError):
            made.control.send("h1", {"text": "x" * (8 << 20)})
        assert made.control.send("h1", {"do": "finish"})
        assert await agent.hear(1) == [{"do": "finish"}]

    play(act)


def test_last_orders_arrive_although_the_agent_goes_on_talking() -> None:
    async def act(made: Scene) -> None:
        agent = await made.joined()
        made.control.send("h1", {"do": "tell", "text": "x" * (2 << 20)})
        made.control.send("h1", {"do": "finish"})
        for _ in range(100):
            agent.say({"event": "output", "text": "x" * 10_000})
        stopping = asyncio.ensure_future(made.control.stop())
        assert [order["do"] for order in await agent.hear(2)] == ["tell", "finish"]
        assert await agent.reader.read() == b""
        agent.writer.close()
        await stopping
        assert len(made.events) == 1

    play(act)


def test_stopping_waits_only_so_long_for_an_agent_that_does_not_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_elastic_ext.launcher.control.LINGER_S", 0.05)

    async def act(made: Scene) -> None:
        await made.joined()
        await made.connect()
        await made.control.stop()
        await made.control.stop()
        assert made.control.hosts == ()
        assert len(made.events) == 1
        with pytest.raises(ConnectionRefusedError):
            await made.connect()

    play(act)


def test_a_handler_may_send_drop_and_see_the_welcome_go_first() -> None:
    async def act(made: Scene) -> None:
        def on_event(event) -> None:
            made.events.append(event)
            if isinstance(event, AgentJoined):
                made.control.send(event.host, {"do": "start", "slot": 0})
            elif isinstance(event, News):
                made.control.drop(event.host, "enough")

        made.control._on_event = on_event
        agent = await made.agent()
        agent.say(hello())
        agent.say({"event": "beats", "slots": {}})
        agent.say({"event": "beats", "slots": {}})
        await made.until(lambda: len(made.events) == 3)
        assert [type(event) for event in made.events] == [AgentJoined, News, AgentLost]
        assert made.events[2] == AgentLost("h1", "enough")

    play(act)


def test_an_address_that_is_not_ours_or_taken_is_one_line() -> None:
    async def act(made: Scene) -> None:
        other = Control(JOB, KEY, incarnation=1, on_event=made.events.append)
        with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1 port \d+: .*in use"):
            await other.start("127.0.0.1", made.port)
        with pytest.raises(UsageError, match="cannot listen on 192"):
            await other.start("192.0.2.1")
        await other.stop()

    play(act)


def test_a_connection_reset_before_it_was_greeted_costs_nothing() -> None:
    async def act(made: Scene) -> None:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", made.port)) as brief:
                brief.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await made.joined()
        assert len(made.events) == 1

    play(act)
