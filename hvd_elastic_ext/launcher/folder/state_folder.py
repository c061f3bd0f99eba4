"""The job's folder: its lock, and the state for a restarted launcher.

    lock          the holder of the folder: pid and host, under flock
    incarnation   number of the newest launcher's life
    state.json    what the next launcher needs (:mod:`state_json`); state.json.bak is the one before. One that cannot be
                  used is kept beside it with the ending .unread
    key           of the job, so that a restarted launcher can take its agents back
    known_hosts   of ssh, where the user's configuration says nothing of hosts' keys
    program.json  what a job with --replay runs (:class:`RecordedProgram`)
    control.sock  see :mod:`hvd_elastic_ext.launcher.job.admin_socket`

On a full or read-only disk the next launcher knows less, which is logged once; a running launcher continues.
Only the incarnation must be written: with one that was used before, agents would not know which launcher to obey.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import FOLDERS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import ownership
from hvd_elastic_ext.io.replaced_file import replace
from hvd_elastic_ext.launcher.agents.transports.ssh import KNOWN_HOSTS
from hvd_elastic_ext.launcher.folder import state_json
from hvd_elastic_ext.launcher.folder.state_json import Saved

LOG = logging.getLogger(__name__)
MAX_BYTES: Final = 64 << 20
"""Larger than any state; a larger file is a mistake."""
KEY_BYTES: Final = 32
PRIVATE: Final = 0o600
LOCK_WAIT_S: Final = 1.0
"""How long a held lock is waited for."""
LOCK, INCARNATION, STATE, KEY, SOCKET = "lock", "incarnation", "state.json", "key", "control.sock"
PROGRAM: Final = "program.json"
BACKUP: Final = f"{STATE}.bak"
UNREAD: Final = ".unread"
"""Ending of a state that could not be used: the next save does not replace it."""


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """The program of a job that was started with ``--replay``."""

    command: tuple[str, ...]
    cwd: str
    """The folder in which it was started."""
    engine: str
    variables: Mapping[str, str]
    """Those before the command, but for secrets."""
    checkpoints: str | None
    """Where they go; None: none are made."""
    adopts: bool = False
    secrets: tuple[str, ...] = ()
    """The names of variables before the command whose values are not kept."""

    def encode(self) -> str:
        """Return it as text."""
        return to_text(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RecordedProgram:
        """Read what :meth:`encode` wrote. Raises ``ValueError``, ``TypeError`` or ``LookupError`` for others."""
        found = json.loads(text)
        checkpoints = found["checkpoints"]
        return cls(
            tuple(map(str, found["command"])),
            str(found["cwd"]),
            str(found["engine"]),
            {str(name): str(value) for name, value in found["variables"].items()},
            None if checkpoints is None else str(checkpoints),
            bool(found["adopts"]),
            tuple(map(str, found["secrets"])),
        )


class StateDir(contextlib.AbstractContextManager["StateDir"]):
    """A folder that this process locks, until :meth:`close` or its end.

    Raises :class:`UsageError` if another process holds it, it cannot be made, or other users may change it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failing: set[str] = set()
        self._backup_allowed = False
        """Whether the present state.json may become the backup."""
        self._incarnation = 0
        """The newest of this process; 0 before the first."""
        make(path)
        self._lock = _hold(path)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def socket(self) -> Path:
        """Where the launcher answers ``hvd-elastic hosts``."""
        return self.path / SOCKET

    def close(self) -> None:
        """Release the folder. May be repeated."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def next_incarnation(self) -> int:
        """A higher number than any launcher of this folder had; written before it is used.

        Raises :class:`UsageError` if it cannot be written, and this process had none before.
        """
        states = (_state_or_none(self.path / name) for name in (STATE, BACKUP))
        known = (saved.incarnation for saved in states if saved)
        number = max(_incarnation(self.path), self._incarnation, *known, 0) + 1
        try:
            _write_number(self.path / INCARNATION, f"{number}\n")
        except OSError as error:
            why = f"{self.path / INCARNATION} cannot be written ({error.strerror or error})"
            if self._incarnation == 0:
                raise UsageError(f"{why}; make room there, or name another folder with --state-dir") from None
            LOG.warning("%s; the job goes on, but a restarted launcher may be taken for this one", why)
        self._incarnation = number
        return number

    def load(self) -> Saved | None:
        """What the last launcher saved; None if there was none.

        A file that is damaged, or of a newer version, is logged and kept with the ending :data:`UNREAD`, and the one
        before it is used.
        """
        found, self._backup_allowed = load(self.path, keep=True)
        return found

    def save(self, saved: Saved) -> bool:
        """Replace the saved state by ``saved``, whole or not at all. False if that failed, which is logged once.

        Waits for the disk: where that may be slow, call it in a thread.
        """
        done = self._write(STATE, state_json.to_text(saved))
        self._backup_allowed = self._backup_allowed or done
        return done

    def key(self) -> bytes:
        """The job's key: the one that is there, or a new one."""
        if (found := read_key(self.path)) is not None:
            return found
        if os.path.lexists(self.path / KEY):
            LOG.warning("%s: is not a key; this launcher cannot take over agents of an earlier one", self.path / KEY)
        made = secrets.token_bytes(KEY_BYTES)
        self._write(KEY, made.hex() + "\n")
        return made

    def note_program(self, program: RecordedProgram | None) -> None:
        """Keep what the job runs, for ``hvd-elastic replay``; None: it does not note steps. If that fails, it is
        logged."""
        if program is not None:
            self._write(PROGRAM, program.encode())
            return
        with contextlib.suppress(OSError):
            (self.path / PROGRAM).unlink(missing_ok=True)

    def forget_key(self) -> None:
        """Remove the key: the job is over and no agent is left."""
        with contextlib.suppress(OSError):
            (self.path / KEY).unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> bool:
        backup = self.path / BACKUP if name == STATE and self._backup_allowed else None
        try:
            replace(self.path / name, text, mode=PRIVATE, backup=backup, durable=True)
        except OSError as error:
            if name not in self._failing:
                LOG.warning(
                    "%s cannot be written (%s); the job goes on, but a restarted launcher would not know of this",
                    self.path / name,
                    error.strerror or error,
                )
            self._failing.add(name)
            return False
        if name in self._failing:
            self._failing.remove(name)
            LOG.warning("%s can be written again", self.path / name)
        return True


