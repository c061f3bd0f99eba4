"""Runs a function as an elastic job on this machine, and returns its results by rank.

The function becomes a script (``script``), its arguments and results text (``results``): nothing is pickled. The job is
a real ``hvd-elastic run`` in a process of its own, with a helper (``launcher``) that ends it if this process ends, such
as a notebook's kernel. Arguments of ``horovod.run`` are taken by their names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.checkpoint.values.alone import from_text
from hvd_elastic_ext.core.errors import JobFailed, UsageError
from hvd_elastic_ext.jobs.local.results import FAILED, GIVEN, text_of
from hvd_elastic_ext.jobs.local.script import script_of

ENDS_S: Final = 180.0
"""Seconds for an interrupted job to end: its launcher waits for a checkpoint, processes and hosts, each with a
limit."""
HELP: Final = "`hvd-elastic run --help`"
"""Beginning of the line that follows an error about an option."""
_RESULT: Final = re.compile(r"result-(\d+)\.json")
_HOSTS: Final = re.compile(r"[^\s,:/]+:\d+(,[^\s,:/]+:\d+)*")
"""A list of hosts in Horovod's form."""
_OPTIONS: Final[Mapping[str, str]] = {
    "slots": "--slots-per-host",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-filename",
    "network_interface": "--network-interfaces",
    "network_interfaces": "--network-interfaces",
    "start_timeout": "--elastic-timeout",
}
"""More arguments of ``horovod.run``, with the options of ``run`` that mean the same."""
_SIZES: Final[Mapping[str, str]] = {"num_proc": "np", "min_num_proc": "min_np", "max_num_proc": "max_np"}
"""Horovod's names of sizes, with the older names, which our options have."""
_WITHOUT: Final[Mapping[str, str]] = {
    "use_mpi": "only Gloo can form a new world; leave it out",
    "mpi_args": "only Gloo can form a new world; leave it out",
    "executable": "the job runs with this Python; start another one to use another",
}
_NOTHING_TO_DO: Final = ("use_gloo", "disable_cache", "verbose")
"""Arguments that are true of every local job, or have no effect on it."""


def run(
    train: Callable[..., Any],
    *,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    hosts: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    **horovods: Any,
) -> list[Any]:
    """Implementation of :func:`hvd_elastic_ext.run`, where the arguments are described."""
    if isinstance(options, str):
        raise UsageError(f"run: options={options!r}: give a list of words")
    sizes, more = _as_horovod_has_them({"np": np, **horovods})
    if hosts is not None:
        if {"--hostfile", "--host-discovery-script"} & {*more}:
            raise UsageError("run: give one of hosts, hostfile and host_discovery_script")
        more += _hosts(hosts)
    elif sizes[:1] != ["-np"] and not {"--hostfile", "--host-discovery-script"} & {*more}:
        raise UsageError("run: give np, the number of processes, or hosts")
    text = script_of(train)
    given = text_of({"args": list(args), "kwargs": dict(kwargs or {})}, "run: given")
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-run-") as name:
        folder = Path(name)
        script = folder / f"{train.__name__}-function.py"  # this is not a module's name, so the script hides no module
        script.write_text(text)
        (folder / GIVEN).write_text(given)
        words = [*sizes, *more, "--state-dir", str(folder / "state"), "--quiet", *options]
        start = [sys.executable, "-m", "hvd_elastic_ext.jobs.local.launcher", str(os.getpid()), name]
        _launched([*start, "run", *words, sys.executable, str(script), name], folder)
        return _results(folder)


