"""Receives the code of a job if this host has other files, then becomes the host's agent: ``run --send-code``.

The first line of the input names the files. The answer is one line. Then follow the archive, if it was requested, and
the input of an agent. All of it goes over ssh or the API server's exec, which protect it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import json
import os
import select
import sys
from pathlib import Path
from typing import Final, NamedTuple

from hvd_elastic_ext.core.commands import HAS_CODE, WANTS_CODE, agent_command
from hvd_elastic_ext.io.code.archive import is_marked, unpack
from hvd_elastic_ext.io.code.checksum import Wanted, checksum, unpacked

FAILED: Final = 1
MAX_LINE: Final = 1 << 20
QUIET_S: Final = 300.0
"""Seconds without a byte after which the sender counts as gone: a machine that is switched off closes no connection."""
_PIECE: Final = 1 << 16


class Sent(NamedTuple):
    """The files to receive, their checksum, the size of their archive, the mark of the sent folder, and the agent's
    working directory."""

    wanted: Wanted
    sha256: str
    size: int
    mark: str
    directory: str


class Input(io.RawIOBase):
    """Reads exactly a given number of bytes of a descriptor, because the following bytes are the agent's input."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._left = descriptor, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._left:
            return 0
        if not select.select([self._descriptor], [], [], QUIET_S)[0]:
            raise ValueError(f"nothing came for {QUIET_S:g} s")
        data = os.read(self._descriptor, min(len(buffer), self._left))
        if not data:
            raise ValueError("the connection was lost while the code came")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def drain(self) -> None:
        """Read the rest, because the sender reads no answer before it has sent everything."""
        with contextlib.suppress(OSError, ValueError):
            while self._left and self.read(_PIECE):
                pass


def main() -> None:
    """Exit with code 1 and one line if the code cannot be received; else this process becomes the agent."""
    try:
        sent = read(_line(0))
        if has(sent) or is_marked(Path(sent.wanted.folder), sent.mark):
            _answer(HAS_CODE)
        else:
            _answer(WANTS_CODE)
            take(sent, Input(0, sent.size))
    except ValueError as error:
        sys.stderr.write(f"the code of --code cannot be brought here: {error}\n")
        sys.exit(FAILED)
    with contextlib.suppress(OSError):  # as without --code: the host may lack the directory
        os.chdir(sent.directory)
    command = agent_command(sys.executable)
    os.execv(command[0], command)  # noqa: S606 - words of ours


def has(sent: Sent) -> bool:
    """Whether this host has the same files."""
    try:
        return checksum(*sent.wanted) == sent.sha256
    except ValueError:
        return False


def take(sent: Sent, source: Input) -> None:
    """Unpack an archive that has those files, and compare the result. Raises ``ValueError``."""

    def check(folder: Path) -> None:
        found = checksum(str(folder), sent.wanted.names)
        if found != sent.sha256:
            raise ValueError(f"what came has another checksum ({found[:8]}…, sent {sent.sha256[:8]}…)")

    try:
        unpack(io.BufferedReader(source, _PIECE), Path(sent.wanted.folder), check)
    finally:
        source.drain()
    if not has(sent):
        raise ValueError("other files came in the place of what was sent")


def read(line: bytes) -> Sent:
    """Read the first line. Raises ``ValueError``."""
    match json.loads(line):
        case {"code": str(code), "sha256": str(sha256), "size": int(size), "mark": str(mark), "directory": str(where)}:
            try:
                return Sent(unpacked(base64.b64decode(code, validate=True)), sha256, size, mark, where)
            except binascii.Error as error:
                raise ValueError(str(error)) from None
    raise ValueError("the first line does not name any files")


def _line(descriptor: int) -> bytes:
    """Read one line. The sender sends nothing more until it has the answer."""
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(descriptor, _PIECE)
        data += piece
        if not piece or len(data) > MAX_LINE:
            raise ValueError("the first line is cut off, or too long")
    return data


def _answer(word: str) -> None:
    os.write(1, f"{word}\n".encode())


if __name__ == "__main__":
    main()
