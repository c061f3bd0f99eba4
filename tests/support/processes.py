"""Child processes that always end with the test that started them."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

import psutil

from tests.support import marks
from tests.support.waiting import wait_until

RUN_MARK = "HVD_TEST_RUN"
"""Environment variable by which all processes below one ``run_process`` are found, even after setsid."""

_counter = itertools.count(1)


class RunningProcess:
    """A child in a session of its own. Its output is read all the time and kept as text."""

    def __init__(self, popen: subprocess.Popen[str], *, mark: str) -> None:
        self.popen = popen
        self._mark = mark
        self._lock = threading.Lock()
        self._chunks: list[tuple[str, str]] = []
        self._drains = [self._drain("out", popen.stdout), self._drain("err", popen.stderr)]

    def _drain(self, name: str, pipe: IO[str] | None) -> threading.Thread:
        assert pipe is not None

        def read() -> None:
            with pipe:
                for line in pipe:
                    with self._lock:
                        self._chunks.append((name, line))

        thread = threading.Thread(target=read, name=f"hvd-test-drain-{name}", daemon=True)
        thread.start()
        return thread

    def _text(self, *names: str) -> str:
        with self._lock:
            return "".join(text for name, text in self._chunks if name in names)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def stdout(self) -> str:
        """Standard output so far."""
        return self._text("out")

    @property
    def stderr(self) -> str:
        """Standard error so far."""
        return self._text("err")

    @property
    def output(self) -> str:
        """Both, line by line in the order of arrival."""
        return self._text("out", "err")

    @property
    def returncode(self) -> int | None:
        return self.popen.poll()

    def wait(self, timeout: float = 30.0) -> int:
        """Return the exit code, after all output is read. Raises ``AssertionError`` with the output after ``timeout``
        seconds."""
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.popen.args} still runs after {timeout:g} s\n{self.output}") from None
        for thread in self._drains:
            thread.join(2.0)  # a grandchild may hold the pipe open; then the output so far is enough
        return code

    def wait_for(self, pattern: str, *, timeout: float = 30.0) -> re.Match[str]:
        """Wait until the output matches the regular expression ``pattern``. Raises ``AssertionError`` if the process
        ends first."""

        def look() -> re.Match[str] | None:
            ended = self.popen.poll() is not None and not any(thread.is_alive() for thread in self._drains)
            match = re.search(pattern, self.output, re.MULTILINE)
            if match is None and ended:
                raise AssertionError(
                    f"{self.popen.args} ended ({self.popen.returncode}) without {pattern!r}\n{self.output}"
                )
            return match

        match = wait_until(look, what=f"{pattern!r} in the output", timeout=timeout, show=lambda: self.output)
        assert match is not None
        return match

    def send_signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM to the process itself."""
        self.popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process itself, and not to its children."""
        self.popen.kill()

    def tree(self) -> list[int]:
        """Return all living processes that it started: descendants, and processes with its mark."""
        found = set(marks.marked(RUN_MARK, self._mark.__eq__))
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(child.pid for child in psutil.Process(self.pid).children(recursive=True))
        return [pid for pid in sorted(found - {self.pid}) if marks.start_time(pid) is not None]

    def end(self) -> None:
        """Kill the process and all that it started with SIGKILL, then read the rest of the output."""
        below = self.tree()
        marks.kill([self.pid, *below])
        self.popen.wait()
        marks.kill(self.tree())  # processes that were just being started
        for thread in self._drains:
            thread.join(5.0)


@contextlib.contextmanager
def run_process(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdin: int | IO[str] | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    orderly: bool = False,
) -> Iterator[RunningProcess]:
    """Start ``argv`` in a session of its own. At the end of the context, end it and all that it started.

    ``env`` is added to this process's environment; a value of None removes the name. Output is text and is read all the
    time: see :class:`RunningProcess`. ``pass_fds``: the descriptors that the child inherits. ``orderly``: send SIGTERM
    first, because horovodrun leaves semaphores when it is killed.
    """
    mark = f"{marks.owner()}-{next(_counter)}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {}), RUN_MARK: mark}
    popen = subprocess.Popen(
        [os.fspath(part) for part in argv],
        env={key: value for key, value in environment.items() if value is not None},
        cwd=cwd,
        stdin=stdin,
        pass_fds=pass_fds,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    process = RunningProcess(popen, mark=mark)
    try:
        yield process
    finally:
        if orderly and process.returncode is None:
            process.terminate()
            with contextlib.suppress(AssertionError):
                process.wait(30)
        process.end()
        if popen.stdin is not None:
            popen.stdin.close()
