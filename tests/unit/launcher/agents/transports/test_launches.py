"""The ports on which agents find the launcher again, and starts that are not needed any more."""

from __future__ import annotations

import asyncio

from hvd_elastic_ext.io.code.files import NO_CODE, Code
from hvd_elastic_ext.launcher.agents.server import Control
from hvd_elastic_ext.launcher.agents.transports.launches import Launches
from hvd_elastic_ext.launcher.agents.transports.transports import Launch, LaunchResult, Local, Remark


async def test_a_launcher_listens_where_the_last_one_did_if_that_is_free() -> None:
    def control(ports: dict[str, int]) -> Control:
        return Control("job", bytes(32), incarnation=1, ports=ports, on_event=lambda event: None)

    first = control({})
    await first.start("127.0.0.1")
    first.listen("127.0.0.2")
    ports = first.ports
    taken = control(ports)
    await taken.start("127.0.0.1")  # while the first one has the port
    assert taken.ports["127.0.0.1"] not in ports.values()
    await first.stop()
    after = control(ports)
    await after.start("127.0.0.1")
    after.listen("127.0.0.2")
    assert after.ports == ports
    for each in (taken, after):
        await each.stop()


class Carrier:
    """A transport that notes its launches, and waits until the test lets it continue."""

    def __init__(self) -> None:
        self.turn = asyncio.Event()
        self.carried: list[str] = []

    async def start(self, host: str, line: bytes, *, remark: Remark, code: Code = NO_CODE) -> Launch:
        await self.turn.wait()
        self.carried.append(host)
        return await Local(python="/no/such/python").start(host, line, remark=remark)


async def test_who_has_come_by_itself_while_its_start_stood_in_line_is_not_started() -> None:
    carrier, launches = Carrier(), Launches(lambda host, text: None)
    tasks = {name: asyncio.create_task(launches.run(carrier, name, b"")) for name in "abc"}
    for name, task in tasks.items():
        launches.put(name, task)
    launches.agent_joined("c")  # before its route was known
    await asyncio.sleep(0)
    launches.agent_joined("a")
    carrier.turn.set()
    ended = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert carrier.carried == ["b"]
    assert isinstance(ended[0], asyncio.CancelledError)
    assert isinstance(ended[1], LaunchResult)
    assert ended[2] is None
    launches.close()


async def test_a_start_that_another_one_follows_is_given_up() -> None:
    carrier, launches = Carrier(), Launches(lambda host, text: None)
    first = asyncio.create_task(launches.run(carrier, "a", b"join"))
    launches.put("a", first)
    await asyncio.sleep(0)
    second = asyncio.create_task(launches.run(carrier, "a", b"end"))
    launches.put("a", second)
    carrier.turn.set()
    assert isinstance(await second, LaunchResult)
    assert first.cancelled()
    assert carrier.carried == ["a"]
    launches.close()


class Running:
    """An agent that ends when the test says so."""

    reached = True

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.closed = False

    async def start(self, host: str, line: bytes, *, remark: Remark, code: Code = NO_CODE) -> Launch:
        return self

    async def wait(self) -> LaunchResult:
        await self.end.wait()
        return LaunchResult(0, True, "")

    def kill(self) -> None:
        self.end.set()

    def close(self) -> None:
        self.closed = True


async def test_the_end_waits_for_agents_that_are_about_to_end_and_no_longer_than_it_is_told() -> None:
    soon, never = Running(), Running()
    launches = Launches(lambda host, text: None)
    tasks = [asyncio.create_task(launches.run(soon, "soon", b""))]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(launches.ended(within_s=60.0))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    soon.end.set()
    await asyncio.wait_for(waiting, 60.0)
    tasks.append(asyncio.create_task(launches.run(never, "never", b"")))
    await asyncio.sleep(0)
    await asyncio.wait_for(launches.ended(within_s=0.0), 60.0)
    launches.close()
    assert never.closed
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
