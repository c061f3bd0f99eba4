"""Calls that may block for long, such as the resolver's: neither the loop nor the end of the process waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

MAX_CALLS: Final = 16
"""Most calls at a time; further ones wait."""


class BackgroundCalls:
    """Runs each call in a thread of its own, which ends with the process if it has not ended before.

    The loop's own threads cannot be used: they are few, and Python waits for them at its end.
    """

    def __init__(self, *, limit: int = MAX_CALLS) -> None:
        self._turns = asyncio.Semaphore(limit)

    async def call(self, act: Callable[[], T]) -> T:
        """Run ``act`` and return or raise its result. Raises ``OSError`` if no thread can be started."""
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
