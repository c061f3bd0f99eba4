"""Calls that take as long as they like hold up neither one another's users nor the end of the process."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from tests.support.processes import run_process


def fail() -> None:
    raise ValueError("what it says")


def test_what_a_call_returns_or_raises_is_told() -> None:
    async def act() -> None:
        aside = BackgroundCalls()
        assert await aside.call(lambda: 42) == 42
        with pytest.raises(ValueError, match="what it says"):
            await aside.call(fail)

    asyncio.run(act())


def test_at_most_so_many_run_at_a_time_and_each_has_its_turn() -> None:
    running: list[int] = []
    lock = threading.Lock()
    counts: list[int] = []

    def call(number: int) -> int:
        with lock:
            running.append(number)
            counts.append(len(running))
        time.sleep(0.002)  # long enough for others to come, if they may
        with lock:
            running.remove(number)
        return number

    async def act() -> None:
        aside = BackgroundCalls(limit=2)
        assert await asyncio.gather(*(aside.call(lambda n=n: call(n)) for n in range(12))) == list(range(12))

    asyncio.run(act())
    assert max(counts) <= 2


def test_a_turn_is_kept_until_the_call_ends_even_if_nobody_waits_for_it_any_more() -> None:
    ended = threading.Event()

    async def act() -> None:
        aside = BackgroundCalls(limit=1)
        stuck = asyncio.create_task(aside.call(ended.wait))
        await asyncio.sleep(0)
        stuck.cancel()
        next_one = asyncio.create_task(aside.call(lambda: "done"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not next_one.done()
        ended.set()
        assert await next_one == "done"

    asyncio.run(act())


def test_without_a_thread_it_is_an_error_of_this_call_and_the_next_one_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def act() -> None:
        aside = BackgroundCalls(limit=1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OSError, match="no thread can be started"):
                await aside.call(lambda: 1)
        assert await aside.call(lambda: 2) == 2

    asyncio.run(act())


DEAF_RESOLVER = """
import asyncio, socket, threading
from hvd_elastic_ext.launcher.agents.server import Control
from hvd_elastic_ext.launcher.job.addresses import Addresses

asked = threading.Event()

def look_up(*args):
    asked.set()
    threading.Event().wait()

socket.gethostbyname = look_up

async def main():
    control = Control("job", bytes(32), incarnation=1, on_event=print)
    reach = Addresses(control, given=["lo"], rsh=None, versions={})
    lookups = [asyncio.create_task(reach.address(f"host-{number}")) for number in range(100)]
    await asyncio.sleep(0)
    while not asked.is_set():
        await asyncio.sleep(0.01)
    print(await asyncio.wait_for(asyncio.to_thread(lambda: "others work"), 5), flush=True)
    await control.stop()

asyncio.run(main())
print("ended", flush=True)
"""


def test_a_resolver_that_never_answers_holds_up_nobody_else_and_not_the_end() -> None:
    with run_process([sys.executable, "-c", DEAF_RESOLVER]) as process:
        assert process.wait(timeout=20) == 0
        assert process.stdout.split("\n") == ["others work", "ended", ""]
