"""Calls that may block for long, such as the resolver's: neither the loop nor the end of the process waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final, TypeVar

T = TypeVar("T")

MAX_CALLS: Final = 16
"""Most calls at a time; further ones wait."""


def done_within(act: Callable[[], object], within_s: float) -> bool:
    """Run ``act`` in a thread that does not keep this process from its end. Return whether it ended in time; then an
    error of it is raised.
    """
    answer: Future[object] = Future()

    def work() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            answer.set_exception(error)

    threading.Thread(target=work, name="hvd-elastic call", daemon=True).start()
    try:
        answer.result(within_s)
    except FutureTimeout:
        if answer.done():
            raise
        return False
    return True


class BackgroundCalls:
    """Runs each call in a thread of its own, which ends with the process if it has not ended before.

    The loop's own threads cannot be used: they are few, and Python waits for them at its end.
    """

    def __init__(self, *, limit: int = MAX_CALLS) -> None:
        self._turns = asyncio.Semaphore(limit)

    async def call(self, act: Callable[[], T], *, within_s: float | None = None) -> T:
        """Run ``act`` and return or raise its result. Raises ``OSError`` if no thread can be started.

        ``within_s``: raise ``TimeoutError`` after this many seconds; the thread goes on, and counts until it ends.
        """
        if within_s is None:
            return await self._call(act)
        try:
            return await asyncio.wait_for(self._call(act), within_s)
        except asyncio.TimeoutError:  # in Python 3.10 another class
            raise TimeoutError(errno.ETIMEDOUT, "no answer in time") from None

    async def _call(self, act: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        await self._turns.acquire()
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(act())
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._turns.release)

        answer.set_running_or_notify_cancel()  # from now on no caller can cancel it
        try:
            threading.Thread(target=work, name="hvd-elastic call", daemon=True).start()
        except RuntimeError:  # the limit on threads is reached
            self._turns.release()
            raise OSError(errno.EAGAIN, f"no thread can be started: {os.strerror(errno.EAGAIN)}") from None
        return await asyncio.wrap_future(answer)
