"""A file system that a test can stall, and a command that runs where it is mounted.

    python -m tests.support.stalled_filesystem MOUNTPOINT BACKING STALL COMMAND…

MOUNTPOINT/hosts shows the content of the file BACKING; what is written there is appended to it. While the file STALL
exists, reads and writes are not answered, and only a fatal signal interrupts who waits. The attributes of the file can
still be read, because real file systems cache them. STALL.begun exists once somebody waits.

A child of this process speaks FUSE without a library; this process becomes
COMMAND. The mount is in a mount namespace of both, and disappears with them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import struct
import sys
from pathlib import Path
from typing import Final

DEVICE: Final = Path("/dev/fuse")
NAME: Final = "hosts"

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _WRITE = 1, 2, 3, 14, 15, 16
_RELEASE, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR = 18, 25, 26, 27, 29
_INTERRUPT, _BATCH_FORGET = 36, 42
_HEADER: Final = struct.Struct("<IIQQIII4x")
_WRITE_HEADER: Final = 40
_FOLDER, _FILE = 1, 2
_LARGEST: Final = 1 << 17
_LOOK_S: Final = 0.02
_CLONE_NEWNS: Final = 0x20000
_MS_PRIVATE_AND_BELOW: Final = 0x44000
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """Return what this machine lacks for it, and how to get it; None if nothing."""
    if os.geteuid() != 0:
        return "needs root, to mount: sudo make test"
    if not DEVICE.exists():
        return "needs /dev/fuse: modprobe fuse; in a container: docker run --privileged"
    return None


class FileSystem:
    """Answers the kernel's requests: one folder with one file in it."""

    def __init__(self, device: int, backing: Path, stall: Path) -> None:
        self._device = device
        self._backing = backing
        self._stall = stall
        self._waiting: list[bytes] = []

    def serve(self) -> None:
        while True:
            if self._waiting and not self._stall.exists():
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    self._answer(request)
            if select.select([self._device], [], [], _LOOK_S)[0]:
                self._answer(os.read(self._device, _LARGEST))

    def _answer(self, request: bytes) -> None:
        _, what, unique, node, *_ = _HEADER.unpack_from(request)
        if what in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return  # these need no answer
        if what in (_READ, _WRITE) and self._stall.exists():
            self._waiting.append(request)
            self._stall.with_name(f"{self._stall.name}.begun").touch()
            return
        try:
            said, failed = self._said(what, node, request[_HEADER.size :]), 0
        except OSError as error:
            said, failed = b"", -(error.errno or errno.EIO)
        os.write(self._device, struct.pack("<IiQ", 16 + len(said), failed, unique) + said)

    def _said(self, what: int, node: int, body: bytes) -> bytes:
        if what == _INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 4096, 0, 16, 12, 4096, 1, 1, 0, 0)
        if what == _LOOKUP:
            if body.rstrip(b"\0").decode() != NAME:
                raise OSError(errno.ENOENT, "there is one file")
            return struct.pack("<QQQQII", _FILE, 0, 0, 0, 0, 0) + self._attributes(_FILE)
        if what == _GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if what in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, 1, 0)  # nothing may be cached
        if what == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._backing.read_bytes()[offset : offset + size]
        if what == _WRITE:
            size = struct.unpack_from("<16xI", body)[0]
            with self._backing.open("ab") as file:
                file.write(body[_WRITE_HEADER : _WRITE_HEADER + size])
            return struct.pack("<II", size, 0)
        if what in (_FLUSH, _RELEASE, _RELEASEDIR):
            return b""
        raise OSError(errno.ENOSYS, "nobody here needs that")

    def _attributes(self, node: int) -> bytes:
        status = self._backing.stat()
        size, mode = (status.st_size, stat.S_IFREG | 0o644) if node == _FILE else (0, stat.S_IFDIR | 0o755)
        seconds, rest = divmod(status.st_mtime_ns, 10**9)
        return struct.pack("<6Q10I", node, size, 1, *[seconds] * 3, *[rest] * 3, mode, 1, 0, 0, 0, 4096, 0)


def main(mountpoint: str, backing: str, stall: str, *command: str) -> None:
    """Mount the file system, start a child that serves it, and become the command."""
    _done(_LIBC.unshare(_CLONE_NEWNS))
    _done(_LIBC.mount(b"none", b"/", None, _MS_PRIVATE_AND_BELOW, None))
    device = os.open(DEVICE, os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    _done(_LIBC.mount(b"stalling", os.fsencode(mountpoint), b"fuse", 0, options))
    if os.fork() == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        FileSystem(device, Path(backing), Path(stall)).serve()
    os.close(device)
    os.execvp(command[0], command)


def _done(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
