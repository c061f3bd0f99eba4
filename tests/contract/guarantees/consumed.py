"""Samples of an epoch through roll-backs and new worlds, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

COUNT, BATCH = 22, 2


def consumed(state: Any, loop: Callable[[], Iterable[list[int]]]) -> list[int]:
    """What this rank consumed of one epoch, as far as it was committed. ``loop`` begins with what is left of it, and
    has recorded each batch that it yields."""
    state.sync()
    committed: list[int] = []
    for lost in (1, 2, 0):  # batches after the last commit: then a peer is lost, at last nobody
        waiting: list[int] = []
        for number, batch in enumerate(loop(), 1):
            waiting += batch
            state.batch += 1
            if not lost or number == 1:
                state.save()
                committed += waiting
                waiting.clear()
            elif number > lost:
                break
        if lost:
            state.restore()
            state.on_reset()
            state.sync()
    return committed
