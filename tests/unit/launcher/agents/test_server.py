"""The control port over real sockets: which connections it accepts, what it sends, and which it refuses."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.messages.wire import FROM_AGENT, MAX_FIRST, MAX_FRAME, Sealer
from hvd_elastic_ext.launcher.agents.server import Control, Superseded, hello_error
from hvd_elastic_ext.launcher.driver.events import AgentJoined, AgentLost, News
from tests.unit.launcher.small_agents import INCARNATION, JOB, KEY, Agent, Scene, hello
from tests.unit.launcher.small_agents import made as made  # a fixture


async def test_an_agent_joins_talks_and_is_talked_to(made: Scene) -> None:
    agent = await made.agent()
    agent.say(hello())
    assert await agent.hear(1) == [
        {
            "do": "welcome",
            "incarnation": INCARNATION,
            "heartbeat_s": 0.5,
            "figures_every": 1,
            "orphan_grace_s": 60.0,
        }
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


async def test_an_agent_that_hangs_up_is_lost(made: Scene) -> None:
    agent = await made.joined()
    agent.writer.close()
    await made.until(lambda: len(made.events) == 2)
    assert made.events[1] == AgentLost("h1", "the agent disconnected")
    assert made.control.hosts == ()
    assert not made.control.send("h1", {"do": "finish"})


async def test_only_agents_count_for_the_pause_of_the_control_port(made: Scene) -> None:
    for _ in range(5):
        await made.agent()  # connected, and silent
    agent = await made.joined()
    assert made.control.poller.agents == 1
    agent.writer.close()
    await made.until(lambda: len(made.events) == 2)
    assert made.control.poller.agents == 0


async def test_the_same_agent_may_connect_again_before_its_loss_was_seen(made: Scene) -> None:
    first = await made.joined(agent="a1")
    second = await made.joined(agent="a1", seats={"0": {}})
    assert await first.is_hung_up_on()
    assert made.control.send("h1", {"do": "finish"})
    assert await second.hear(1) == [{"do": "finish"}]
    assert made.events == [AgentJoined("h1", hello()), AgentJoined("h1", hello(seats={"0": {}}))]


async def test_another_agent_of_the_host_takes_the_place_of_the_first(made: Scene) -> None:
    first = await made.joined(agent="a1")
    await made.joined(agent="a2")
    assert await first.is_hung_up_on()
    assert made.events == [
        AgentJoined("h1", hello(agent="a1")),
        AgentLost("h1", "another agent has taken its place"),
        AgentJoined("h1", hello(agent="a2")),
    ]


async def test_a_loss_is_told_before_the_return_even_if_both_come_at_once(made: Scene) -> None:
    agent = await made.agent()
    await made.joined(agent="a1")
    made.control.drop("h1", "silent")
    assert made.control.hosts == ()
    assert not made.control.send("h1", {"do": "finish"})
    agent.say(hello(agent="a1"))
    await agent.hear(1)
    assert made.events[1:] == [AgentLost("h1", "silent"), AgentJoined("h1", hello(agent="a1"))]


async def test_a_newer_launcher_is_told_and_its_agents_are_let_go(made: Scene) -> None:
    agent = await made.agent()
    agent.say(hello(incarnation=INCARNATION + 1))
    assert await agent.is_hung_up_on()
    assert made.events == [Superseded(INCARNATION + 1)]


async def test_an_agent_that_obeyed_this_launcher_before_is_welcome(made: Scene) -> None:
    await made.joined(incarnation=INCARNATION)
    assert made.control.hosts == ("h1",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"event": "beats"}, "not a hello"),
        ({"job": "other"}, "another job"),
        ({"host": "-oProxyCommand=x"}, "not name a valid host"),
        ({"host": 7}, "not name a valid host"),
        ({"agent": ""}, "not name an agent"),
        ({"agent": "x" * 65}, "not name an agent"),
        ({"incarnation": True}, "not name an incarnation"),
        ({"incarnation": "4"}, "not name an incarnation"),
        ({"facts": None}, "lacks"),
        ({"seats": []}, "lacks"),
    ],
)
def test_a_hello_that_is_none_is_named(change, why) -> None:
    assert hello_error(hello(), job=JOB) is None
    assert why in hello_error({**hello(), **change}, job=JOB)


def signed_by_another_job(agent: Agent) -> None:
    agent.wire._sealer = Sealer(bytes(32), FROM_AGENT)
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
async def test_strangers_are_refused_counted_and_named_once(
    made: Scene, act: Callable[[Agent], object], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        session = await made.agent()
        act(session)
        await made.until(lambda number=number: made.control.refused.total() == number + 1)
        assert await session.is_hung_up_on()
    assert made.events == []
    assert len(made.control.refused) == 1
    await made.control.stop()
    told, in_all = (record.getMessage() for record in caplog.records)
    assert told.startswith("control port: refused 127.0.0.1: ")
    assert in_all == told.replace("refused 127.0.0.1:", "refused in all: 3 ×")


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda agent: agent.writer.write(struct.pack(">I", 40) + bytes(40)), "not signed"),
        (lambda agent: agent.writer.write(struct.pack(">I", MAX_FRAME + 1)), "too large"),
        (lambda agent: agent.say({"slot": 0}), "not news"),
        (lambda agent: agent.say({"event": 7}), "not news"),
        (lambda agent: agent.say(hello()), "not news"),
    ],
)
async def test_a_session_ends_at_the_first_thing_wrong_with_it(made: Scene, say, why) -> None:
    agent = await made.joined()
    say(agent)
    agent.writer.write(b"\0")
    assert await agent.is_hung_up_on()
    await made.until(lambda: len(made.events) == 2)
    assert isinstance(made.events[1], AgentLost)
    assert why in made.events[1].reason
    assert made.control.refused.total() == 1


async def test_what_was_recorded_is_of_no_use_later(made: Scene) -> None:
    agent = await made.agent()
    said = agent.wire.seal(hello())
    agent.writer.write(said)
    await agent.hear(1)
    reader, writer = await made.connect()
    writer.write(said)
    assert await Agent(reader, writer).is_hung_up_on()
    assert len(made.events) == 1


async def test_a_handler_may_send_drop_and_see_the_welcome_go_first(made: Scene) -> None:
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


async def test_an_address_that_is_not_ours_or_taken_is_one_line(made: Scene) -> None:
    other = Control(JOB, KEY, incarnation=1, on_event=made.events.append)
    with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1 port \d+: .*in use"):
        await other.start("127.0.0.1", made.port)
    with pytest.raises(UsageError, match="cannot listen on 192"):
        await other.start("192.0.2.1")
    await other.stop()
