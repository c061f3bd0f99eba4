"""Opens the files that this process writes where an option says: journal, recording, output, exports.

Another user may have put a link, a pipe or a file of theirs there. So the folder has to be this user's own, or one like
``/tmp``, and what is opened is never behind a link of theirs. Folders above are not checked (docs/security.md).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io import ownership

_FOLDER_MODE: Final = 0o755
"""Whatever the umask says: the group could put links into a folder that it may write."""


def make_folder(path: Path, *, option: str, below: Path | None = None) -> None:
    """Make the folder and those above it that are missing, and check it; ``below``: check all from that one on, too.

    Raises ``OSError``, and :class:`UsageError` if others own or may write to it.
    """
    for above in reversed([above for above in path.parents if not above.exists()]):
        above.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    path.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    for each in _between(below, path):
        ownership.check_folder(each, option=option, sticky=True)


def open_output(path: Path, *, option: str, mode: int = 0o644, new: bool = False, any_folder: bool = False) -> int:
    """Open a file for appending, or a ``new`` one that must not be there, and return its descriptor.

    Its folder is made if it is missing. With ``any_folder`` it may be another user's, as for root in a container where
    a user's folder is mounted: for one file that is written at once. Raises ``OSError``, and :class:`UsageError` if
    folder or file are others', or if a link leads away that others may have put there.
    """
    if not any_folder:
        make_folder(path.parent, option=option)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a reader is an error
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | (os.O_EXCL if new else 0), mode)
    except FileExistsError:
        raise
    except OSError as error:  # the kernel itself refuses some links of others in folders like /tmp, with EACCES
        if error.errno not in (errno.ELOOP, errno.EACCES) or not path.is_symlink():
            raise
        _check_link(path, option)
        descriptor = os.open(path, flags, mode)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            ownership.check_file(path, status, option=option)
    except BaseException:
        os.close(descriptor)
        raise
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    return descriptor


def write_output(path: Path, content: str | bytes, *, option: str) -> None:
    """Replace the content of a file, or make it. Raises as :func:`open_anew` does."""
    with open_anew(path, option=option) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def open_anew(path: Path, *, option: str) -> BinaryIO:
    """Open an empty file in a folder that is there, in place of the old content; or a stream below ``/dev``.

    Raises as :func:`open_output` does, and ``OSError`` for a FIFO: it would wait for a reader, which may be anybody.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        descriptor = open_output(path, option=option, any_folder=True)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.EINVAL, "it is a pipe or socket, not a regular file") from None
    regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    if not regular and Path("/dev") not in path.parents:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
    if regular:
        os.truncate(descriptor, 0)
    return os.fdopen(descriptor, "wb")


def _check_link(path: Path, option: str) -> None:
    """A link is followed if nobody else can have put it there, such as ``/dev/stdout``."""
    if path.lstat().st_uid not in (0, os.geteuid()):
        raise UsageError(f"{option}: {path} is a link of another user; remove it, or name another with {option}")
    ownership.check_folder(path.parent, option=option)


def _between(below: Path | None, path: Path) -> list[Path]:
    """The folders from ``below`` to ``path``, both included; ``path`` alone without ``below``."""
    above = () if below is None else (each for each in path.parents if each == below or below in each.parents)
    return [*above, path]
