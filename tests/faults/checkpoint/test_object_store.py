"""The same for stores that are not a file system: every request that changes something fails in its turn."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint.archive import catalog
from hvd_elastic_ext.checkpoint.archive.catalog import Retention
from hvd_elastic_ext.checkpoint.stores.fsspec_store import FsspecStore
from hvd_elastic_ext.checkpoint.stores.store import open_store
from hvd_elastic_ext.core.errors import ElasticError
from tests.support.checkpoints import demand_same, held, identity, newest_intact, save
from tests.support.fake_disk import Killed

FIRST, SECOND = held(identity(1), seed=1), held(identity(2), seed=2)
CHANGES = ("open", "pipe_file", "rm_file", "rm", "makedirs")

_count = itertools.count()


class Failing:
    """fsspec's file system, but for the request number ``at``, which fails; if ``for_good``, all after it do, too."""

    def __init__(self, files: Any, at: int, *, for_good: type[BaseException] | None) -> None:
        self._files = files
        self._at = at
        self._for_good = for_good
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name not in CHANGES:
            return found

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count()
            made = found(*args, **kwargs)
            return Written(made, self) if name == "open" else made

        return counted

    def count(self) -> None:
        number, self.calls = self.calls, self.calls + 1
        if number == self._at or (self._for_good is not None and number > self._at >= 0):
            raise (self._for_good or OSError)("the store is away")


class Written:
    """An upload of which every part may fail."""

    def __init__(self, file: Any, counter: Failing) -> None:
        self._file = file
        self._counter = counter

    def write(self, data: Any) -> None:
        self._counter.count()
        self._file.write(data)

    def close(self) -> None:
        self._counter.count()
        self._file.close()

    def discard(self) -> None:
        self._file.discard()


def store_with(place: str, at: int = -1, *, for_good: type[BaseException] | None = None) -> tuple[FsspecStore, Failing]:
    opened = open_store(place)
    assert isinstance(opened, FsspecStore)
    failing = Failing(opened._files, at, for_good=for_good)
    return FsspecStore(place, failing, opened._root, "memory"), failing


def new_place() -> str:
    return f"memory://faults-{next(_count)}"


@pytest.mark.parametrize("for_good", [None, OSError, Killed])
def test_a_save_is_whole_or_absent(for_good: type[BaseException] | None) -> None:
    counted, counter = store_with(new_place())
    save(counted, SECOND)
    assert counter.calls > 20
    for at in range(counter.calls):
        place = new_place()
        save(open_store(place), FIRST)
        failing, _ = store_with(place, at, for_good=for_good)
        with pytest.raises((ElasticError, Killed)):
            save(failing, SECOND)
        store = open_store(place)
        demand_same(store, FIRST)
        assert newest_intact(store) == (FIRST.name, {}), f"at {at}"
        save(store, SECOND)
        demand_same(store, SECOND)


@pytest.mark.parametrize("for_good", [None, OSError, Killed])
def test_a_removal_leaves_no_partial_checkpoint(for_good: type[BaseException] | None) -> None:
    for at in range(2):
        place = new_place()
        for commit in (FIRST, SECOND):
            save(open_store(place), commit)
        failing, _ = store_with(place, at, for_good=for_good)
        with pytest.raises((ElasticError, Killed)):
            catalog.prune(failing, Retention(last=1))
        store = open_store(place)
        demand_same(store, SECOND)
        assert all(entry.whole or not entry.sealed for entry in catalog.listing(store))
