"""Whether checkpoints can be written somewhere is found out at the start; what may pass is no answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hvd_elastic_ext.checkpoint.archive import write
from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.stores.fsspec_store import FsspecStore
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.checkpoint.stores.store import Store, open_store
from hvd_elastic_ext.core.errors import Permanent, Transient
from tests.support.checkpoints import held, identity, save


class Failing:
    """The operating system, in which making a folder or a file fails."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def mkdir(self, *_: Any, **__: Any) -> None:
        raise self._error


class Refusing(MemoryFileSystem):  # type: ignore[misc]
    """``error`` is what comes of writing or, with ``keeps``, of removing."""

    cachable = False

    def __init__(self, error: Exception, *, keeps: bool = False) -> None:
        super().__init__()
        self.store, self.pseudo_dirs = {}, [""]  # fsspec shares them among all
        self._error, self._keeps = error, keeps

    def pipe_file(self, path: str, value: bytes, **more: Any) -> None:
        if not self._keeps:
            raise self._error
        super().pipe_file(path, value, **more)

    def rm_file(self, path: str) -> None:
        if self._keeps:
            raise self._error


def local(error: OSError, folder: Path) -> Store:
    return LocalStore(folder / "made", Failing(error))


def remote(error: Exception, folder: Path) -> Store:
    return FsspecStore("s3://bucket/x", Refusing(error), "/x", "s3")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR])
@pytest.mark.parametrize("kind", [local, remote])
def test_what_no_later_try_can_change_is_told(kind: Callable[[Any, Path], Store], code: int, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"give"):
        write.probe(kind(OSError(code, os.strerror(code)), tmp_path))


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="make the bucket or folder first"):
        write.probe(remote(FileNotFoundError("The specified bucket does not exist"), tmp_path))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("kind", [local, remote])
def test_what_may_pass_ends_no_job(kind: Callable[[Any, Path], Store], code: int, tmp_path: Path) -> None:
    demand_passes(kind(OSError(code, os.strerror(code)), tmp_path))


@pytest.mark.parametrize("error", [TimeoutError("no answer"), RuntimeError("503 Slow Down"), ConnectionError("reset")])
def test_an_object_store_that_does_not_answer_ends_no_job(error: Exception, tmp_path: Path) -> None:
    demand_passes(remote(error, tmp_path))


def demand_passes(store: Store) -> None:
    """The store fails, and a job may start nevertheless."""
    with pytest.raises(Transient):
        store.put("folder", "file", b"")
    write.probe(store)


def test_storage_that_lets_nothing_be_removed_can_be_written() -> None:
    files = Refusing(PermissionError("403"), keeps=True)
    write.probe(FsspecStore("s3://bucket/x", files, "/x", "s3"))
    assert len(files.store) == 1, "the file of the try has stayed"


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/deep", "/dev/null", "/dev/null/x"])
def test_a_host_that_could_write_no_checkpoint_says_so_when_it_looks_for_one(place: str) -> None:
    """It was told when the first checkpoint was due; what was trained until then was lost."""
    answer = agent_requests.answered({"do": "load", "place": place, "ranks": {}, "sides": {}})
    assert (answer["unwritable"], answer["for_good"]) == (True, True)
    assert "; give " in answer["failed"]
    assert write.PROBE not in answer["failed"]


def test_a_host_that_could_write_one_leaves_nothing_of_the_try(tmp_path: Path) -> None:
    assert agent_requests.answered({"do": "load", "place": str(tmp_path / "x"), "ranks": {}, "sides": {}}) == {}
    assert list((tmp_path / "x").iterdir()) == []


def test_a_training_that_is_done_needs_no_place_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(open_store(str(tmp_path)), held(identity(9)), facts={"finished": "this"})

    def refuse(store: Store) -> None:
        raise Permanent("Read-only file system; give another folder")

    monkeypatch.setattr(write, "probe", refuse)
    request = {"do": "load", "place": str(tmp_path), "ranks": {"0": 0}, "sides": {}, "done": "this"}
    assert agent_requests.answered(request)["done"] is True
    assert agent_requests.answered({**request, "done": "another"})["unwritable"] is True
