# ruff: noqa: PTH101, PTH102, PTH106, PTH115, PTH120, PTH208
# (pathlib takes long to load)
"""One agent for each job and host: a second one finds the first by a socket, and hands over its order.

So a new launcher adopts the agents of the last one, with their processes and commits. It starts agents as always.

The socket is in a folder that only its user can enter, below ``XDG_RUNTIME_DIR`` or /tmp. If another user has made that
folder first, it is in the home directory. Jobs with the same name have separate folders, with a mark of their keys. A
lock on the folder decides which agent is the first. Only a process of the same user is accepted, and it must prove that
it has the job's key, which is not sent::

    agent      {"nonce": "…"}
    second     {"order": "{…}", "proof": "HMAC-SHA256(key, b'order' + nonce + order)"}
    agent      {"answer": "adopted"}, or {"answer": "ending"} and its end, or {"refused": "why"}
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import hmac
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from hvd_elastic_ext.agent.descriptors import EventLoop, Lines, read_available, warn
from hvd_elastic_ext.agent.notices.files import NOTICE
from hvd_elastic_ext.agent.orders import End, Join, OrderError, entry_of, read
from hvd_elastic_ext.agent.ports import Acceptor, Peer
from hvd_elastic_ext.core.commands import file_name, job_mark, socket_name
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.homes import is_private, private_home
from hvd_elastic_ext.io.peers import user_of

ANSWER_S: Final = 5.0
"""Seconds to wait for each answer of the other side."""
OLD_S: Final = 86400.0
"""Seconds after which files of killed agents are removed."""
TIMEOUT_S: Final = 30.0
"""Seconds that an agent may take to end, beyond its grace."""
REFUSED: Final = 125
"""Exit code of a second agent that the agent of the host does not obey, or does not answer."""
RELEASE_S: Final = 1.0
"""Seconds to wait for the lock on the folder at the end."""
MAX_LINE: Final = 4 << 20
"""Bytes of the longest line: an order of up to 1 MiB, with the environment, and with quotes escaped a second time."""

_ORDER: Final = b"order"


class Claim(NamedTuple):
    """The result of :func:`claim`. Without ``listener`` and ``existing``, it is unknown whether there is an agent."""

    folder: int = -1
    """The open folder of the job."""
    name: str = ""
    """Name of the socket in it."""
    listener: socket.socket | None = None
    """The socket, if this process is the agent of the host."""
    existing: socket.socket | None = None
    """The connection to the agent, if that is another process."""
    notice: int = -1
    """The open :data:`NOTICE` file beside the socket, by which other programs find its name."""
    problem: str = ""
    """Why the socket is not in its usual place, or empty."""

    @property
    def notice_file(self) -> str | None:
        """The file in which other programs announce the end of the host; None if there is no such file."""
        return None if self.listener is None else f"/proc/self/fd/{self.folder}/{self.name}{NOTICE}"

    def release(self) -> None:
        """Remove the socket, and its folders if they are empty, under the lock."""
        if self.listener is None:
            return
        with contextlib.suppress(OSError), contextlib.closing(self.listener):
            # Other agents of this folder may start or end now: each of them holds the lock only for a moment.
            if _locked(self.folder, time.monotonic() + RELEASE_S):
                self._clear()
        os.close(self.folder)
        os.close(self.notice)

    def _clear(self) -> None:
        os.unlink(self.name, dir_fd=self.folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name + NOTICE, dir_fd=self.folder)
        path = os.readlink(f"/proc/self/fd/{self.folder}")
        os.rmdir(path)
        os.rmdir(os.path.dirname(path))


def claim(job: str, host: str, key: bytes, *, become: bool = True) -> Claim:
    """Connect to the agent of ``host`` in ``job``. If there is none, become it, unless ``become`` is False.

    Jobs with the same name but different keys are different jobs.

    Raises ``OSError`` if no folder can be trusted, or the lock is not free in time.
    """
    name, job = socket_name(host), f"{file_name(job)}.{job_mark(key)}"
    bases = _bases()
    for base in bases[1:]:  # an agent with another environment uses another base
        existing = _existing_in(base, job, name)
        if existing is not None:
            return Claim(existing=existing)
    base, folder, problem = _first(bases, job, create=become)
    if folder is None:
        return Claim()
    try:
        existing = _connect_to(folder, name)
        if existing is not None or not become:
            os.close(folder)
            return Claim(existing=existing)
        listener = _listen(folder, name)
        # Do not empty it: a notice to a killed agent is valid for this one, too.
        notice = os.open(name + NOTICE, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        fcntl.flock(folder, fcntl.LOCK_UN)
        remove_stale(base, now=time.time())
        return Claim(folder, name, listener, notice=notice, problem=problem)
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(folder)
        raise


def remove_stale(base: str, *, now: float) -> None:
    """Remove the files of killed agents, if their job's folder has not changed for :data:`OLD_S`.

    ``now``: Unix seconds. Leaves other users' files, and files that cannot be removed.
    """
    with contextlib.suppress(OSError):
        jobs = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for job in os.listdir(jobs):
                _remove_stale_job(jobs, job, now=now)
        finally:
            os.close(jobs)


def _remove_stale_job(jobs: int, job: str, *, now: float) -> None:
    with contextlib.suppress(OSError):
        folder = os.open(job, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=jobs)
        try:
            if now - os.fstat(folder).st_mtime > OLD_S and _locked(folder, 0.0):
                _remove_dead(folder)
                os.rmdir(job, dir_fd=jobs)
        finally:
            os.close(folder)


def _remove_dead(folder: int) -> None:
    ours = (name for name in os.listdir(folder) if name.endswith((".sock", f".sock{NOTICE}")))
    for name in sorted(ours):  # a socket sorts before its notice
        if name.endswith(".sock") and (existing := _connect_to(folder, name)) is not None:
            existing.close()
            continue
        owner = name.removesuffix(NOTICE)
        if owner == name or not os.access(owner, os.F_OK, dir_fd=folder):
            os.unlink(name, dir_fd=folder)


def _bases() -> list[str]:
    own = f"hvd-elastic-{os.geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = is_private(runtime) and os.access(runtime, os.W_OK)  # after `su` it may be another user's
    home = private_home(os.environ)
    bases = [f"{runtime}/{own}"] * usable + [f"/tmp/{own}"]  # noqa: S108 - checked below
    return bases if home is None else [*bases, f"{home}/{own}"]


def _first(bases: list[str], job: str, *, create: bool) -> tuple[str, int | None, str]:
    """Return the first place that can be trusted, the job's folder there, and what is wrong with earlier places."""
    problems: list[PermissionError] = []
    for base in bases:
        try:
            return base, _folder(base, job, create=create), "; ".join(map(str, problems))
        except PermissionError as error:
            problems.append(error)
    raise problems[0]


