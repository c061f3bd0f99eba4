"""The interface of all places to publish to, and the two places that are files: the hosts file and a script.

Readers open these files at any moment, so a file is replaced as a whole, and by one daemon only.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from discover.publish.overlap import Overlap
from hvd_elastic_ext.core.errors import BadHosts, Permanent, Transient
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication, parse_hosts_text, render_hosts_text
from hvd_elastic_ext.core.sequences import common_ends


class PublishFailed(Transient):
    """A publication has failed. The place still has its previous content."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: cannot write it: {why}; what stood there before still stands")


class Publisher(Protocol):
    """A place to publish to. :meth:`publish` is called again and again, also with the same publication."""

    def publish(self, publication: Publication) -> None:
        """Replace the content of the place by ``publication``. Readers see the old or the new one, always complete.

        Raises :class:`PublishFailed` if a later call may succeed,
        :class:`discover.publish.files.OwnedByOther` if another process owns the place.
        """

    def close(self) -> None:
        """Release the place; files stay. May be called again."""


class AtomicFile:
    """A file that is replaced as a whole, by one owner, and only when its contents change.

    The constructor resolves links, once. Missing directories are made. If an owner was killed, the next one removes its
    temporary file. ``wrote`` is called after each replacement.
    """

    def __init__(self, path: Path, *, mode: int, wrote: Callable[[], None]) -> None:
        self.path = Path(os.path.realpath(path))  # unlike Path.resolve, realpath accepts a loop of links
        self.where = str(self.path)
        self._mode = mode
        self._wrote = wrote
        self._temporary = self.path.with_name(f".{self.path.name}.new")
        self._lock: FileLock | None = None
        self._written: bytes | None = None

    def own(self) -> None:
        """Become the only writer. May be called again. Raises :class:`OwnedByOther` or :class:`PublishFailed`."""
        with self._failing():
            self._own()

    def read(self) -> bytes | None:
        """Return the contents, or None if there is no readable file."""
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def write(self, data: bytes) -> None:
        """Replace the file, unless it has ``data`` and the right mode already. Raises as :meth:`own` does."""
        with self._failing():
            self._own()
            if self._written in (None, data) and self._stands(data):
                self._written = data
                return
            try:
                self._write_temporary(data)
                self._temporary.replace(self.path)
            except BaseException:
                self._temporary.unlink(missing_ok=True)
                raise
            self._written = data
            self._wrote()
            self._sync_directory()

    def close(self) -> None:
        """Give up the lock; the file stays. May be called again."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PublishFailed(self.where, (error.strerror or str(error)).lower()) from None

    def _own(self) -> None:
        if self._lock is not None and not self._lock.holds():
            self.close()
        if self._lock is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path)
            self._temporary.unlink(missing_ok=True)

    def _stands(self, data: bytes) -> bool:
        return self.read() == data and stat.S_IMODE(self.path.stat().st_mode) == self._mode

    def _write_temporary(self, data: bytes) -> None:
        fd = self._open_temporary()
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            os.fchmod(fd, self._mode)
            os.fsync(fd)
        finally:
            os.close(fd)  # before the rename, so that the file has no writer when readers see it

    def _open_temporary(self) -> int:
        """Make and open the temporary file. A file that already has its name is not ours, and is removed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(self._temporary, flags, 0o600)
        except FileExistsError:
            self._temporary.unlink(missing_ok=True)
            return os.open(self._temporary, flags, 0o600)

    def _sync_directory(self) -> None:
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class HostsFile:
    """Publishes ``host:slots`` lines in a file. The file is always complete, and empty only if there are no hosts.

    ``overlap`` keeps the last survivor in the file, for stock Horovod.
    """

    def __init__(self, path: Path, *, wrote: Callable[[], None] = lambda: None, overlap: Overlap | None = None) -> None:
        self._file = AtomicFile(path, mode=0o644, wrote=wrote)
        self.path, self.where = self._file.path, self._file.where
        self.own, self.close = self._file.own, self._file.close
        self._overlap = overlap
        self._shown = HostSet()
        self._lines: list[bytes] = []

    def published_before(self) -> HostSet:
        """Return the hosts of an earlier run, in their order. They are empty if they cannot be read."""
        try:
            return parse_hosts_text((self._file.read() or b"").decode("ascii"), where=self.where)
        except (BadHosts, UnicodeDecodeError):
            return HostSet()

    def publish(self, publication: Publication) -> None:
        """Write the usable hosts, and with an overlap also the last survivor."""
        if self._overlap is None:
            self._write(publication.hosts)
        else:
            self._overlap.publish(publication, before=self.published_before, write=self._write)

    def _write(self, hosts: HostSet) -> None:
        start, end = common_ends(self._shown.hosts, hosts.hosts)
        news = [render_hosts_text((host,)).encode("ascii") for host in hosts.hosts[start : len(hosts) - end]]
        self._lines[start : len(self._lines) - end] = news
        self._shown = hosts
        self._file.write(b"".join(self._lines))  # also if nothing is new: the file may have been changed or removed


class Script:
    """Writes an executable that prints a hosts file, for ``horovodrun --host-discovery-script``."""

    def __init__(self, path: Path, *, hosts_file: Path, wrote: Callable[[], None] = lambda: None) -> None:
        self._file = AtomicFile(path, mode=0o755, wrote=wrote)
        self.close = self._file.close
        self._text = script_text(hosts_file)

    def publish(self, publication: Publication) -> None:
        """Write the script, which is the same for every publication. So a changed or removed file is written again."""
        self._file.write(os.fsencode(self._text))


def script_text(hosts_file: Path) -> str:
    """Return a shell script that prints ``hosts_file``, or nothing if it cannot be read. The script always succeeds."""
    quoted = shlex.quote(str(hosts_file))
    # Without "command", the shell ends with an error if the file is removed after the tests.
    print_it = f"[ -f {quoted} ] && [ -r {quoted} ] && command exec cat 2>/dev/null <{quoted}"
    return f"#!/bin/sh\n# Written by hvd-discover.\n{print_it}\nexit 0\n"


# --- one owner


class OwnedByOther(Permanent):
    """Another process that still runs owns the place."""


class FileLock:
    """Owns ``place`` from construction to :meth:`release`, or to the end of this process, however it ends.

    The lock file ``.NAME.lock`` stays. If it were removed, two owners could each lock a file of that name.

    Raises :class:`OwnedByOther`, or ``OSError`` if the lock file cannot be made.
    """

    def __init__(self, place: Path) -> None:
        path = place.with_name(f".{place.name}.lock")
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise OwnedByOther(
                f"{place}: another hvd-discover (process {owner}) already writes it; stop that one or name another path"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def holds(self) -> bool:
        """Whether the lock is still effective: not after the lock file or its directory was removed."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Give up the lock. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
