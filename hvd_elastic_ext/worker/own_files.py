"""Checkpoints in the user's own format: files that a function of theirs writes, and another one reads.

The files take the place of the State's own commit for one checkpoint: they are laid into commit memory as tensors of
bytes, and go the way of all checkpoints from there. So training waits for the function and not for storage, and
writing, verifying, loading and letting go are as ever.
"""

from __future__ import annotations

import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.own_files import FILES, is_inside
from hvd_elastic_ext.worker.commits import manifest
from hvd_elastic_ext.worker.commits.buffer import Commit, Contents

MOST: Final = 100_000
"""Files in one checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a State's checkpoints are made of: ``save(folder)`` writes files there, ``load(folder)`` takes them back.

    ``folder`` is a :class:`pathlib.Path`, empty before ``save``, and gone after either. ``save`` runs on rank 0 alone,
    right after a commit, ``load`` on every rank that finds the checkpoint, before it trains: neither may call
    Horovod. Whatever ``load`` does not bring back begins anew.

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


@contextmanager
def written(own: Checkpoint, local: bytes) -> Iterator[Contents]:
    """Have the files written, and give them as what a commit may hold, as long as the context lasts.

    Raises :class:`Permanent` if there is none, or something that is no file; what ``save`` raises passes through.
    """
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as name:
        own.save(Path(name))
        tensors: list[Tensor] = []
        tree = manifest.write_one(FILES, dict(_files(Path(name))), tensors)
        yield Contents(pickle.dumps({FILES: tree}, protocol=5), tensors, [True] * len(tensors), local)


def _files(folder: Path) -> Iterator[tuple[str, Tensor]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    if not paths:
        raise Permanent("save of checkpoint= has written no file into its folder")
    if len(paths) > MOST:
        raise Permanent(f"save of checkpoint= has written {len(paths)} files; more than {MOST} are not taken")
    for path in paths:
        name = path.relative_to(folder).as_posix()
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            raise Permanent(f"save of checkpoint= has made {name}, which is no file: links and the like are not kept")
        yield name, _bytes_of(path, facts.st_size)


def _bytes_of(path: Path, length: int) -> Tensor:
    if not length:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_file(str(path), shared=False, size=length, dtype=torch.uint8)


def are_in(commit: Commit) -> bool:
    """Whether a commit is such files, and not a State."""
    return bool(manifest.read(commit.tree, _no_tensor, admitted=frozenset()).keys() == {FILES})


def take_back(own: Checkpoint | None, commit: Commit) -> None:
    """Have the files of ``commit`` loaded. Raises :class:`Permanent`; what ``load`` raises is its cause."""
    if own is None:
        raise Permanent(
            "it holds files that a save function of the user's wrote, and this State has none; "
            "give it checkpoint=elastic.Checkpoint(save=…, load=…)"
        )
    trees = manifest.read(commit.tree, _no_tensor, admitted=frozenset())
    files = manifest.read(trees[FILES], lambda index, kind: commit.views[index], admitted=frozenset())
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as name:
        _put(Path(name), files)
        try:
            own.load(Path(name))
        except Exception as error:
            why = " ".join(str(error).split())
            raise Permanent(f"load of checkpoint= raised {type(error).__name__}: {why}") from error


def _put(folder: Path, files: Mapping[str, Tensor]) -> None:
    """Write the files. What lay on storage may be anything: no name leads out of the folder."""
    for name, data in files.items():
        if not is_inside(name) or not isinstance(data, Tensor) or data.dtype != torch.uint8:
            raise Permanent(f"it has {str(name)[:80]!r}, which is no file of a folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            data.numpy().tofile(file)


def _no_tensor(index: int, kind: str) -> Any:
    raise Permanent("a commit's tree has a tensor where none can be; run the same code on every rank")
