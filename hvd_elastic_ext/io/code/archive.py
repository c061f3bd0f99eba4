"""Packs files of a folder as a ``tar.gz``, and unpacks them. The same files always give the same bytes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from hvd_elastic_ext.core.commands import file_name
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.code.checksum import MAX_BYTES
from hvd_elastic_ext.io.replaced_file import replace

KEPT: Final = ".hvd-elastic"
"""The folder with files of this package below the folder of the code; it is not code."""
# The folders of jobs are beside these files and never have these names.
_LIST: Final = "=code"
_LOCK: Final = "=code-lock"
_MARK: Final = "=code-from-"
_NEW: Final = "=code-new-"
_OLD_S: Final = 86_400.0
"""Age in seconds after which files left by a killed unpacking process are removed."""

Check = Callable[[Path], None]
"""Checks the unpacked files before any of them is moved into place. Raises ``ValueError`` to leave everything
unchanged."""


def packed(folder: Path, names: Iterable[str], *, private: bool = False) -> bytes:
    """Return an archive of the files of ``folder`` with these names. Raises ``OSError`` if one cannot be read.
    ``private``: also keep whether other users may read a file; else only the executable bit is kept.
    """
    raw = io.BytesIO()
    # Level 6 takes half the time of level 9; the result is a hundredth larger.
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            data = (folder / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o755 if os.access(folder / name, os.X_OK) else 0o644
            if private:
                entry.mode &= (folder / name).stat().st_mode | stat.S_IRWXU
            archive.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def unpack(source: BinaryIO, folder: Path, check: Check = lambda staged: None) -> None:
    """Put the files of an archive into ``folder``, after all are unpacked and ``check`` has accepted them. Each file is
    replaced as a whole, so that readers see the old or the new one. Files of the previous archive that this one lacks
    are removed, unless changed since. Other files stay. Raises ``ValueError``, with one line, for an archive that
    cannot be unpacked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / KEPT).mkdir(exist_ok=True)
        _clear(folder / KEPT)
        with tempfile.TemporaryDirectory(prefix=_NEW, dir=folder / KEPT) as fresh:
            staged = Path(fresh)
            sums = _extracted(source, staged)
            check(staged)
            with _alone(folder / KEPT):
                _into_place(staged, folder, sums)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"the archive cannot be read: {error}") from None
    except OSError as error:
        raise ValueError(
            f"{error.filename2 or error.filename or folder}: {(error.strerror or str(error)).lower()}"
        ) from None


def mark(folder: Path, job: str) -> str:
    """Write a mark into the folder that a job sends, by which a host recognizes that it shares this folder. Return ""
    if that fails."""
    word = secrets.token_hex(16)
    try:
        (folder / KEPT).mkdir(exist_ok=True)
        (folder / KEPT / f"{_MARK}{file_name(job)}").write_text(word)
    except OSError:
        return ""
    return word


def is_marked(folder: Path, word: str) -> bool:
    """Whether a folder has this mark: it is then the folder that is sent, on shared storage."""
    for path in (folder / KEPT).glob(f"{_MARK}*"):
        with contextlib.suppress(OSError, ValueError):
            if word and path.read_text() == word:
                return True
    return False


def _extracted(source: BinaryIO, staged: Path) -> dict[str, str]:
    """Unpack into an empty folder. Return the checksum of each file."""
    sums, left = {}, MAX_BYTES
    with tarfile.open(fileobj=source, mode="r|gz") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is None or not _is_inside(entry.name):
                raise ValueError(f"{entry.name!r} is not a file of a folder")
            left -= entry.size
            if left < 0:
                raise ValueError(f"its files have more than {MAX_BYTES >> 20} MiB")
            path = staged / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(entry.mode & 0o755)
            sums[entry.name] = _sum(path)
    return sums


def _into_place(staged: Path, folder: Path, sums: Mapping[str, str]) -> None:
    before = dict(_before(folder))
    for name in sums:
        if link := _link_above(folder, name):
            raise ValueError(f"{link}: it is a link, and what it leads to is not changed")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(folder / name))
    for name in sums:
        _move(staged / name, folder / name)
    for name in before.keys() - sums.keys():
        with contextlib.suppress(OSError):  # it is a folder now, or is removed already
            if not _link_above(folder, name) and _sum(folder / name) == before[name]:
                (folder / name).unlink()
    replace(folder / KEPT / _LIST, to_text(sums))


def _move(path: Path, to: Path) -> None:
    try:
        path.replace(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = to.with_name(f".{secrets.token_hex(8)}.hvd-elastic-new")  # `to` is on another disk
        try:
            shutil.copy2(path, beside)
            beside.replace(to)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def _link_above(folder: Path, name: str) -> str:
    """Return a folder above a file that is a link; "" if there is none."""
    above = list(Path(name).parents)[:-1]
    return next((str(each) for each in above if (folder / each).is_symlink()), "")


@contextlib.contextmanager
def _alone(kept: Path) -> Iterator[None]:
    """Exclude other processes that unpack into this folder. The lock is never held while waiting for input."""
    with (kept / _LOCK).open("ab") as lock:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _clear(kept: Path) -> None:
    for path in kept.glob(f"{_NEW}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD_S:
                shutil.rmtree(path, ignore_errors=True)


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and parts[0] != KEPT and not {"..", ".", ""} & {*parts}


def _sum(path: Path) -> str:
    """Return the checksum of a file. Raises ``OSError`` if it is not a regular file."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file")
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            whole.update(piece)
    return whole.hexdigest()


def _before(folder: Path) -> Iterator[tuple[str, str]]:
    """Return the names of the files that were unpacked there before, with their checksums."""
    try:
        found = json.loads((folder / KEPT / _LIST).read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(found, dict):
        yield from ((name, was) for name, was in found.items() if _is_inside(name))
