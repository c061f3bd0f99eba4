"""Runs a function as an elastic job on this machine, and returns its results by rank."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import JobFailed, UsageError
from hvd_elastic_ext.jobs.local.script import GIVEN, script_of, sent

ENDS_S: Final = 60.0
"""How long a job that is interrupted may take to end."""
_RESULT: Final = re.compile(r"result-(\d+)\.json")


def run(
    train: Callable[..., Any],
    *,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    min_np: int | None = None,
    hosts: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> list[Any]:
    """As :func:`hvd_elastic_ext.run`, which says what all of this means."""
    if np is None and hosts is None:
        raise UsageError("run: give np, the number of processes, or hosts")
    text = script_of(train)
    given = sent({"args": list(args), "kwargs": dict(kwargs or {})}, "run: args")
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-run-") as name:
        folder = Path(name)
        script = folder / f"{train.__name__}.py"
        script.write_text(text)
        (folder / GIVEN).write_text(given)
        words = [*_sizes(np, min_np), *([] if hosts is None else ["--hosts-file", os.path.abspath(hosts)])]  # noqa: PTH100
        words += ["--state-dir", str(folder / "state"), "--quiet", *options]
        _launched([sys.executable, "-m", "hvd_elastic_ext.cli", "run", *words, sys.executable, str(script), name])
        return _results(folder)


def _sizes(np: int | None, min_np: int | None) -> list[str]:
    return [
        *([] if np is None else ["-np", str(np)]),
        *([] if min_np is None else ["--min-np", str(min_np)]),
    ]


def _launched(command: Sequence[str]) -> None:
    """Run the launcher, and pass its output on: that of a notebook's cell is no file descriptor."""
    # Modules that the caller can import, the function's too, are the job's.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109
    environ = {**os.environ, "PYTHONPATH": paths}
    last = ""
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                last = line.strip() or last
        except BaseException:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDS_S)
            process.kill()
            raise
    if process.returncode:
        raise JobFailed(f"run: the job ended with exit code {process.returncode}: {last}")


def _results(folder: Path) -> list[Any]:
    """What the ranks have left, in their order. Raises :class:`JobFailed` if there is nothing."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := _RESULT.fullmatch(path.name))}
    if not found:
        raise JobFailed("run: the job ended well, and no rank has left a result on this machine")
    return [json.loads(found[rank].read_text()) for rank in sorted(found)]