def _as_horovod_has_them(given: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Convert arguments of ``horovod.run`` to sizes and options. Raises :class:`UsageError` for one without an
    equivalent. Pure."""
    sizes: dict[str, Any] = {}
    words: list[str] = []
    for name, value in given.items():
        if name not in (*_SIZES, *_SIZES.values(), *_OPTIONS, *_WITHOUT, *_NOTHING_TO_DO):
            raise UsageError(f"run: there is no argument {name}; further options of hvd-elastic run go into options=[]")
        if value is None or name in _NOTHING_TO_DO:
            continue
        if name in _WITHOUT and value:
            raise UsageError(f"run: {name}: {_WITHOUT[name]}")
        if name in _OPTIONS:
            several = isinstance(value, list | tuple)
            if several and name != "cooldown_range":
                words += [_OPTIONS[name], ",".join(map(str, value))]
            else:
                words += [_OPTIONS[name], *map(str, value if several else [value])]
        elif name not in _WITHOUT:
            size = _SIZES.get(name, name)
            if sizes.get(size, value) != value:
                raise UsageError(f"run: {name}={value} and {size}={sizes[size]}: give one of them")
            sizes[size] = value
    named = {"np": "-np", "min_np": "--min-np", "max_np": "--max-np"}
    return [word for size, option in named.items() if size in sizes for word in (option, str(sizes[size]))], words


def _hosts(hosts: str | os.PathLike[str]) -> list[str]:
    """Return options for a hosts file, which may change, or for a list in the form of ``horovod.run``. Raises
    :class:`UsageError` for anything else."""
    if isinstance(hosts, str) and _HOSTS.fullmatch(hosts) and not os.path.lexists(hosts):
        return ["-H", hosts]
    if isinstance(hosts, str) and not os.path.lexists(hosts):
        raise UsageError(f"run: hosts={hosts!r} is not a file, nor a list of hosts, such as localhost:2")
    return ["--hosts-file", os.path.abspath(hosts)]  # noqa: PTH100


def _launched(command: Sequence[str], folder: Path) -> None:
    """Run the launcher, and copy its output: the output of a notebook's cell has no file descriptor."""
    # The job can import all modules that the caller can import, also that of the function.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109
    environ = {**os.environ, "PYTHONPATH": paths}
    last = ""
    with subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C in a terminal must reach it only once: a second one prevents the checkpoint
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                last = last if line.startswith(HELP) else line.strip() or last
        except BaseException:
            _end(process)
            raise
    if process.returncode == UsageError.exit_code:
        raise UsageError(f"run: {last.removeprefix('hvd-elastic run: ')}")
    if process.returncode:
        error = _error(folder)
        more = f"; train ended with {error}" if error not in last else ""
        raise JobFailed(f"run: the job ended with exit code {process.returncode}: {last}{more}")


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt the launcher, which makes a last checkpoint, and again at each further Ctrl-C; pass its output on."""
    assert process.stdout is not None
    killer = threading.Timer(ENDS_S, process.kill)
    killer.daemon = True
    killer.start()
    try:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt):
                for line in process.stdout:
                    with contextlib.suppress(OSError, ValueError):  # the output may have no reader any more
                        sys.stdout.write(line)
                process.wait()
    except BaseException:
        process.kill()
        raise
    finally:
        killer.cancel()


def _error(folder: Path) -> str:
    """Return the last error of the function; "" if there was none."""
    found = sorted(folder.glob(FAILED.format(pid="*")), key=lambda path: path.stat().st_mtime_ns)
    return found[-1].read_text() if found else ""


def _results(folder: Path) -> list[Any]:
    """Return the stored results in order of ranks. Raises :class:`JobFailed` if one is missing or could not be sent."""
    paths = {int(match[1]): path for path in folder.iterdir() if (match := _RESULT.fullmatch(path.name))}
    if not paths:
        raise JobFailed("run: the job succeeded, but no rank has left a result on this machine")
    newest = max(paths.values(), key=lambda path: path.stat().st_mtime_ns)
    size = json.loads(newest.read_text())["size"]  # of the last world: ranks of a larger one before it may have ended
    results = {rank: json.loads(paths[rank].read_text()) for rank in sorted(paths) if rank < size}
    for rank, each in results.items():
        if "problem" in each:
            raise JobFailed(f"run: what rank {rank} returned cannot be sent back: {each['problem']}")
    if missing := sorted({*range(size)} - {*results}):
        ranks = ", ".join(map(str, missing))
        raise JobFailed(
            f"run: of {size} ranks these have left no result on this machine: {ranks}; "
            "all hosts must be names of this machine"
        )
    return [from_text(each["result"], source=f"rank {rank}") for rank, each in results.items()]
