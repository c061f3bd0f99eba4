"""One checksum of the files that must be the same on all hosts. Agents load this, so it must load fast."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterable
from typing import BinaryIO, Final, NamedTuple

MAX_BYTES: Final = 256 << 20
"""Most bytes of all files: an agent reads them before it connects."""
MAX_LIST: Final = 48 << 20
"""Most bytes of the unpacked list of files, more than any list of a launcher."""

_PIECE: Final = 1 << 20


class Wanted(NamedTuple):
    """Files of a folder, by their names in it."""

    folder: str
    names: tuple[str, ...]

    def packed(self) -> bytes:
        """Return the form that is sent to agents."""
        return zlib.compress(json.dumps([self.folder, *self.names], allow_nan=False).encode(), 9)


def unpacked(data: bytes) -> Wanted:
    """Parse the output of :meth:`Wanted.packed`. Raises ``ValueError``."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(data, MAX_LIST)
        if not stream.eof:
            raise ValueError("the names of files are cut off, or too many")
        found = json.loads(text)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise ValueError("no names of files")
    return Wanted(found[0], tuple(found[1:]))


def checksum(folder: str, names: Iterable[str]) -> str:
    """Return the SHA-256 of names and contents, sorted by name: the same on every host with the same files, even if the
    folder has other files. Raises ``ValueError``, one line, for a file that is missing or cannot be read."""
    whole, left = hashlib.sha256(), MAX_BYTES
    for name in sorted(names):
        one = hashlib.sha256()
        try:
            with _opened(os.path.join(folder, name)) as file:  # noqa: PTH118 - pathlib takes long to load
                while piece := file.read(_PIECE):
                    one.update(piece)
                    left -= len(piece)
                    if left < 0:
                        raise ValueError(f"its files have more than {MAX_BYTES >> 20} MiB")
        except OSError as error:
            raise ValueError(f"{name}: {(error.strerror or str(error)).lower()}") from None
        whole.update(os.fsencode(name) + b"\0" + one.digest())
    return whole.hexdigest()


def _opened(path: str) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # reading a pipe might never end
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return os.fdopen(descriptor, "rb")


def looked_at(data: bytes) -> dict[str, str]:
    """Return an agent's report on the files that a launcher wants: ``sha256``, or the ``problem`` with them."""
    try:
        wanted = unpacked(data)
        return {"folder": wanted.folder, "sha256": checksum(wanted.folder, wanted.names)}
    except ValueError as error:
        return {"problem": str(error)}
