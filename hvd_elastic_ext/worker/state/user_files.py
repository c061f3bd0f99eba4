"""Checkpoints in the user's own format: one function of the user writes files, and another one reads them.

The files replace the State's own commit in one checkpoint. They are in commit memory as tensors of bytes, and are
written, verified and loaded like any checkpoint. Training waits for the function, but not for storage.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.format.user_files import FILES, is_inside, put
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core.errors import StateError, UsageError
from hvd_elastic_ext.worker.commits.buffer import Commit, Contents
from hvd_elastic_ext.worker.parts import rng

MAX_FILES: Final = 100_000
"""Most files in one checkpoint."""
MAPPED: Final = 1 << 20
"""Smallest file in bytes that is mapped instead of read. A process can have only about 65 thousand mappings."""
PREFIX: Final = "hvd-elastic-files-"
LEFT_S: Final = 60.0
"""Seconds in which a folder may still be under construction, and is not removed."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The user's functions for checkpoints: ``save(folder)`` writes files there, ``load(folder)`` reads them.

    ``folder`` is a :class:`pathlib.Path`. It is empty before ``save``, and is removed after each function. ``save``
    runs only on rank 0, right after a commit. ``load`` runs on every rank that finds the checkpoint, before it trains.
    Neither may call Horovod. A value that ``load`` does not restore has its initial value.

    Raises :class:`hvd_elastic_ext.core.errors.UsageError` for an argument that cannot be called.
    """

    save: Callable[[Path], object]
    load: Callable[[Path], object]

    def __post_init__(self) -> None:
        for name in ("save", "load"):
            if not callable(getattr(self, name)):
                raise UsageError(
                    f"elastic.Checkpoint: {name}={getattr(self, name)!r} cannot be called; give a function of a folder"
                )


def chosen(value: object) -> Checkpoint | None:
    """Return ``value`` if it is a :class:`Checkpoint`; None for another value, which may be a plain value of the State.

    Raises :class:`UsageError` for functions that are given in another way.
    """
    if isinstance(value, Checkpoint):
        return value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else [value]
    if any(map(callable, inner)):
        raise UsageError("checkpoint= takes elastic.Checkpoint(save=…, load=…), which says what each function is for")
    return None


class Calls:
    """Records which of the functions runs. It must not call operations of all ranks, as the other ranks do not."""

    def __init__(self) -> None:
        self._under_way = ""

    @contextmanager
    def of(self, function: str) -> Iterator[None]:
        """Note that ``function`` runs as long as the context lasts."""
        self._under_way = function
        try:
            yield
        finally:
            self._under_way = ""

    def demand_none(self) -> None:
        """Raise :class:`UsageError` if one of them runs."""
        if self._under_way:
            raise UsageError(
                f"{self._under_way} of checkpoint= commits, assigns a part of the State or looks for host updates; "
                "no other rank does so there"
            )


@contextmanager
def written(own: Checkpoint, local: bytes) -> Iterator[Contents]:
    """Let ``save`` write the files, and give them as contents of a commit, which are valid within the context.

    Raises :class:`StateError` if there is no file, or something that is not a file, and every error of ``save``.
    Restores the random generators after ``save``, so that training continues as if there were no checkpoint.
    """
    tensors: list[Tensor] = []
    with _folder() as folder:
        with rng.untouched():
            own.save(folder)
        try:
            tree = trees.encode({FILES: write(dict(_files(folder)), tensors)})
            yield Contents(tree, tensors, [True] * len(tensors), local)
        finally:
            tensors.clear()  # on NFS a mapped file stays in the folder, under another name


@contextmanager
def _folder() -> Iterator[Path]:
    """Give an empty folder, and remove it at the end. Also remove the folders that killed processes have left."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        held = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # if folders cannot be locked, no folder counts as left behind
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(held)


def _sweep(place: Path) -> None:
    """Remove this user's folders that no process has locked any more."""
    for path in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                facts = os.fstat(held)
                if facts.st_uid == os.getuid() and time.time() - facts.st_mtime > LEFT_S:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(held)


def _files(folder: Path) -> Iterator[tuple[str, Tensor]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    if not paths:
        raise StateError("save of checkpoint= has written no file into its folder")
    if len(paths) > MAX_FILES:
        raise StateError(f"save of checkpoint= has written {len(paths)} files; at most {MAX_FILES} are allowed")
    for path in paths:
        name = path.relative_to(folder).as_posix()
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            raise StateError(
                f"save of checkpoint= has made {name}, which is not a file: links and the like are not kept"
            )
        if not is_inside(name):
            raise StateError(f"save of checkpoint= has made {ascii(name)[:80]}, a name that is not UTF-8")
        yield name, _bytes_of(path, facts.st_size)


def _bytes_of(path: Path, length: int) -> Tensor:
    if not length:
        return torch.empty(0, dtype=torch.uint8)
    if length < MAPPED:
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    return torch.from_file(str(path), shared=False, size=length, dtype=torch.uint8)


def are_in(commit: Commit) -> bool:
    """Whether a commit consists of such files, and not of a State."""
    return trees.decode(commit.tree).keys() == {FILES}


def take_back(own: Checkpoint | None, commit: Commit) -> None:
    """Let ``load`` read the files of ``commit``. Raises :class:`StateError`; an error of ``load`` is its cause."""
    if own is None:
        raise StateError(
            "it holds files that a save function has written, and this State has no functions; "
            "give it checkpoint=elastic.Checkpoint(save=…, load=…)"
        )
    files = read(trees.decode(commit.tree)[FILES], lambda index, kind: commit.views[index])
    parts = files.values() if isinstance(files, dict) else [files]
    if not all(isinstance(data, Tensor) and data.dtype == torch.uint8 for data in parts):
        raise StateError("it contains something that is not a file")
    try:
        with _folder() as folder:
            put(folder, {name: data.numpy() for name, data in files.items()})
            _load(own, folder)
    except ValueError as error:
        raise StateError(f"one of its files is not valid: {error}") from error
    except OSError as error:
        raise StateError(f"its files cannot be written for load of checkpoint=: {error}; see TMPDIR") from error


def _load(own: Checkpoint, folder: Path) -> None:
    try:
        own.load(folder)
    except Exception as error:
        why = " ".join(str(error).split())
        raise StateError(f"load of checkpoint= raised {type(error).__name__}: {why}") from error
