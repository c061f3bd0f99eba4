"""Slow, numerous, unread and lost connections of the control port, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys

import pytest

from hvd_elastic_ext.core.messages.wire import MAX_FIRST, WireError
from hvd_elastic_ext.launcher.agents import connection
from hvd_elastic_ext.launcher.agents.server import ControlEvent
from hvd_elastic_ext.launcher.driver.events import AgentJoined, AgentLost, News
from tests.unit.launcher.small_agents import Agent, Scene, hello
from tests.unit.launcher.small_agents import made as made  # a fixture


async def test_who_says_nothing_is_turned_away(made: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", 0.05)
    reader, writer = await made.connect()
    writer.write(b"x")
    assert await Agent(reader, writer).is_hung_up_on()
    assert made.control.refused == {"no authentication within 0.05 s": 1}


async def test_a_crowd_waits_and_those_who_only_stand_there_make_room(
    made: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "max_unproven", lambda files: 4)
    monkeypatch.setattr(connection, "SHORTEST_S", 0.05)
    for _ in range(8):
        await made.connect()
    agents = [await made.joined(host=f"h{number}") for number in range(20)]
    assert len(agents) == len(made.events) == 20
    assert made.control.refused.total() >= 5


async def test_many_agents_at_once_are_all_let_in(made: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "max_unproven", lambda files: 8)
    monkeypatch.setattr(connection, "SHORTEST_S", 60.0)  # on a busy machine, agents may need longer
    await asyncio.gather(*(made.joined(host=f"h{number}") for number in range(100)))
    assert len(made.control.hosts) == 100
    assert not made.control.refused


CROWD = """
import os, selectors, socket, sys
os.setuid(65534)
address, count = ("127.0.0.1", int(sys.argv[1])), int(sys.argv[2])
standing = selectors.DefaultSelector()
def stand():
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(address)
    standing.register(one, selectors.EVENT_READ)
for _ in range(count):
    stand()
print("there", flush=True)
while True:
    for key, _ in standing.select():
        try:
            over = not key.fileobj.recv(4096)
        except OSError:
            over = True
        if over:  # and comes again
            standing.unregister(key.fileobj)
            key.fileobj.close()
            stand()
"""
"""A process of another user with many connections to the port that send nothing."""


async def test_a_crowd_of_another_user_that_stands_there_keeps_no_agent_out(
    made: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    monkeypatch.setattr(connection, "max_unproven", lambda files: 64)
    arguments = (sys.executable, "-c", CROWD, str(made.port), "420")
    crowd = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert crowd.stdout is not None
        assert await crowd.stdout.readline() == b"there\n"
        await made.until(lambda: made.control.refused.total() > 420)
        for number in range(5):
            await made.joined(host=f"h{number}")
        assert len(made.control.hosts) == 5
    finally:
        crowd.kill()
        await crowd.wait()


async def test_those_who_say_much_and_not_who_they_are_cost_no_more_than_so_much(made: Scene) -> None:
    _, most = await made.connect()
    most.write(bytes(32) + MAX_FIRST.to_bytes(4, "big") + bytes(MAX_FIRST - 1))  # an incomplete frame
    await made.joined()
    assert not made.control.refused
    for size in (MAX_FIRST + 1, 1 << 31):
        reader, writer = await made.connect()
        writer.write(bytes(32) + size.to_bytes(4, "big"))  # before any of it has come
        assert await Agent(reader, writer).is_hung_up_on()
    assert made.control.refused == {f"a frame is too large: more than {MAX_FIRST} bytes": 2}


@pytest.mark.parametrize(("files", "most"), [(128, 64), (1024, 256), (1 << 20, connection.MAX_UNPROVEN)])
def test_strangers_may_have_one_in_four_of_the_files(files: int, most: int) -> None:
    assert connection.max_unproven(files) == most


async def test_an_agent_that_does_not_read_is_hung_up_on_and_never_waited_for(made: Scene) -> None:
    agent = await made.joined()
    order = {"do": "tell", "text": "x" * (1 << 20)}
    sent = 0
    while made.control.send("h1", order):
        sent += 1
        assert sent < 100
        await asyncio.sleep(0)
    assert sent > connection.MAX_UNSENT >> 20
    await made.until(lambda: len(made.events) == 2)
    assert made.events[1] == AgentLost("h1", "the agent does not read its orders")
    assert await agent.is_hung_up_on()


async def test_orders_larger_than_the_network_takes_at_once_arrive_whole_and_in_order(made: Scene) -> None:
    agent = await made.joined()
    orders = [{"do": "tell", "number": number, "text": "x" * (3 << 20)} for number in range(2)]
    assert all(made.control.send("h1", order) for order in orders)
    assert await agent.hear(2) == orders
    with pytest.raises(WireError):
        made.control.send("h1", {"text": "x" * (8 << 20)})
    assert made.control.send("h1", {"do": "finish"})
    assert await agent.hear(1) == [{"do": "finish"}]


async def test_last_orders_arrive_although_the_agent_goes_on_talking(made: Scene) -> None:
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


async def test_stopping_waits_only_so_long_for_an_agent_that_does_not_hang_up(
    made: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvd_elastic_ext.launcher.agents.server.LINGER_S", 0.05)
    await made.joined()
    await made.connect()
    await made.control.stop()
    await made.control.stop()
    assert made.control.hosts == ()
    assert len(made.events) == 1
    with pytest.raises(ConnectionRefusedError):
        await made.connect()


async def test_a_connection_reset_before_it_was_greeted_costs_nothing(made: Scene) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", made.port)) as brief:
            brief.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await made.joined()
    assert len(made.events) == 1
    await made.until(lambda: len(made.control.connections) == 1)


async def test_a_defect_while_something_is_taken_in_leads_to_a_hang_up_and_to_no_silent_loss(
    made: Scene,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def heed(made: Scene, event: ControlEvent) -> None:
        if isinstance(event, News) and event.news["event"] == "output":
            raise ZeroDivisionError("ours")
        made.events.append(event)

    made.heed = lambda event: heed(made, event)
    for _ in range(2):
        agent = await made.joined()
        agent.say({"event": "output", "text": "x"})
        agent.say({"event": "exited", "slot": 0})  # in the same read: it is not handled, so the agent must repeat it
        assert await agent.is_hung_up_on()
    await made.until(lambda: len(made.events) == 4)
    lost = AgentLost("h1", "a defect of hvd-elastic")
    assert made.events == [AgentJoined("h1", hello()), lost] * 2
    assert made.control.refused == {"a defect of hvd-elastic (ZeroDivisionError)": 2}
    (said,) = caplog.records  # once, with the traceback
    assert (
        said.getMessage()
        == "h1 is disconnected, to reconnect and report its state: a defect of hvd-elastic: ZeroDivisionError: ours"
    )
    assert said.exc_info


async def test_an_order_does_not_wait_for_the_acknowledgement_of_the_one_before(made: Scene) -> None:
    """With Nagle's algorithm it waits 40 ms wherever the agent has nothing to say."""
    await made.joined()
    (session,) = made.control.connections
    assert session._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
