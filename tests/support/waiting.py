"""Waits for a condition, with a deadline and a message that names what did not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    *,
    what: str,
    timeout: float = 10.0,
    interval: float = 0.01,
    show: Callable[[], object] | None = None,
) -> T:
    """Return the first true value of ``condition``, which is called every ``interval`` seconds.

    Raises ``AssertionError`` after ``timeout`` seconds, with ``what``, the last value and the result of ``show``, if
    that is given (the output of a process, for example). Exceptions of ``condition`` are passed on.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            detail = "" if show is None else f"\n{show()}"
            raise AssertionError(f"waited {timeout:g} s in vain for {what}; last seen: {value!r}{detail}")
        time.sleep(interval)