def load(path: Path, *, keep: bool = False) -> tuple[Saved | None, bool]:
    """Return the state in a folder, locked or not, and whether it is from ``state.json`` and not from the backup.

    ``keep``: rename what cannot be used, so that no later state takes its place.
    """
    why = ""
    for name in (STATE, BACKUP):
        try:
            saved = state_json.from_text(_read(path / name))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            kept = f"; it is kept as {name}{UNREAD}" if keep and _put_aside(path / name) else ""
            how = "cannot be used" if isinstance(error, state_json.NewerVersion) else "is damaged"
            why = why or f"{path / name} {how} ({error}){kept}"
            continue
        if why:
            LOG.warning("%s; going on from %s, the state before it", why, path / name)
        return saved, name == STATE
    if why:
        LOG.warning("%s and there is no good one before it%s", why, "; starting from the beginning" if keep else "")
    return None, False


def _put_aside(path: Path) -> bool:
    try:
        path.replace(path.with_name(path.name + UNREAD))
    except OSError:
        return False
    return True


def read_key(path: Path) -> bytes | None:
    """The key of the job of a folder, held or not; None if there is none, as after a job's end."""
    try:
        found = bytes.fromhex(_read(path / KEY))
    except (OSError, ValueError):
        return None
    return found if len(found) == KEY_BYTES else None


def recorded_program(path: Path) -> RecordedProgram | None:
    """What the job of a folder runs; None unless it was started with ``--replay``."""
    try:
        return RecordedProgram.decode(_read(path / PROGRAM))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def holder(path: Path) -> str | None:
    """The process that holds a folder ("pid 7 on host a"); None if there is none, or no such folder."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder_name(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def make(path: Path) -> None:
    """Make the folder, for its user alone, unless it is there. To be called before anything is put into it.

    Raises :class:`UsageError` if it cannot be made, and as :func:`check` does.
    """
    try:
        # A user who may write to the folder above may replace ours.
        for above in reversed([above for above in path.parents if not above.exists()]):
            above.mkdir(mode=0o755, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--state-dir {path} cannot be made: {error.strerror}; name another with --state-dir"
        ) from None
    check(path)


def check(path: Path) -> None:
    """Raises :class:`UsageError` if others own or may write to a folder, :data:`FOLDERS` above, or our files in it."""
    try:
        if path.parent.name == FOLDERS:
            ownership.check_folder(path.parent)
        ownership.check_folder(path)
        ownership.check_files(path, (LOCK, INCARNATION, STATE, BACKUP, KEY, KNOWN_HOSTS, PROGRAM))
    except OSError as error:
        raise UsageError(
            f"--state-dir {path} cannot be looked at: {error.strerror}; name another with --state-dir"
        ) from None


def _hold(path: Path) -> int:
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(
            f"--state-dir {path} cannot be written: {error.strerror}; name another with --state-dir"
        ) from None
    try:
        _lock(descriptor)
    except BlockingIOError:
        who = _holder_name(descriptor)
        os.close(descriptor)
        raise UsageError(
            f"{path} is already in use by {who}; stop that launcher, or give this one another --job or --state-dir"
        ) from None
    except OSError as error:
        LOG.warning(
            "%s: this file system has no locks (%s); make sure that only one launcher uses this folder", path, error
        )
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name in it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
    return descriptor


def _lock(descriptor: int) -> None:
    """Take the lock. `hvd-elastic hosts` holds it for moments; those are waited for."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.02)


def _holder_name(descriptor: int) -> str:
    text = os.pread(descriptor, 400, 0).decode("utf-8", errors="replace")
    return "".join(c for c in text.strip() if c.isprintable()) or "another launcher"


def _read(path: Path) -> str:
    """The text of a file of ours. Raises ``OSError``, or ``ValueError`` if it is not ours or not text."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        # The folder's owner was checked: network file systems may map root to another user.
        if status.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise ValueError(f"owned by user {status.st_uid}")
        if status.st_size > MAX_BYTES:
            raise ValueError(f"{status.st_size} bytes")
        return file.read(MAX_BYTES).decode("utf-8")


def _state_or_none(path: Path) -> Saved | None:
    try:
        return state_json.from_text(_read(path))
    except (OSError, ValueError):
        return None


def _incarnation(path: Path) -> int:
    try:
        return max(0, int(_read(path / INCARNATION)))
    except (OSError, ValueError):
        return 0


def _write_number(path: Path, text: str) -> None:
    """Replace a number by ``text`` of the same length: on a full disk there is room for that."""
    try:
        return replace(path, text, mode=PRIVATE, durable=True)
    except OSError:
        if not path.exists():
            raise
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.pwrite(descriptor, text.encode(), 0) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, len(text))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
