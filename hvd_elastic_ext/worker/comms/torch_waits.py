"""Whether this process waits for other ranks within ``torch.distributed``.

Nobody can hook each such wait: what DDP begins in C++, it waits for in C++. So each heartbeat looks at the main thread.
It waits if its innermost Python code is that of a collective, or of ``backward()``, and if nothing has been computed
for a while. The launcher asks for this when a rank does not answer: one that still waits for a lost peer is stuck.

That happens. Gloo tells everyone who waits on a connection that it has ended, except a sender that has sent a part of
its data (``pair.cc``, ``signalException``): that one waits until its time limit, half an hour.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from hvd_elastic_ext.worker.comms.main_thread import MainThreadWaits, seconds_of

COLLECTIVES: Final = ("/torch/distributed/", "/torch/nn/parallel/distributed.py", "/torch/futures/")
"""Where the Python code is that waits for other ranks. The main thread waits alone there."""
STORAGE: Final = "/torch/distributed/checkpoint/"
"""A part of that which waits for disks."""
CALLED: Final = "/torch/_ops.py"
"""Code that calls an operator of torch. The place is that of its caller."""
BACKWARD: Final = "/torch/autograd/"
"""What may wait for other ranks at its end, and for this process's other threads before: those compute then. A GPU is
not seen to compute, so with one this does not count."""


class TorchWaits(MainThreadWaits):
    """Looks at the main thread of this process, at each heartbeat. ``computed_s``: seconds that a thread has computed,
    or the whole process for None.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        computed_s: Callable[[int | None], float] | None = None,
    ) -> None:
        count = computed_s or seconds_computed
        super().__init__(_where, lambda where, main: count(None if where == BACKWARD else main), now)


def _where(frame: FrameType | None) -> str | None:
    """In which of the places a thread is; None if in another one."""
    while frame is not None and frame.f_code.co_filename.endswith(CALLED):
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    if any(part in file for part in COLLECTIVES):
        return None if STORAGE in file else COLLECTIVES[0]
    if BACKWARD not in file:
        return None
    cuda = sys.modules.get("torch.cuda")
    return None if cuda is not None and cuda.is_initialized() else BACKWARD


def seconds_computed(thread: int | None) -> float:
    """Seconds that a thread of this process has computed, by its native id; for None all of them."""
    return seconds_of(Path("/proc/self/stat" if thread is None else f"/proc/self/task/{thread}/stat"))
