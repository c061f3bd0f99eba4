"""Child processes that cannot outlive the test that started them."""

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
"""Environment variable by which everything below one ``run_process`` is found again, even after setsid."""

_counter = itertools.count(1)


class RunningProcess:
    """A child in a session of its own. Its output is drained all the time and kept as text."""

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
        """Both, line by line as they came."""
        return self._text("out", "err")

    @property
    def returncode(self) -> int | None:
        return self.popen.poll()

    def wait(self, timeout: float = 30.0) -> int:
        """Return the exit code, all output being drained. ``AssertionError`` with the output after ``timeout`` s."""
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.popen.args} still runs after {timeout:g} s\n{self.output}") from None
        for thread in self._drains:
            thread.join(2.0)  # a grandchild may hold the pipe open; what came until now is enough then
        return code

    def wait_for(self, pattern: str, *, timeout: float = 30.0) -> re.Match[str]:
        """Wait until the output matches the regular expression ``pattern``; fails at once when the process ends."""

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
        """SIGTERM to the process itself."""
        self.popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process itself; its children are left to their fate."""
        self.popen.kill()

    def tree(self) -> list[int]:
        """Everything alive that it started: descendants, and whoever carries its mark."""
        found = set(marks.marked(RUN_MARK, self._mark.__eq__))
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(child.pid for child in psutil.Process(self.pid).children(recursive=True))
        return [pid for pid in sorted(found - {self.pid}) if marks.start_time(pid) is not None]

    def end(self) -> None:
        """SIGKILL the process and everything it started, then collect the output."""
        below = self.tree()
        marks.kill([self.pid, *below])
        self.popen.wait()
        marks.kill(self.tree())  # what was being started meanwhile
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
    """Start ``argv`` in a session of its own; on leaving, end it and everything it started.

    ``env`` is added to this process's environment; a value of None removes the
    name. Output is text, drained while it runs: see :class:`RunningProcess`.
    ``pass_fds`` are the descriptors that the child inherits. ``orderly``: ask it to end first, as horovodrun
    leaves semaphores when it is killed.
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
