"""A task beside the work: whatever it raises, the work goes on, and it starts again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hvd_elastic_ext.io.threads.beside import PAUSES_S, Beside


async def test_a_task_that_raises_is_reported_once_and_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    runs = 0
    done = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 15:
            raise RecursionError("too deep") if runs % 2 else KeyError("x")
        done.set()

    beside = Beside(pause)
    beside.start(work, lacks="signals are not read")
    await asyncio.wait_for(done.wait(), 30)
    await beside.close()
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert max(pauses) == PAUSES_S[1]
    assert [bool(record.exc_info) for record in caplog.records] == [True, True, *[False] * 12]
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.messages[0] == (
        "a defect of hvd-elastic (RecursionError: too deep): the job goes on; for 1 s signals are not read"
    )


async def test_the_end_of_the_work_ends_the_tasks_beside_it() -> None:
    started, beside, before = asyncio.Event(), Beside(), asyncio.all_tasks()

    async def work() -> None:
        started.set()
        await asyncio.sleep(3600)

    beside.start(work, lacks="nothing")
    await started.wait()
    await asyncio.wait_for(beside.close(), 30)
    assert asyncio.all_tasks() == before


async def test_a_task_for_one_host_that_raises_costs_that_host_alone(caplog: pytest.LogCaptureFixture) -> None:
    beside, told = Beside(), list[str]()

    async def raises() -> None:
        raise ZeroDivisionError("x")

    async def waits() -> None:
        await asyncio.sleep(3600)

    await beside.once(raises, failed=told.append)
    given_up = beside.once(waits, failed=told.append)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert told == ["a defect of hvd-elastic: ZeroDivisionError: x"]
    assert caplog.messages == ["a defect of hvd-elastic: ZeroDivisionError: x; the job goes on"]
    assert caplog.records[0].exc_info
