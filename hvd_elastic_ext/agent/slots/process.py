"""One training process of a slot: its start with a supervisor, its output, and whether the kernel killed it.

The agent forks the supervisor, which starts the training process and owns everything that this starts. So the agent
sees a process only through its pipes: reports of the supervisor, and output.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Final, NoReturn

from hvd_elastic_ext.agent.descriptors import CHUNK, EventLoop, Lines
from hvd_elastic_ext.agent.orders import Start
from hvd_elastic_ext.agent.slots.supervisor import Inheritance, SupervisorPipes, report_defect, supervise
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import process_tree


class Run:
    """One training process with its supervisor."""

    def __init__(self, supervisor: int, down: int, up: int, outputs: Outputs) -> None:
        self.supervisor = supervisor
        """Process number of the supervisor."""
        self.down = down
        """The pipe with orders to the supervisor."""
        self.up = up
        """The pipe with its reports."""
        self.outputs = outputs
        self.killed_before = 0
        """The count of :class:`OutOfMemory` at its start."""
        self.news = Lines(CHUNK)
        """The reports, as lines."""
        self.pid: int | None = None
        """Number of the training process, once it has started."""
        self.code: int | None = None
        """Its exit code, as in a shell, once it has ended."""
        self.finished = False
        """Whether the supervisor has reported that no process is left."""
        self.silent = False
        """Whether its reports are at their end."""
        self.reaped = False
        """Whether the supervisor has ended, and its number may be another's."""

    def close(self) -> None:
        """Pass on the remaining output, and close everything."""
        self.outputs.close()
        os.close(self.down)
        os.close(self.up)

    def stop(self, grace_s: float) -> None:
        """Order the supervisor to end everything. If it is gone, its end is reported anyway."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.down, to_text({"stop": grace_s}).encode() + b"\n")


def begin(loop: EventLoop, order: Start, inheritance: Inheritance, *, written: Callable[[str, str], None]) -> Run:
    """Start the supervisor of a new process; ``written`` gets its output. Raises ``OSError``."""
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
        supervisor = process_tree.fork()
        if supervisor == 0:
            _be_supervisor(order, inheritance, pipes)
        for reader, _ in streams.values():
            os.set_blocking(reader, False)
        outputs = Outputs(loop, {reader: name for name, (reader, _) in streams.items()}, tell=written)
        ours.pop_all()
        return Run(supervisor, down, up, outputs)


def _be_supervisor(order: Start, inheritance: Inheritance, pipes: SupervisorPipes) -> NoReturn:
    try:
        supervise(order, inheritance, pipes)
    except BaseException as error:  # noqa: BLE001 - the main loop of a process
        report_defect(pipes.up, error)
    finally:
        os._exit(0)  # the supervisor is a fork of the agent and must never run the agent's code


# --- output -----------------------------------------------------------------------------------------------


MAX_AT_END: Final = 1 << 20
"""Most bytes that are read from each pipe after the end of its process."""


class Outputs:
    """The output pipes of one process, by the names of their streams. ``tell`` gets their content, as text."""

    def __init__(self, loop: EventLoop, streams: dict[int, str], *, tell: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._streams = streams
        self._tell = tell

    def listen(self) -> None:
        """From now on pass on output as it comes, except while the loop holds output back."""
        for descriptor in self._streams:
            self._loop.watch(descriptor, functools.partial(self._copy, descriptor), output=True)

    def drain(self) -> None:
        """Pass on the rest in the pipes, up to a limit: a process that still runs may hold them open."""
        for descriptor in list(self._streams):
            read = 0
            while read < MAX_AT_END and (size := self._copy(descriptor)):
                read += size

    def close(self) -> None:
        """Pass on the rest, and nothing after that."""
        self.drain()
        for descriptor in list(self._streams):
            self._end(descriptor)

    def _copy(self, descriptor: int) -> int:
        """Pass on a piece; return its size in bytes."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return 0
        if data:
            self._tell(self._streams[descriptor], data.decode("utf-8", "surrogateescape"))
        else:
            self._end(descriptor)
        return len(data)

    def _end(self, descriptor: int) -> None:
        self._loop.unwatch(descriptor)
        os.close(descriptor)
        del self._streams[descriptor]


# --- killed for lack of memory ----------------------------------------------------------------------------


class OutOfMemory:
    """Whether the kernel killed a process for lack of memory, by a counter of the cgroup or of the machine.

    The counter is read at each call. One object serves all processes of an agent.
    """

    def __init__(self, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self._files = [*_of_cgroup(f"{proc}/self/cgroup", cgroups), f"{proc}/vmstat"]
        self._explained = 0
        """Value of the counter up to which kills are attributed to ended processes."""

    def explains(self, before: int) -> bool:
        """Whether the kernel killed one process for memory. ``before``: :meth:`count` at its start. Each count explains
        one end."""
        first = max(before, self._explained)
        if self.count() <= first:
            return False
        self._explained = first + 1
        return True

    def count(self) -> int:
        """Number of processes killed so far; 0 if unknown."""
        for path in self._files:
            for words in _lines(path):
                if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
                    return int(words[1])
        return 0


def _of_cgroup(own: str, mounts: str) -> list[str]:
    """Return the possible files of the counter, for both versions of cgroups, also those of a container's root."""
    files = []
    for (line,) in _lines(own, separator=None):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files += [f"{mounts}{path.rstrip('/')}/memory.events", f"{mounts}/memory.events"]
        elif "memory" in controllers.split(","):
            files += [f"{mounts}/memory{path.rstrip('/')}/memory.oom_control", f"{mounts}/memory/memory.oom_control"]
    return files


def _lines(path: str, *, separator: str | None = " ") -> list[list[str]]:
    try:
        with open(path) as file:  # noqa: PTH123 - pathlib takes long to load
            lines = file.read().splitlines()
    except OSError:
        return []
    return [[line] if separator is None else line.split(separator) for line in lines]
