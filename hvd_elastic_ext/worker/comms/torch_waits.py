"""Whether this process waits for other ranks within ``torch.distributed``.

Nobody can hook such a wait: what DDP begins in C++, it waits for in C++. So each heartbeat looks at the threads. One
waits if its innermost Python code is that of a collective or of ``backward()``, and if it has not computed since the
heartbeat before. The launcher asks for this when a rank does not answer: one that still waits for a lost peer is stuck.

That happens. Gloo tells everyone who waits on a connection that it has ended, except a sender that has sent a part of
its data (``pair.cc``, ``signalException``): that one waits until its time limit, half an hour.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

COLLECTIVES: Final = ("/torch/distributed/", "/torch/nn/parallel/distributed.py", "/torch/autograd/")
"""Where the Python code is that waits for other ranks."""
LITTLE: Final = 2
"""Clock ticks (10 ms each) of computation between two heartbeats in a thread that waits: it may wake up and look."""


class TorchWaits:
    """Looks at the threads of this process. For one thread, at each heartbeat."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        """Of the last look, by native thread id: clock ticks of each thread that was within a collective."""

    def look(self) -> bool:
        """Whether a thread waits for other ranks since the last look."""
        frames = sys._current_frames()
        here = threading.current_thread()
        within = [
            thread.native_id
            for thread in threading.enumerate()
            if thread is not here and thread.native_id is not None and _is_collective(frames.get(thread.ident or 0))
        ]
        ticks = {native: spent for native in within if (spent := _ticks(native)) is not None}
        waits = any(
            native in self._before and spent - self._before[native] <= LITTLE for native, spent in ticks.items()
        )
        self._before = ticks
        return waits


def _is_collective(frame: FrameType | None) -> bool:
    return frame is not None and any(part in frame.f_code.co_filename for part in COLLECTIVES)


def _ticks(native: int) -> int | None:
    """Clock ticks that a thread of this process has computed; None if it has ended."""
    try:
        fields = Path(f"/proc/self/task/{native}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])
