"""The ports on which agents find the launcher again, and starts that are not needed any more."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import warnings
from pathlib import Path

import pytest

from hvd_elastic_ext.io.code.files import NO_CODE, Code
from hvd_elastic_ext.launcher.agents.server import Control
from hvd_elastic_ext.launcher.agents.transports.child_process import Child
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
    await launches.close()


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
    await launches.close()


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

    @property
    def over(self) -> bool:
        return self.end.is_set()

    async def leave(self) -> bool:
        return not self.over


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
    await launches.close()
    assert never.closed
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Stubborn:
    """A transport whose command goes on until it is killed."""

    def __init__(self, folder: Path, *, carrier: bool) -> None:
        self._program, self._file, self._carrier = folder / "program", folder / "pid", carrier
        self._program.write_text(
            f"#!/bin/sh\necho $$ >{self._file}.new\nmv {self._file}.new {self._file}\nexec sleep 1000\n"
        )
        self._program.chmod(0o755)

    async def start(self, host: str, line: bytes, *, remark: Remark, code: Code = NO_CODE) -> Launch:
        launch = Launch(functools.partial(Child, [str(self._program)], line), remark=remark, carrier=self._carrier)
        while not self._file.exists():
            await asyncio.sleep(0.01)
        return launch

    @property
    def pid(self) -> int:
        return int(self._file.read_text())


@pytest.mark.parametrize("carrier", [False, True], ids=["an agent of this machine", "an ssh"])
@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("pidfd", [True, False])
def test_at_the_launchers_end_each_command_is_waited_for_or_is_on_its_own(
    *, carrier: bool, given_up: bool, pidfd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library warns of a child that is neither."""
    transport = Stubborn(tmp_path, carrier=carrier)
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)

    async def act() -> list[str]:
        launches = Launches(lambda host, text: None)
        task = asyncio.create_task(launches.run(transport, "h1", b"x\n"))
        launches.put("h1", task)
        while not transport._file.exists():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        if given_up:
            launches.drop("h1")
        task.cancel()
        return await launches.close()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        run_on = asyncio.run(act())
        gc.collect()
    assert [str(each.message) for each in seen] == []
    assert run_on == ([] if carrier else ["h1"])
    if carrier:
        with pytest.raises(ProcessLookupError):  # no zombie either
            os.kill(transport.pid, 0)
    else:
        os.kill(transport.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(transport.pid, 0)


async def test_the_end_of_an_agent_that_is_on_its_own_is_still_seen(tmp_path: Path) -> None:
    """The launcher's process may go on with another session: no zombie stays."""
    transport = Stubborn(tmp_path, carrier=False)
    launch = await transport.start("h1", b"x\n", remark=lambda text: None)
    assert await launch.leave()
    os.kill(transport.pid, signal.SIGKILL)
    assert (await asyncio.wait_for(launch.wait(), 20)).code == 128 + signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(transport.pid, 0)
