"""An interpreter that has done the imports of a training script, waits, and forks for each new process.

The agent starts it with the command of a training process. The hook calls :func:`serve` before the script runs: it
imports the modules that the last process had imported, checks that forks would share nothing of them, and waits. A
fork returns from :func:`serve` with the environment, streams and descriptors of a training process. Python then runs
the script as in any start.

A fork's parent is not the template: another fork between them starts it, and becomes its supervisor by ``exec``.

Standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import COMMITS, LINK, TEMPLATE
from hvd_elastic_ext.io import process_tree
from hvd_elastic_ext.worker.process.imports import LEFT_OUT, changes

MAX_DESCRIPTORS: Final = 64
NAME: Final = "hvd-template"
"""The name that ``top`` shows. The command line is that of the training processes."""
HARMLESS: Final = ("/dev/null", "/dev/urandom", "/dev/random")
ORPHANED: Final = 125
FIRST_VICTIM: Final = "900"
"""``oom_score_adj``: if memory is short, the kernel kills the template before any training process."""
COMM: Final = "/proc/self/comm"
OOM_SCORE: Final = "/proc/self/oom_score_adj"


class _Template(NamedTuple):
    """A template's connection to its agent, and the facts of its process before it became a template."""

    agent: socket.socket
    pid: int
    comm: str
    oom_score: str
    env: dict[str, str | None]
    """The variables that its imports change in the environment."""


def serve() -> None:
    """Import, wait, fork. Returns only in a training process; the template itself ends here, whatever happens."""
    trains = False
    try:
        trains = _serve()
    finally:
        if not trains:
            os._exit(ORPHANED)


def _serve() -> bool:
    number, listed = map(int, os.environ.pop(TEMPLATE).split(","))
    with open(listed, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        request = json.load(file)
    agent = socket.socket(fileno=number)
    agent.set_inheritable(False)
    usual, before = (_exchange(COMM, NAME), _exchange(OOM_SCORE, FIRST_VICTIM)), dict(os.environ)
    problem = prepare(request["modules"], request["own"], duty=request["duty"])
    env = changes(before, os.environ)
    problem = problem or _unfit(set_by_script(request["env"], env))
    if problem is not None:
        _send(agent, unfit=problem.reason, without=problem.without)
        return False
    template = _Template(agent, int(request["agent"]), *usual, env)
    _send(agent, ready=_memory())
    while (asked := _asked(agent)) is not None:
        order = _fork(template, asked)
        if order is not None:
            _become(order)
            return True
    return False


# --- imports


class Unfit(NamedTuple):
    """Why this process must not be forked."""

    reason: str
    without: str | None = None
    """A process without this package may be fit."""


class _LeftOut(BaseException):
    """A module needs one that each process must import itself. No ``Exception``, because scripts catch those."""

    def __str__(self) -> str:
        return f"it needs {self.args[0]}, which each process imports by itself"


class _Pacer:
    """A finder that finds nothing. It pauses between imports, and stops those that need a left-out module."""

    def __init__(self, left_out: Iterable[str], duty: float) -> None:
        self._left_out = frozenset(left_out)
        self._pause = 1 / duty - 1
        self._used = time.process_time()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._left_out:
            raise _LeftOut(name)
        time.sleep(min(1.0, (time.process_time() - self._used) * self._pause))
        self._used = time.process_time()


def prepare(modules: Iterable[str], own: Iterable[str], *, duty: float = 1.0) -> Unfit | None:
    """Import ``modules``, but nothing of ``own``. Return why this process must not be forked; None if it may. ``duty``:
    the share of one processor that imports may use.

    After a failed import, another process must try without that module: parts of it have run, and would run again.
    """
    already, paced = _held(), _Pacer({*own, *LEFT_OUT}, duty)
    sys.meta_path.insert(0, paced)
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 - an import may raise anything, SystemExit too
                kind = "" if isinstance(error, _LeftOut) else f"{type(error).__name__}: "
                reason = f"{name} cannot be imported ahead of the script ({kind}{error})"
                return Unfit(reason, name.partition(".")[0])
    finally:
        sys.meta_path.remove(paced)
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)  # before a fork, numpy's OpenBLAS ends its threads; it starts them again later
    gc.collect()
    gc.freeze()
    return _unfit(why_unfit(already))


def _unfit(reason: str | None) -> Unfit | None:
    return None if reason is None else Unfit(reason)


def set_by_script(there: Mapping[str, str | None], here: Mapping[str, str | None]) -> str | None:
    """Return a reason if the script itself has changed the environment: its imports may depend on that. Else None.
    ``there``: all changes in the process that ran it; ``here``: those by its imports alone. Pure."""
    names = sorted(name for name, value in there.items() if name not in here or here[name] != value)
    return f"the script sets {names[0]} before hvd.init()" if names else None


