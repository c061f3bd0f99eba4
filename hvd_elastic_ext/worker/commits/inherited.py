"""Commit memory that outlives the process, because another process holds it.

Under ``hvd-elastic run`` the agent provides it. Under torchrun a keeper does, one for each torchrun agent on a machine;
the first worker starts it (:mod:`hvd_elastic_ext.worker.commits.torchrun_keeper`). Otherwise there is no such memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.call_results import RESULTS
from hvd_elastic_ext.core.errors import StateError, UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import COMMITS
from hvd_elastic_ext.io.homes import private_home
from hvd_elastic_ext.io.process_tree import stat_of
from hvd_elastic_ext.worker.commits import torchrun_keeper as keeper

RUN_ID: Final = "TORCHELASTIC_RUN_ID"

_DIGITS: Final = 10
_START_S: Final = 60.0
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Agent:
    """A torchrun agent."""

    pid: int
    started: int
    """Its start in clock ticks since boot: a later process with the same number has another one."""


def commit_descriptors(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return descriptors of the memory for this process's commits; None if no other process holds memory for it.

    A later process of the same slot gets the same memory. Under torchrun each call returns new descriptors, which
    the caller may close. Raises :class:`UsageError` for a variable that is not a list of numbers, and
    :class:`StateError` if the keeper cannot be reached.
    """
    given = environ.get(COMMITS)
    if given:
        return inherited(given)
    descriptors = _of_torchrun(environ)
    if descriptors is None:
        return None
    os.close(descriptors[-1])
    return descriptors[:-1]


def past_descriptor(environ: Mapping[str, str]) -> int | None:
    """Return a descriptor of the memory for the results of this slot's training calls; None if no other process holds
    it. Errors as in :func:`commit_descriptors`.
    """
    given = environ.get(RESULTS)
    if given:
        descriptor = int(given) if given.isdecimal() and len(given) < _DIGITS else -1
        return descriptor if is_memory(descriptor) else None
    if environ.get(COMMITS):
        return None
    found = _of_torchrun(environ)
    if found is None:
        return None
    for descriptor in found[:-1]:
        os.close(descriptor)
    return found[-1]


def _of_torchrun(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """New descriptors from torchrun's keeper: of the commits, and last of the results. None without torchrun."""
    run = environ.get(RUN_ID)
    agent = None if run is None else find_agent(run)
    if run is None or agent is None:
        return None
    directory = _private(places(run, agent, environ))
    rank = int(environ.get("LOCAL_RANK", "0"))
    try:
        return _from_keeper(directory, agent, rank)
    except (OSError, subprocess.SubprocessError) as error:
        raise StateError(
            f"commit memory: the keeper in {directory} cannot be used: {error}; "
            "remove that directory if it is not in use, or set XDG_RUNTIME_DIR to one of your own"
        ) from error


def is_memory(descriptor: int) -> bool:
    """Whether a descriptor is a memory file: the inherited one may have been closed, and its number used again."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")  # noqa: PTH115 (no file)
    except OSError:
        return False


def inherited(given: str) -> tuple[int, ...]:
    """Read the descriptors' numbers from the variable's value."""
    if re.fullmatch(r"\d+(,\d+)+", given) is None:
        raise UsageError(f"{COMMITS}={given!r} is not a list of two or more descriptors, such as 7,8; unset it")
    return tuple(map(int, given.split(",")))


def find_agent(run: str) -> Agent | None:
    """Return the torchrun agent: the nearest ancestor without torchrun's variables, which has set them for its workers.

    None if that ancestor is not a Python process of this user, as a torchrun agent always is. Then the agent has
    ended, and another process has adopted its workers.
    """
    pid = os.getppid()
    while pid > 0 and _belongs_to(pid, run):
        pid = _parent(pid)
    started = keeper.start_time(pid) if pid > 0 else None
    if started is None or "python" not in _program(pid):
        return None
    return Agent(pid, started)


def places(run: str, agent: Agent, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the possible directories of an agent's keeper. A restarted agent has other ones.

    The second one, in the home directory, is used if another user has made the first one.
    """
    first = environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    job = hashlib.sha256(run.encode()).hexdigest()[:12]
    name = f"{_name_prefix()}-{agent.pid}-{agent.started}-{job}"
    return tuple(Path(base) / name for base in (first, private_home(environ)) if base is not None)


def _private(candidates: Sequence[Path]) -> Path:
    """Return the directory in which this user's workers meet. Raises :class:`StateError` if this user can own none of
    them alone.

    An existing directory goes first, the last before the others: a directory of another user, which had blocked an
    earlier place, may be gone by now.
    """
    for directory in reversed(candidates[1:]):
        if directory.exists():
            make_private(directory)
            return directory
    problem: StateError | None = None
    for directory in candidates:
        try:
            make_private(directory)
        except StateError as error:
            problem = problem or error
        else:
            return directory
    assert problem is not None
    raise problem


def _name_prefix() -> str:
    """Return the prefix of names of this user's keepers, with the namespace in which process numbers are unique."""
    namespace = re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))  # noqa: PTH115 (no file)
    return f"{keeper.PREFIX}-{os.geteuid()}-{namespace}"


def _from_keeper(directory: Path, agent: Agent, rank: int) -> tuple[int, ...]:
    with _locked(directory / keeper.LOCK):
        try:
            connection = _connect(directory)
        except (FileNotFoundError, ConnectionRefusedError):
            _start_keeper(directory, agent)
            connection = _connect(directory)
    with connection:
        return _ask(connection, rank)


def make_private(directory: Path) -> None:
    """Make a directory that only this user may enter. Raises :class:`StateError` if something else exists there."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise StateError(
            f"commit memory: {directory} is not a private directory of this user; "
            "remove it, or set XDG_RUNTIME_DIR to a directory of your own"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock under which keepers are started, so that two workers at the same time share one keeper."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _connect(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_S)
        with keeper.address(directory) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _ask(connection: socket.socket, rank: int) -> tuple[int, ...]:
    if keeper.peer_user(connection) != os.geteuid():
        raise PermissionError("it belongs to another user")
    connection.sendall(to_text({"local_rank": rank}).encode())
    answer, descriptors, _, _ = socket.recv_fds(connection, 256, keeper.SIDES + 1)
    if answer != b"ok" or len(descriptors) != keeper.SIDES + 1:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ConnectionError(answer.decode(errors="replace") or "it did not answer")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return tuple(descriptors)


def _start_keeper(directory: Path, agent: Agent) -> None:
    """Start a keeper; returns when it listens."""
    _sweep(directory.parent)
    command = [sys.executable, "-I", keeper.__file__, os.fspath(directory), str(agent.pid), str(agent.started)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_START_S, check=False
    )
    if done.returncode:
        raise ConnectionError(f"it did not start: {done.stderr.strip()}")


def _sweep(base: Path) -> None:
    """Remove the directories that killed keepers of this user have left, if their agents have ended."""
    for directory in base.glob(f"{_name_prefix()}-*"):
        pid, _, rest = directory.name.removeprefix(f"{_name_prefix()}-").partition("-")
        if pid.isdigit() and str(keeper.start_time(int(pid))) != rest.partition("-")[0]:
            keeper.clear(directory)


def _belongs_to(pid: int, run: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{RUN_ID}={run}".encode() in variables


def _parent(pid: int) -> int:
    try:
        return int(stat_of(pid)[1])
    except OSError:
        return 0


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""
