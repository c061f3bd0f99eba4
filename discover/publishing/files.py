"""Where publications go: the port, and the two that write files."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from discover.publishing.file_lock import FileLock
from hvd_elastic_ext.core.errors import BadHosts, Transient
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication, parse_hosts_text, render_hosts_text


class PublishFailed(Transient):
    """A publication did not get out just now; what stood there before still stands."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: cannot write it: {why}; what stood there before still stands, trying again")


class Publisher(Protocol):
    """One way out. Level, not edge: called again and again with what the world should see."""

    @property
    def where(self) -> str:
        """The file or address, for people."""

    def publish(self, publication: Publication) -> None:
        """Make the world see ``publication``.

        Readers see the old one or the new one, whole, and the new one for good
        once this returned. Raises :class:`PublishFailed` to be called again, and
        :class:`discover.publishing.file_lock.Taken` if another process owns the place.
        """

    def close(self) -> None:
        """Let go of it; what was published stays for those who read files. May be repeated."""


def _nothing() -> None:
    """Nobody counts the writes."""


class AtomicFile:
    """A file replaced as a whole, by one owner, and only when it says something else.

    A link is followed once, here. Missing directories are made. A temporary file
    of an owner that was killed is removed by the next one. ``wrote`` is called
    after each replacement.
    """

    def __init__(self, path: Path, *, mode: int, wrote: Callable[[], None]) -> None:
        self.path = Path(os.path.realpath(path))  # unlike Path.resolve, it bears links in a circle
        self._mode = mode
        self._wrote = wrote
        self._temporary = self.path.with_name(f".{self.path.name}.new")
        self._lock: FileLock | None = None

    def own(self) -> None:
        """Become the only writer. Raises :class:`Taken`, or ``OSError``; may be repeated."""
        if self._lock is not None and not self._lock.holds():
            self.close()
        if self._lock is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path)
            self._temporary.unlink(missing_ok=True)

    def read(self) -> bytes | None:
        """Return what stands there, or None if that is no readable file."""
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def write(self, data: bytes) -> None:
        """Replace the file, unless it says ``data`` with the right mode already. Raises ``OSError``."""
        self.own()
        if self.read() == data and stat.S_IMODE(self.path.stat().st_mode) == self._mode:
            return
        try:
            self._write_temporary(data)
            self._temporary.replace(self.path)
        except BaseException:
            self._temporary.unlink(missing_ok=True)
            raise
        self._wrote()
        self._sync_directory()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write_temporary(self, data: bytes) -> None:
        self._temporary.unlink(missing_ok=True)
        fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Closed before the rename: readers may ask the kernel whether a writer is still at it.
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(fd, self._mode)
            os.fsync(fd)

    def _sync_directory(self) -> None:
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class HostsFile:
    """Publishes as ``host:slots`` lines in a file that is never torn, and empty only if there are no hosts."""

    def __init__(self, path: Path, *, wrote: Callable[[], None] = _nothing) -> None:
        self._file = AtomicFile(path, mode=0o644, wrote=wrote)
        self._rendered: tuple[HostSet | None, bytes] = (None, b"")

    @property
    def where(self) -> str:
        return str(self._file.path)

    @property
    def path(self) -> Path:
        return self._file.path

    def own(self) -> None:
        """Become the only writer, if that can be had now. Raises :class:`Taken` or :class:`PublishFailed`."""
        try:
            self._file.own()
        except OSError as error:
            raise PublishFailed(self.where, why(error)) from None

    def published_before(self) -> HostSet:
        """Return what an earlier life published, in its order; nothing if that cannot be read."""
        try:
            return parse_hosts_text((self._file.read() or b"").decode("ascii"), where=self.where)
        except (BadHosts, UnicodeDecodeError):
            return HostSet()

    def publish(self, publication: Publication) -> None:
        try:
            self._file.write(self._render(publication.hosts))
        except OSError as error:
            raise PublishFailed(self.where, why(error)) from None

    def close(self) -> None:
        self._file.close()

    def _render(self, hosts: HostSet) -> bytes:
        """The same hosts are published every second, and need not be written out again for that."""
        if self._rendered[0] is not hosts:
            self._rendered = (hosts, render_hosts_text(hosts).encode("ascii"))
        return self._rendered[1]


class Script:
    """Keeps an executable that prints a hosts file, for ``horovodrun --host-discovery-script``."""

    def __init__(self, path: Path, *, hosts_file: Path, wrote: Callable[[], None] = _nothing) -> None:
        self._file = AtomicFile(path, mode=0o755, wrote=wrote)
        self._text = script_text(hosts_file)

    @property
    def where(self) -> str:
        return str(self._file.path)

    def publish(self, publication: Publication) -> None:
        try:
            self._file.write(os.fsencode(self._text))
        except OSError as error:
            raise PublishFailed(self.where, why(error)) from None

    def close(self) -> None:
        self._file.close()


def script_text(hosts_file: Path) -> str:
    """Write a shell script that prints ``hosts_file``, or nothing, and succeeds."""
    quoted = shlex.quote(str(hosts_file))
    # Without "command" a file that goes in this very moment would end the shell, and not well.
    print_it = f"[ -f {quoted} ] && [ -r {quoted} ] && command exec cat 2>/dev/null <{quoted}"
    return f"#!/bin/sh\n# Written by hvd-discover.\n{print_it}\nexit 0\n"


def why(error: OSError) -> str:
    """Say an operating-system error in words, naming the file only if it is another one."""
    return (error.strerror or str(error)).lower()
