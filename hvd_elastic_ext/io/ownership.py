"""Whether a folder is its user's own: what a launcher reads there decides which hosts get the job's secrets, and what
others put there (links, files of theirs) may not lead its output elsewhere.

A file system may map users to others (NFS that squashes root). So the user is the owner of a file that this process has
just made there. Root is trusted in any case.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError

STATE_DIR: Final = "--state-dir"


def check_folder(path: Path, *, option: str = STATE_DIR, sticky: bool = False) -> None:
    """Raises :class:`UsageError`, with the remedy, if ``path`` is another's or others may write to it.

    For a link, its own owner counts too. ``sticky``: a folder such as ``/tmp`` is good enough, where others may make
    files, but not touch ours. Raises ``OSError`` if the path cannot be read.
    """
    status = path.stat()
    _check_owners(path, {status.st_uid, path.lstat().st_uid}, folder=path, option=option)
    if not (sticky and status.st_mode & stat.S_ISVTX):
        _check_mode(path, status, option)


def check_files(folder: Path, names: Iterable[str]) -> None:
    """The same for files in the user's own folder: they may be from a time when others could write there."""
    for name in names:
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            _check_owners(path, {status.st_uid}, folder=folder, option=STATE_DIR)
            if stat.S_ISREG(status.st_mode):
                _check_mode(path, status, STATE_DIR)


def check_file(path: Path, status: os.stat_result, *, option: str) -> None:
    """The same for a regular file that is open; ``path`` names it in errors."""
    _check_owners(path, {status.st_uid}, folder=path.parent, option=option)
    _check_mode(path, status, option)
    if status.st_nlink > 1 and path.parent.stat().st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        raise UsageError(
            f"{option}: {path} has {status.st_nlink} names, and others may have given it this one; "
            f"{_remedy(option)}, or remove it"
        )


def _remedy(option: str) -> str:
    return f"name another with {option}"


def _check_owners(path: Path, owners: set[int], *, folder: Path, option: str) -> None:
    strange = owners - {0, os.geteuid()}
    if not strange or not (strange := strange - {_user_on_file_system(folder)}):
        return
    risk = "whose key and hosts the job would use" if option == STATE_DIR else "who could lead the output elsewhere"
    raise UsageError(
        f"{option}: {path} belongs to user {name_of_user(min(strange))}, {risk}; "
        f"{_remedy(option)}, or, if all that is in it can be trusted, chown -hR {os.geteuid()} {path}"
    )


def _check_mode(path: Path, status: os.stat_result, option: str) -> None:
    if status.st_mode & stat.S_IWOTH:
        raise UsageError(f"{option}: every user may write to {path}; chmod o-w {path}, or {_remedy(option)}")
    if status.st_mode & stat.S_IWGRP and not _is_alone_in(status.st_gid):
        group = _name_of_group(status.st_gid)
        raise UsageError(f"{option}: group {group} may write to {path}; chmod g-w {path}, or {_remedy(option)}")


def _user_on_file_system(folder: Path) -> int:
    """The owner of a file that this process makes in ``folder``; the user of this process if it cannot make one."""
    probe = folder / f".owner.{secrets.token_hex(8)}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return os.geteuid()
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            probe.unlink()


def _is_alone_in(group: int) -> bool:
    """Whether only this user and root are known members of a group.

    A group without a name, such as that of a volume in a container, has no known members. A user's own group has the
    user's name or number.
    """
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return True
    me = name_of_user(os.geteuid())
    own = group in (0, os.geteuid()) or entry.gr_name == me
    return own and set(entry.gr_mem) <= {me, "root"}


def name_of_user(user: int) -> str:
    """The name of a user, or the number where it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _name_of_group(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
