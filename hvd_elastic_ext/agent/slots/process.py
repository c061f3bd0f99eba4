"""One training process with its supervisor, and the fork that becomes the supervisor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NoReturn

from hvd_elastic_ext.agent.descriptors import CHUNK, Lines
from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.agent.orders import Start
from hvd_elastic_ext.agent.slots.output import Outputs
from hvd_elastic_ext.agent.slots.supervisor import SupervisorPipes, report_defect, supervise
from hvd_elastic_ext.agent.slots.worker_link import Inheritance
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import process_tree


class Run:
    """One training process with its supervisor."""

    def __init__(self, supervisor: int, down: int, up: int, outputs: Outputs) -> None:
        self.supervisor = supervisor
        self.warm = False
        """Whether it was forked from the template."""
        self.down = down
        self.up = up
        self.outputs = outputs
        self.killed_before = 0
        """The count of :class:`OutOfMemory` at its start."""
        self.news = Lines(CHUNK)
        self.pid: int | None = None
        self.code: int | None = None
        self.finished = False
        self.silent = False
        self.reaped = False

    def close(self) -> None:
        """Pass on the remaining output, and close everything."""
        self.outputs.close()
        os.close(self.down)
        os.close(self.up)

    def stop(self, grace_s: float) -> None:
        """Order the supervisor to end everything. If it is gone, its end is reported anyway."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.down, to_text({"stop": grace_s}).encode() + b"\n")


Fork = Callable[[Start, Inheritance, SupervisorPipes], int | None]
"""A function that lets another process fork a supervisor. It returns its process number, or None if that fails."""


def begin(
    loop: EventLoop, order: Start, inheritance: Inheritance, *, warm: Fork, written: Callable[[str, str], None]
) -> Run:
    """Start the supervisor of a new process, if possible from the template; ``written`` gets its output.

    Raises ``OSError``.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

        def pipe(*, inward: bool) -> tuple[int, int]:
            reader, writer = os.pipe()
            (ours if inward else theirs).callback(os.close, reader)
            (theirs if inward else ours).callback(os.close, writer)
            return reader, writer

        down_reader, down = pipe(inward=False)
        up, up_writer = pipe(inward=True)
        names = ("stdout", "stderr") if order.output == "frames" else ()
        streams = {name: pipe(inward=True) for name in names}
        ends = [streams[name][1] if streams else 2 for name in ("stdout", "stderr")]
        pipes = SupervisorPipes(down_reader, up_writer, *ends)
        warm_supervisor = warm(order, inheritance, pipes)
        supervisor = process_tree.fork() if warm_supervisor is None else warm_supervisor
        if supervisor == 0:
            _be_supervisor(order, inheritance, pipes)
        for reader, _ in streams.values():
            os.set_blocking(reader, False)
        outputs = Outputs(loop, {reader: name for name, (reader, _) in streams.items()}, tell=written)
        ours.pop_all()
        run = Run(supervisor, down, up, outputs)
        run.warm = warm_supervisor is not None
        return run


def _be_supervisor(order: Start, inheritance: Inheritance, pipes: SupervisorPipes) -> NoReturn:
    try:
        supervise(order, inheritance, pipes)
    except BaseException as error:  # noqa: BLE001 - the main loop of a process
        report_defect(pipes.up, error)
    finally:
        os._exit(0)  # the supervisor is a fork of the agent and must never run the agent's code
