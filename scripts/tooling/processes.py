"""Starts commands with visible progress, and leaves none of them behind."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO

from .errors import ToolingError
from .progress import Ticker

GUARD = Path(__file__).with_name("guard.py")
TAIL_LINES = 40

# pip's settings for package sources. All others (user, target, constraint, ...) could install outside the tree, or
# install something else.
PIP_VARIABLES = re.compile(
    r"PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|CERT|CLIENT_CERT|TRUSTED_HOST|PROXY|TIMEOUT|DEFAULT_TIMEOUT|RETRIES|"
    r"CACHE_DIR|NO_CACHE_DIR|CONFIG_FILE|KEYRING_PROVIDER|USE_FEATURE|USE_DEPRECATED)"
)
WITHHELD = re.compile(
    r"PYTHON.*|VIRTUAL_ENV|CONDA_PREFIX|PIP_.*|MAKEFLAGS|MAKELEVEL|MFLAGS|MAKEOVERRIDES|__PYVENV_LAUNCHER__"
)


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that lead Python or pip to the user's own installation."""
    kept = {
        name: value
        for name, value in environment.items()
        if PIP_VARIABLES.fullmatch(name) or not WITHHELD.fullmatch(name)
    }
    return {
        **kept,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_USER": "0",
        "PIP_ROOT_USER_ACTION": "ignore",
    }


def say(text: str) -> None:
    """Print a message to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def raise_on_sigterm() -> None:
    """Make SIGTERM, and SIGHUP of a closed terminal, work like Ctrl-C: children end, and nothing half done is kept."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)


def output_of(command: list[str], *, environment: Mapping[str, str]) -> str:
    """Run a short command and return its stdout. Raises ToolingError with its stderr if it fails."""
    process = _start(command, environment=environment, cwd=None, stderr=subprocess.PIPE)
    with _ended(process):
        out, err = process.communicate()
    if process.returncode != 0:
        raise ToolingError(f"`{shlex.join(command[:6])} …` failed (exit status {process.returncode}):\n{err.strip()}")
    return str(out)


def run_logged(
    command: list[str],
    *,
    label: str,
    log: Path,
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> None:
    """Run a long command: output goes to `log`, progress to the terminal.

    Raises ToolingError with the last lines of the log and the log's path when the command fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    process = _start(command, environment=environment, cwd=cwd, stderr=subprocess.STDOUT)
    ticker = Ticker(label=label, stream=sys.stderr, monotonic=time.monotonic)
    with _ended(process), log.open("w", encoding="utf-8") as file, ticker:
        assert process.stdout is not None
        _follow(process.stdout, file=file, tail=tail, ticker=ticker)
        status = process.wait()
    if status != 0:
        raise ToolingError(
            f"{label} failed (exit status {status}). Its last lines:\n{''.join(tail)}The complete log: {log}"
        )


def _follow(stream: IO[str], *, file: IO[str], tail: deque[str], ticker: Ticker) -> None:
    for line in stream:
        file.write(line)
        tail.append(line)
        ticker.saw(line)


def _start(
    command: list[str], *, environment: Mapping[str, str], cwd: Path | None, stderr: int
) -> "subprocess.Popen[str]":
    guarded = [sys.executable, "-I", str(GUARD), str(os.getpid()), *command]
    return subprocess.Popen(
        guarded,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        errors="replace",
        start_new_session=True,
    )


class _ended:
    """Kills the guard's process group when the block ends, in any way, or when the guard dies."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._watch = threading.Thread(target=self._end_with_guard, name="guard-watch", daemon=True)

    def __enter__(self) -> None:
        self._watch.start()

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._kill_group()
        self._watch.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _end_with_guard(self) -> None:
        # A killed guard leaves the group behind, which would keep its output open, and us reading.
        self._process.wait()
        self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
