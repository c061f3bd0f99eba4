# ruff: noqa: PTH116
# (pathlib takes long to load)
"""Notice files: other programs write into them why and when this host will go. An emptied file withdraws the notice.

One is beside the agent's socket, for hooks of the host. The job or the host can name another
(:data:`~hvd_elastic_ext.core.messages.slot_protocol.NOTICE_FILE`), which a cluster or a supervisor writes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

NOTICE: Final = ".notice"
"""Suffix of the file beside the socket."""
LOOK_S: Final = 0.5
"""Seconds between looks."""
STALE_S: Final = 60.0
"""Seconds past its deadline after which a notice belongs to an earlier life of this host."""
MAX_BYTES: Final = 4096
MAX_REASON: Final = 200


class Notice(NamedTuple):
    """A notice. ``by``: when the host will be gone, in Unix seconds; None if unknown."""

    reason: str
    by: float | None = None


def read(text: str) -> Notice | None:
    """Read a notice from the text of a file; None if it is empty. Pure.

    The text is a line with the reason, or ``{"reason": "…", "deadline": UNIX SECONDS}``, without one or both of these.

    Raises ``ValueError``.
    """
    text = text.strip()
    if not text:
        return None
    entry: dict[str, Any] = json.loads(text) if text.startswith("{") else {"reason": text.splitlines()[0]}
    reason, by = entry.get("reason", "no reason given"), entry.get("deadline")
    if not isinstance(reason, str):
        raise ValueError("reason is not text")
    if by is not None and (type(by) not in (int, float) or not math.isfinite(by)):
        raise ValueError("deadline is not a number of Unix seconds")
    shown = "".join(letter if letter.isprintable() else " " for letter in reason)
    return Notice(shown[:MAX_REASON], None if by is None else float(by))


def soonest(notices: Sequence[Notice], wall: float) -> Notice | None:
    """The earliest notice that is not stale; None if there is none. Pure."""
    return soonest_of([notice for notice in notices if notice.by is None or wall < notice.by + STALE_S])


def soonest_of(notices: Sequence[Notice]) -> Notice | None:
    """The notice with the earliest deadline; None if there is none. Pure."""
    return min(notices, key=lambda notice: math.inf if notice.by is None else notice.by, default=None)


class NoticeFiles:
    """Reads ``own`` paths, which only this user and root may write, and ``named`` ones.

    A file that cannot be read, has no valid notice or has another owner causes a warning, and changes nothing.
    """

    def __init__(self, own: Sequence[str], named: Sequence[str], *, warn: Callable[[str], None]) -> None:
        self._own = frozenset(own)
        self._paths = (*own, *named)
        self._warn = warn
        self._stamps: dict[str, tuple[int, ...] | None] = {}
        self._held: dict[str, Notice] = {}
        self._seen_empty: set[str] = set()

    def look(self, wall: float) -> Notice | None:
        """Return the present notice."""
        for path in self._paths:
            try:
                stamp = _stamp(path)
            except OSError as error:
                self._warn(f"notice file {path}: {error.strerror}; the last notice stays valid")
                continue
            if stamp != self._stamps.get(path) or path in self._seen_empty:
                self._stamps[path] = stamp
                self._take(path, exists=stamp is not None)
                if stamp is None and path in self._own:
                    self._make_again(path)
        return soonest(list(self._held.values()), wall)

    def _make_again(self, path: str) -> None:
        """Make the file again if it is missing: writers find it by its open descriptor or name."""
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._stamps[path] = _stamp_of(os.fstat(descriptor))  # not by name: it may be removed again
            os.close(descriptor)

    def _take(self, path: str, *, exists: bool) -> None:
        try:
            notice = read(_text(path)) if exists else None
        except FileNotFoundError:
            notice = None
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            self._warn(f"notice file {path}: {error}; the last notice stays valid")
            return
        if notice is None and exists and path not in self._seen_empty:
            self._seen_empty.add(path)  # a writer may have truncated it first
            return
        self._seen_empty.discard(path)
        if notice is None:
            self._held.pop(path, None)
        else:
            self._held[path] = notice


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _stamp_of(status)


def _stamp_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _text(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a plain file")
        # Check the name's owner, too: in a folder where others may create files, any user can link to a file of root.
        for user in (status.st_uid, os.lstat(path).st_uid):
            if user not in (0, os.geteuid()):
                raise ValueError(f"it belongs to user {user}, neither root nor this one, and is ignored")
        data = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    return data.decode("utf-8", "replace")