def _existing_in(base: str, job: str, name: str) -> socket.socket | None:
    with contextlib.suppress(OSError):
        folder = _folder(base, job, create=False)
        if folder is not None:
            try:
                return _connect_to(folder, name)
            finally:
                os.close(folder)
    return None


def _folder(base: str, job: str, *, create: bool) -> int | None:
    """Return the job's folder, open and locked; None if there is none. Raises ``OSError`` if others may use it, too."""
    deadline = time.monotonic() + ANSWER_S
    path = f"{base}/{job}"
    while time.monotonic() < deadline:
        try:
            for one in (base, path):
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(one, 0o700)
                _check(one)
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            if create:  # the last agent has just removed the folder
                continue
            return None
        if _locked(folder, deadline) and os.fstat(folder).st_nlink > 0:
            return folder
        os.close(folder)
    raise OSError(f"{path}: another agent holds the lock")


def _check(path: str) -> None:
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise PermissionError(f"{path} is not a folder that only its user can enter; remove it")


def _locked(folder: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


def _connect_to(folder: int, name: str) -> socket.socket | None:
    """Connect to the socket; None if no process listens. The folder's descriptor keeps the path short enough."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_S)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{name}")
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    if user_of(connection) != os.geteuid():
        connection.close()
        raise PermissionError("another user listens on the job's socket")
    return connection


def _listen(folder: int, name: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)  # left by an agent that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{name}")
        os.chmod(f"/proc/self/fd/{folder}/{name}", 0o600)
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


# --- the second agent ------------------------------------------------------------------------------------


def proof_of(key: bytes, nonce: str, order: str) -> str:
    """Return the proof for ``order``. Without the job's key it cannot be computed for this ``nonce``."""
    return hmac.new(key, _ORDER + nonce.encode() + order.encode(), "sha256").hexdigest()


def claim_or_hand_over(order: Join | End, key: bytes) -> Claim:
    """Become the agent of the host in the job. If another process is that agent, hand ``order`` to it, and exit."""
    grace_s = order.grace_s if isinstance(order, End) else TIMEOUT_S
    while True:
        try:
            claimed = claim(order.job, order.host, key, become=isinstance(order, Join))
        except OSError as error:
            if isinstance(order, End):
                _leave(f"cannot look for the agent of this host: {error}")
            warn(f"no other launcher will be able to adopt this agent: {error}")
            return Claim()
        if claimed.existing is None:
            if claimed.problem:
                warn(f"{claimed.problem}; another folder is used")
            return claimed
        try:
            answer = hand_over(claimed.existing, _bare(order), key=key, wait_s=grace_s + TIMEOUT_S)
        except Refused as refusal:
            _leave(f"the agent of this host refuses: {refusal}")
        except ConnectionError:
            continue
        except OSError as error:
            _leave(f"the agent of this host does not answer: {error}")
        if answer == "adopted":
            with contextlib.suppress(OSError):
                os.write(1, b"adopted\n")
            sys.exit(0)


def _leave(problem: str) -> NoReturn:
    warn(problem)
    sys.exit(REFUSED)


def _bare(order: Join | End) -> dict[str, Any]:
    """The order as in its line, without the key."""
    entry = order._asdict()
    del entry["key"]
    if isinstance(order, End):
        return {"do": "end", **entry}
    if not entry["argv"]:
        del entry["argv"]
    entry["code"] = binascii.b2a_base64(order.code, newline=False).decode() or None
    return {"do": "join", "launcher": list(entry.pop("address")), **entry}


class Refused(OSError):
    """The agent of the host refuses an order; the message says why."""


def hand_over(existing: socket.socket, order: dict[str, Any], *, key: bytes, wait_s: float) -> str:
    """Give ``order`` to the agent of the host and return its answer; "ending" only after the agent has ended.

    Raises :class:`Refused`, ``ConnectionError`` if it has ended before it could
    answer, and another ``OSError`` if it does not answer.
    """
    with existing, existing.makefile("rb") as lines:
        nonce = str(_read_answer(lines.readline(MAX_LINE)).get("nonce"))
        text = to_text(order)
        existing.sendall(to_text({"order": text, "proof": proof_of(key, nonce, text)}).encode() + b"\n")
        answer = _read_answer(lines.readline(MAX_LINE))
        if "answer" not in answer:
            raise Refused(str(answer.get("refused")))
        if answer["answer"] == "ending":
            existing.settimeout(wait_s)
            with contextlib.suppress(ConnectionError):
                while lines.read(1):
                    pass
        return str(answer["answer"])


def _read_answer(line: bytes) -> dict[str, Any]:
    if not line:
        raise ConnectionResetError("the agent of this host has just ended")
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    return message if isinstance(message, dict) else {}


# --- the agent of the host -------------------------------------------------------------------------------


MAX_PEERS: Final = 16


class _Newcomer(Peer):
    def __init__(self, number: int, connection: socket.socket, deadline: float) -> None:
        super().__init__(number, connection, deadline)
        self.lines = Lines(MAX_LINE)
        self.nonce = os.urandom(32).hex()
        self.send(nonce=self.nonce)

    def send(self, **words: str) -> None:
        # The kernel accepts so short a line at once, unless the peer has disconnected.
        try:
            self.connection.send(to_text(words).encode() + b"\n")
        except OSError:
            return


class HandoverServer(Acceptor[_Newcomer]):
    """Checks the proof of each order and gives it to ``apply``, which returns the answer or raises ``OrderError``.

    A connection without an order within ``ANSWER_S`` is closed.
    """

    def __init__(
        self, loop: EventLoop, listener: socket.socket, key: bytes, *, apply: Callable[[Join | End], str]
    ) -> None:
        self._key = key
        self._apply = apply
        super().__init__(loop, listener, most=MAX_PEERS + 1)

    def _admits(self, connection: socket.socket) -> bool:
        return user_of(connection) == os.geteuid() and len(self._peers) < MAX_PEERS

    def _met(self, number: int, connection: socket.socket) -> _Newcomer:
        return _Newcomer(number, connection, self._loop.now() + ANSWER_S)

    def _read(self, peer: _Newcomer) -> None:
        data = read_available(peer.connection)
        if data is None:
            return
        if not data:
            self._hang_up(peer)
            return
        for line in peer.lines.feed(data):
            self._answer(peer, line)
            break  # one order for each connection

    def _answer(self, peer: _Newcomer, line: bytes | None) -> None:
        try:
            answer = self._apply(self._proven(peer, line))
        except OrderError as error:
            peer.send(refused=str(error))
            self._hang_up(peer)
            return
        peer.send(answer=answer)
        if answer == "ending":
            peer.deadline = None  # the end of this agent closes the connection
        else:
            self._hang_up(peer)

    def _proven(self, peer: _Newcomer, line: bytes | None) -> Join | End:
        entry = entry_of(line)
        text, proof = str(entry.get("order")), str(entry.get("proof"))
        if not hmac.compare_digest(proof_of(self._key, peer.nonce, text).encode(), proof.encode()):
            raise OrderError("the agent of this host has another key for this job")
        order = read({**entry_of(text.encode()), "key": "proven"})
        if not isinstance(order, Join | End):
            raise OrderError("this order is not for the agent of this host")
        return order
