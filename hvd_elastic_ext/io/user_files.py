"""Reads a file that a user has named: only a regular file, or a pipe that this process was given, and only so many
bytes.

A FIFO, a device or a socket under the name of a file must not hang the reader, and no file may fill its memory.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import select
import stat
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from hvd_elastic_ext.core.errors import UsageError

MAX_BYTES: Final = 512 << 20
"""Most bytes of a file, after it is unpacked, unless a caller has another bound."""
SILENT_S: Final = 60.0
"""Most seconds without a byte from a pipe."""
_STDIN: Final = ("-", "/dev/stdin")
_GIVEN: Final = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")
_CHUNK: Final = 1 << 20


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; never waits. Raises ``OSError``, whose ``strerror`` says what else it is."""
    return os.fdopen(_opened(path), "rb")


def read_regular(path: str | Path, *, most: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file. Raises ``OSError``, with ``EFBIG`` for more than ``most`` bytes."""
    descriptor = _opened(path)
    try:
        return _whole(descriptor, most)
    finally:
        os.close(descriptor)


def read_given(path: str | Path, *, most: int = MAX_BYTES, silent_s: float = SILENT_S) -> bytes:
    """Return the content of a regular file, or of an input that the shell has opened: ``-``, ``/dev/stdin``, and
    ``/dev/fd/N`` of ``<(command)``.

    Raises ``OSError``, with ``ETIMEDOUT`` if a pipe gives no byte for ``silent_s`` seconds. A terminal has no deadline.
    """
    given = _given(path)
    if given is None:
        return read_regular(path, most=most)
    descriptor = os.dup(given)
    try:
        return _whole(descriptor, most, silent_s=None if os.isatty(descriptor) else silent_s)
    finally:
        os.close(descriptor)


def read_text(path: str | Path, *, expected: str, most: int = MAX_BYTES) -> str:
    """Return the text of a file or given input; one whose name ends in ``.gz`` is unpacked. Lines end in ``\\n``.

    ``expected``: what the user should do instead, such as ``give a CSV file``. Raises :class:`UsageError` in one line.
    """
    try:
        content = read_given(path, most=most)
        if str(path).endswith(".gz"):
            content = unpacked(content, most=most)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}: cannot be read: line {line} is not UTF-8 text; {expected}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: cannot be read: {why}; {expected}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def unpacked(content: bytes, *, most: int = MAX_BYTES) -> bytes:
    """Unpack gzip. Raises ``OSError`` if it is damaged, or for more than ``most`` bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            found = file.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise OSError(errno.EINVAL, "it is not gzip, or is damaged") from None
    return _bounded(found, most)


def _opened(path: str | Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a regular file")
    return descriptor


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe (FIFO)", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _given(path: str | Path) -> int | None:
    """Return the descriptor that a name stands for, if it is not the name of a file."""
    name = str(path)
    if name in _STDIN:
        return 0
    found = _GIVEN.fullmatch(name)
    return None if found is None else int(found[1])


def _whole(descriptor: int, most: int, *, silent_s: float | None = None) -> bytes:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor)):
        if _is_null(descriptor):
            return b""
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a regular file")
    poll = None
    if silent_s is not None and not stat.S_ISREG(mode):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
    parts, length = list[bytes](), 0
    while length <= most:
        if poll is not None and silent_s is not None and not poll.poll(silent_s * 1000.0):
            raise OSError(errno.ETIMEDOUT, f"no byte came for {silent_s:g} s")
        part = os.read(descriptor, min(_CHUNK, most + 1 - length))
        if not part:
            break
        parts.append(part)
        length += len(part)
    return _bounded(b"".join(parts), most)


def _is_null(descriptor: int) -> bool:
    return os.fstat(descriptor).st_rdev == Path(os.devnull).stat().st_rdev


def _bounded(content: bytes, most: int) -> bytes:
    if len(content) > most:
        size = f"{most >> 20:,} MiB" if most >= 1 << 20 else f"{most:,} bytes"
        raise OSError(errno.EFBIG, f"it has more than {size}")
    return content


def write_given(path: str | Path, content: bytes) -> None:
    """Write a file that a user has named, or a stream below ``/dev`` such as ``/dev/stdout``. Raises ``OSError``, also
    for a FIFO: it would wait for a reader, which may be anybody."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.EINVAL, "it is a pipe or socket, not a regular file") from None
    with os.fdopen(descriptor, "wb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not str(path).startswith("/dev/"):
            raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a regular file")
        os.set_blocking(descriptor, True)
        file.write(content)
