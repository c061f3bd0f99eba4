"""An exception at the k-th instruction of our code, for every k."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from hvd_elastic_ext.worker.commits import buffer as commits
from hvd_elastic_ext.worker.commits import copying, layout, memory

OURS = frozenset(module.__file__ for module in (commits, copying, layout, memory))


class Interrupted(BaseException):
    """Stands for Ctrl-C, a signal handler that raises, a lack of memory: whatever comes from outside."""


def interrupted(action: Callable[[], object], *, at: int) -> bool:
    """Run ``action`` and interrupt it before the ``at``-th bytecode of ours; False if it was done before that."""
    left = at

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in OURS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    before, grad = sys.gettrace(), torch.is_grad_enabled()
    sys.settrace(trace)
    try:
        action()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
        torch.set_grad_enabled(grad)  # torch's own no_grad can be interrupted, too: not what is tried here
    return False


def every_moment(attempt: Callable[[int], bool], *, stride: int = 1) -> Iterator[int]:
    """Call ``attempt`` with 0, 1, 2… until it says that it was not interrupted; yield each moment."""
    moment = 0
    while attempt(moment):
        yield moment
        moment += stride
    assert moment > 20, f"only {moment} instructions were seen: the tracing does not work"
