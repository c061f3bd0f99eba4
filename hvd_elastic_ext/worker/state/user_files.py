"""Checkpoints in the user's own format: files that a function of theirs writes, and another one reads.

The files take the place of the State's own commit for one checkpoint: they lie in commit memory as tensors of bytes,
and are written, verified and loaded like any checkpoint. Training waits for the function, not for storage.
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
"""Files in one checkpoint."""
MAPPED: Final = 1 << 20
"""Bytes from which on a file is mapped and not read: a process has no more than some 65 thousand mappings."""
PREFIX: Final = "hvd-elastic-files-"
LEFT_S: Final = 60.0
"""A folder that was touched since then may be one that is just being made."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a State's checkpoints are made of: ``save(folder)`` writes files there, ``load(folder)`` takes them back.

    ``folder`` is a :class:`pathlib.Path`, empty before ``save``, and gone after either. ``save`` runs on rank 0 alone,
    right after a commit, ``load`` on every rank that finds the checkpoint, before it trains: neither may call
    Horovod. Whatever ``load`` does not bring back has its initial value.

    Raises :class:`hvd_elastic_ext.core.errors.UsageError` for what cannot be called.
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
    """``value`` if it is the user's functions; None if it is something else, which may be meant as a value of a State.

    Raises :class:`UsageError` for functions that are given in another way.
    """
    if isinstance(value, Checkpoint):
        return value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else [value]
    if any(map(callable, inner)):
        raise UsageError("checkpoint= takes elastic.Checkpoint(save=…, load=…), which says what each function is for")
    return None


class Calls:
    """Of the functions: which one runs. What all ranks have to do alike is not for it, as no other rank does."""

    def __init__(self) -> None:
        self._under_way = ""

    @contextmanager
    def of(self, function: str) -> Iterator[None]:
        """One runs, as long as the context lasts."""
        self._under_way = function
        try:
            yield
        finally:
            self._under_way = ""

    def demand_none(self) -> None:
        """Raise :class:`UsageError` if one runs."""
        if self._under_way:
            raise UsageError(
                f"{self._under_way} of checkpoint= commits, assigns a part of the State or looks for host updates; "
                "no other rank does so there"
            )


@contextmanager
def written(own: Checkpoint, local: bytes) -> Iterator[Contents]:
    """Have the files written, and give them as what a commit may hold, as long as the context lasts.

    Raises :class:`StateError` if there is none, or something that is no file; what ``save`` raises passes through.
    Random generators are after ``save`` what they were before: training continues as if there had been no checkpoint.
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
    """An empty one that goes with the context, and with it what processes that were killed have left of theirs."""
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
    """Remove this user's folders that no process holds any more."""
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
        raise StateError(f"save of checkpoint= has written {len(paths)} files; more than {MAX_FILES} are not taken")
    for path in paths:
        name = path.relative_to(folder).as_posix()
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            raise StateError(f"save of checkpoint= has made {name}, which is no file: links and the like are not kept")
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
    """Whether a commit is such files, and not a State."""
    return trees.decode(commit.tree).keys() == {FILES}


def take_back(own: Checkpoint | None, commit: Commit) -> None:
    """Have the files of ``commit`` loaded. Raises :class:`StateError`; what ``load`` raises is its cause."""
    if own is None:
        raise StateError(
            "it holds files that a save function of the user's wrote, and this State has none; "
            "give it checkpoint=elastic.Checkpoint(save=…, load=…)"
        )
    files = read(trees.decode(commit.tree)[FILES], lambda index, kind: commit.views[index])
    parts = files.values() if isinstance(files, dict) else [files]
    if not all(isinstance(data, Tensor) and data.dtype == torch.uint8 for data in parts):
        raise StateError("it has something in it that is no file")
    try:
        with _folder() as folder:
            put(folder, {name: data.numpy() for name, data in files.items()})
            _load(own, folder)
    except ValueError as error:
        raise StateError(f"it has a file that is none: {error}") from error
    except OSError as error:
        raise StateError(f"its files cannot be written for load of checkpoint=: {error}; see TMPDIR") from error


def _load(own: Checkpoint, folder: Path) -> None:
    try:
        own.load(folder)
    except Exception as error:
        why = " ".join(str(error).split())
        raise StateError(f"load of checkpoint= raised {type(error).__name__}: {why}") from error
