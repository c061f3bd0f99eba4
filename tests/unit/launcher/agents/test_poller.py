"""Ready descriptors are served in batches and soon, also after errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from hvd_elastic_ext.launcher.agents.poller import DescriptorPoller


class Pipes:
    """``count`` pipes of a poller. ``read``: what was read from each; ``broken``: those whose act raises."""

    def __init__(self, count: int) -> None:
        self.poller = DescriptorPoller()
        self.read: dict[int, bytes] = {}
        self.broken: set[int] = set()
        self.ends = [os.pipe() for _ in range(count)]
        for number, (reader, _) in enumerate(self.ends):
            self.read[number] = b""
            self.poller.add(reader, self._act(number))

    def _act(self, number: int) -> Callable[[int], None]:
        def act(events: int) -> None:
            self.read[number] += os.read(self.ends[number][0], 100)
            if number in self.broken:
                raise RuntimeError("an act went wrong")

        return act

    def write(self, number: int, data: bytes) -> None:
        os.write(self.ends[number][1], data)

    async def until_read(self, expected: dict[int, bytes]) -> None:
        while {number: data for number, data in self.read.items() if data} != expected:
            await asyncio.sleep(0.001)

    def close(self) -> None:
        for reader, _ in self.ends:
            self.poller.remove(reader)
        self.poller.close()
        self.poller.close()
        for descriptor in (descriptor for pair in self.ends for descriptor in pair):
            os.close(descriptor)


@contextlib.contextmanager
def pipes(count: int) -> Iterator[Pipes]:
    made = Pipes(count)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("count", [1, 30, 200])
def test_whatever_is_ready_is_served_again_and_again(count: int, *, steady: bool) -> None:
    async def act() -> None:
        with pipes(count) as made:
            made.poller.steady, made.poller.agents = steady, count
            for turn in range(1, 4):
                for number in range(count):
                    made.write(number, b"x")
                await made.until_read(dict.fromkeys(range(count), b"x" * turn))
            await asyncio.sleep(0.06)  # longer than any pause: the poller listens again
            made.write(0, b"y")
            await made.until_read({number: b"xxxy" if number == 0 else b"xxx" for number in range(count)})

    asyncio.run(asyncio.wait_for(act(), 10))


async def served_at_once(made: Pipes) -> bool:
    """Whether each of three messages is served within some turns of the loop, without a pause."""
    for _ in range(3):
        made.read[0] = b""
        made.write(0, b"x")
        for _ in range(10):
            await asyncio.sleep(0)
        if not made.read[0]:
            return False
    return True


@pytest.mark.parametrize(("agents", "at_once"), [(0, True), (2, True), (200, False)])
def test_only_agents_make_the_poller_pause_however_many_others_are_connected(agents: int, *, at_once: bool) -> None:
    async def act() -> None:
        with pipes(200) as made:
            made.poller.agents = agents
            assert await served_at_once(made) == at_once

    asyncio.run(asyncio.wait_for(act(), 10))


@pytest.mark.parametrize("count", [2, 30])
def test_an_act_that_raises_is_reported_and_the_others_are_still_served(count: int) -> None:
    async def act() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        with pipes(count) as made:
            made.broken = {0}
            for turn in range(1, 4):
                made.write(0, b"x")
                made.write(1, b"y")
                await made.until_read({0: b"x" * turn, 1: b"y" * turn})
            assert len(reported) == 3

    asyncio.run(asyncio.wait_for(act(), 10))