def why_unfit(before: Sequence[str]) -> str | None:
    """Return what forks of this process would share; None if nothing. ``before``: targets of its first descriptors."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - as above
    if threads > 1:
        return f"an import leaves threads running ({threads - 1})"
    new = [path for path in _held() if path not in before and path not in HARMLESS]
    if new:
        return f"an import leaves {new[0]} open"
    if (cuda := sys.modules.get("torch.cuda")) is not None and cuda.is_initialized():
        return "an import initialises CUDA"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - as above
        shared = [line.split() for line in maps if " rw-s " in line]
    if shared:
        return f"an import maps memory that forks share ({' '.join(shared[0][5:]) or 'anonymous'})"
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        return "an import leaves a process running"
    return None


def _held() -> list[str]:
    """Return the target of each open descriptor."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as above
        with contextlib.suppress(OSError):  # the listing's own, which is closed already
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - as above
    return [path for path in targets if not path.endswith("/fd")]


def _memory() -> dict[str, int]:
    """Resident bytes of this process: all, and those of no file. A fork shares them until it writes to them."""
    sizes = {}
    with contextlib.suppress(OSError), open("/proc/self/smaps_rollup", encoding="ascii") as file:  # noqa: PTH123
        for name, _, rest in (line.partition(":") for line in file):
            if name in ("Rss", "Anonymous"):
                sizes[name.lower()] = int(rest.split()[0]) << 10
    return sizes


# --- forks


class _Order(NamedTuple):
    """The settings of a training process."""

    env: dict[str, str | None]
    cwd: str | None
    core: tuple[int, int] | None
    descriptors: tuple[int, ...]
    """Standard output and error, link, commit memory, the memory for results of training calls if ``past``, and
    standard input if ``stdin``."""
    stdin: bool
    past: bool


def _send(to: socket.socket, **message: object) -> None:
    with contextlib.suppress(OSError):
        to.send(to_text(message).encode("ascii"))


def _asked(agent: socket.socket) -> socket.socket | None:
    """Wait for the next request. Return the connection for the answer; None if the agent is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(agent, 64, 1)
    except OSError:
        return None
    return socket.socket(fileno=descriptors[0]) if data and descriptors else None


def _fork(template: _Template, asked: socket.socket) -> _Order | None:
    """Fork twice, so that the agent becomes the parent of the second fork. Return None in the template."""
    between = os.fork()
    if between:
        asked.close()
        os.waitpid(between, 0)
        return None
    between = os.getpid()
    if os.fork():
        os._exit(0)
    template.agent.close()
    while os.getppid() == between:
        time.sleep(0.0005)
    if os.getppid() != template.pid:
        os._exit(ORPHANED)
    _exchange(COMM, template.comm)
    _exchange(OOM_SCORE, template.oom_score)
    return _started(template, asked)


def _started(template: _Template, asked: socket.socket) -> _Order:
    """Report the start, receive the order, and fork the training process; this process becomes its supervisor."""
    _send(asked, pid=os.getpid())
    data, descriptors, _, _ = socket.recv_fds(asked, 64, MAX_DESCRIPTORS)
    asked.close()
    if data != str(len(descriptors)).encode():  # not all have come: this process has no room for them
        os._exit(ORPHANED)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    text, down, up, *others = descriptors
    with open(text, encoding="utf-8") as file:  # noqa: PTH123 - as above
        order = json.load(file)
    process_tree.become_subreaper()
    supervisor = os.getpid()
    process = os.fork()
    if process:
        os.set_inheritable(down, True)
        os.set_inheritable(up, True)
        words = [*order["supervisor"], *map(str, (process, down, up, order["grace_s"]))]
        os.execve(words[0], words, order["supervisors_env"])  # noqa: S606 - no shell
    os.setsid()
    process_tree.die_with_parent()
    if os.getppid() != supervisor:
        os._exit(ORPHANED)
    os.close(down)
    os.close(up)
    env = {**order["env"], **template.env}
    return _Order(env, order["cwd"], order["core"], tuple(others), order["stdin"], order["past"])


def _become(order: _Order) -> None:
    """Give this fork the state of a fresh process."""
    out, err, link, *commits = order.descriptors
    streams = [(out, 1), (err, 2), *([(commits.pop(), 0)] if order.stdin else [])]
    past = [commits.pop()] if order.past else []
    for descriptor, number in streams:
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in (link, *commits, *past):
        os.set_inheritable(descriptor, True)
    os.environ.clear()
    os.environ.update({name: value for name, value in order.env.items() if value is not None})
    os.environ[LINK] = str(link)
    if commits:
        os.environ[COMMITS] = ",".join(map(str, commits))
    if past:
        os.environ[RESULTS] = str(past[0])
    if order.cwd is not None:
        os.chdir(order.cwd)
    if order.core is not None:
        resource.setrlimit(resource.RLIMIT_CORE, order.core)
    importlib.invalidate_caches()
    _seed_again()


def _seed_again() -> None:
    """Seed what a fresh interpreter seeds from the operating system. In a fork, ``random`` does so itself.

    torch needs nothing: it begins with the same seed in every process.
    """
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.current_process().authkey = os.urandom(32)


def _exchange(path: str, text: str) -> str:
    """Write to a file of ``/proc``, if that is allowed. Return the earlier content."""
    before = ""
    with contextlib.suppress(OSError):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - as above
            before = file.read().strip()
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - as above
            file.write(text)
    return before
