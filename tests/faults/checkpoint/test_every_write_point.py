"""A save and a removal in which something goes wrong, at every point at which anything is written, one after another.

On the made-up disk all of them are tried, and every way to end. Whatever happens: what was sealed before loads as it
was, and what was being saved is there whole or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint.archive import catalog, read, results
from hvd_elastic_ext.checkpoint.archive.catalog import Retention
from hvd_elastic_ext.checkpoint.format.manifest import RESULTS
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.core.errors import ElasticError
from tests.support.checkpoints import (
    Held,
    demand_same,
    held,
    identity,
    newest_intact,
    past,
    result_of,
    results_in,
    save,
    save_unsealed,
)
from tests.support.fake_disk import Disk, End, Fault, Killed

PLACE = Path("/job/checkpoints")
FIRST = held(identity(1), seed=1)
SECOND = held(identity(2), seed=2)
LATER = held(identity(1, generation=2), seed=3)

WAYS = [
    (Fault.ERROR, End.KILLED),
    (Fault.FULL, End.KILLED),
    *itertools.product([Fault.GONE, Fault.KILLED], End),
    (Fault.ERROR, End.POWER),
    (Fault.FULL, End.NAMES),
]
"""What goes wrong, and how the machine ends after it."""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read thousands of times here, and to start threads for it takes longer than all the rest."""

    def one_after_another(threads: int, work: Callable[[Any], None], jobs: Sequence[Any]) -> None:
        for job in jobs:
            work(job)

    monkeypatch.setattr(read, "_in_threads", one_after_another)


def store_on(disk: Disk) -> Store:
    return LocalStore(PLACE, disk)


@cache
def with_first() -> Disk:
    disk = Disk()
    save(store_on(disk), FIRST)
    return disk


@cache
def with_nothing() -> Disk:
    return Disk()


def points(scene: Callable[[], Disk], work: Callable[[Store], object]) -> int:
    disk = scene().after(End.POWER)
    work(store_on(disk))
    return disk.calls


def broken(scene: Callable[[], Disk], work: Callable[[Store], object], fault: Fault, at: int) -> tuple[Disk, bool]:
    """The disk after ``work`` was disturbed there, and whether ``work`` says that it is done."""
    disk = Disk(scene().after(End.POWER).root, fault=fault, at=at)
    try:
        work(store_on(disk))
    except (ElasticError, Killed):
        done = False
    else:
        done = True
    assert disk.struck, "the fault was not met"
    return disk, done


def in_turn(fault: Fault, end: End, at: int) -> bool:
    """Each point gets the longer look after one of the ways."""
    return (at + WAYS.index((fault, end))) % len(WAYS) == 0


@pytest.mark.parametrize(("fault", "end"), WAYS, ids=lambda value: value.name.lower())
def test_a_save_is_whole_or_absent(fault: Fault, end: End) -> None:
    count = points(with_first, lambda store: save(store, SECOND))
    assert count > 30
    for at in range(count):
        disk, done = broken(with_first, lambda store: save(store, SECOND), fault, at)
        store = store_on(disk.after(end))
        demand_same(store, FIRST)
        newest, passed_over = newest_intact(store)
        assert not passed_over, f"at {at}: what is sealed is whole"
        assert newest in (FIRST.name, SECOND.name)
        if newest == SECOND.name:
            demand_same(store, SECOND)
        else:
            assert not done, f"at {at}: a save that was said to be done is gone"
        if in_turn(fault, end, at):
            demand_goes_on(store)


def demand_goes_on(store: Store) -> None:
    """It can be tried again, and what the failure left goes with a later world."""
    save(store, SECOND)
    demand_same(store, SECOND)
    save(store, LATER)
    catalog.prune(store, Retention(last=1))
    assert store.folders() == [LATER.name]
    demand_same(store, LATER)


@pytest.mark.parametrize(("fault", "end"), WAYS, ids=lambda value: value.name.lower())
def test_the_very_first_save_is_whole_or_absent(fault: Fault, end: End) -> None:
    for at in range(points(with_nothing, lambda store: save(store, FIRST))):
        disk, done = broken(with_nothing, lambda store: save(store, FIRST), fault, at)
        store = store_on(disk.after(end))
        newest, passed_over = newest_intact(store)
        assert not passed_over
        if newest is not None:
            demand_same(store, FIRST)
        else:
            assert not done, f"at {at}"
        save(store, FIRST)
        demand_same(store, FIRST)


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.FULL])
def test_a_save_that_fails_leaves_no_half_written_file(fault: Fault) -> None:
    whole = undisturbed_sizes()
    for at in range(points(with_first, lambda store: save(store, SECOND))):
        disk, _ = broken(with_first, lambda store: save(store, SECOND), fault, at)
        sizes = store_on(disk.after(End.KILLED)).sizes(SECOND.name)
        assert all(whole[name.rpartition("-")[0]] == size for name, size in sizes.items() if "manifest" not in name)


def undisturbed_sizes() -> dict[str, int]:
    """Lengths of the files of an undisturbed save, by their names without the part that is never the same."""
    disk = Disk()
    save(store_on(disk), SECOND)
    return {name.rpartition("-")[0]: size for name, size in store_on(disk).sizes(SECOND.name).items()}


KEPT = [held(identity(number, generation=2), seed=number) for number in (4, 5)]


@cache
def with_many() -> Disk:
    disk = Disk()
    store = store_on(disk)
    for number in (1, 2, 3):
        save(store, held(identity(number), seed=number))
    save_unsealed(store, held(identity(9), seed=9))
    for commit in KEPT:
        save(store, commit)
    return disk


@pytest.mark.parametrize(("fault", "end"), WAYS, ids=lambda value: value.name.lower())
def test_a_removal_leaves_no_partial_checkpoint(fault: Fault, end: End) -> None:
    def prune(store: Store) -> object:
        return catalog.prune(store, Retention(last=2))

    for at in range(points(with_many, prune)):
        disk, _ = broken(with_many, prune, fault, at)
        store = store_on(disk.after(end))
        for commit in KEPT:
            demand_same(store, commit)
        for entry in catalog.listing(store):
            if entry.whole and in_turn(fault, end, at):
                read.verify(store, entry.name)
            if not entry.whole:
                assert not entry.sealed, f"at {at}: what is not whole is not there, rather than damaged"
        prune(store)
        assert sorted(store.folders()) == [commit.name for commit in KEPT]


CALL_1, CALL_2 = (held(seed=seed, call=call) for seed, call in ((1, 1), (2, 2)))
IN_CALL_2 = held(identity(1), seed=4, call=2)
IN_CALL_3 = held(identity(2), seed=5, call=3)
CONTENTS = [b"call 0", result_of(CALL_1), result_of(CALL_2)]
IN_A_LATER_WORLD = held(identity(1, generation=2), seed=6, call=3)


def save_call(store: Store, commit: Held) -> object:
    with past(*CONTENTS) as slot:
        return save(store, commit, past=slot)


@cache
def in_call_2() -> Disk:
    disk = Disk()
    save_call(store_on(disk), IN_CALL_2)
    return disk


def demand_results(store: Store, commit: Held) -> None:
    made = read.verify(store, commit.name)
    with past() as slot:
        results.load(store, commit.name, made.results, slot)
        assert results_in(slot) == CONTENTS[: commit.record.call]


@pytest.mark.parametrize(("fault", "end"), WAYS, ids=lambda value: value.name.lower())
def test_a_save_with_a_new_result_is_whole_or_absent_and_leaves_the_results_of_the_one_before(
    fault: Fault, end: End
) -> None:
    for at in range(points(in_call_2, lambda store: save_call(store, IN_CALL_3))):
        disk, done = broken(in_call_2, lambda store: save_call(store, IN_CALL_3), fault, at)
        store = store_on(disk.after(end))
        demand_results(store, IN_CALL_2)
        newest, passed_over = newest_intact(store)
        assert not passed_over, f"at {at}: what is sealed is whole"
        assert newest == IN_CALL_3.name or not done, f"at {at}: a save that was said to be done is gone"
        if newest == IN_CALL_3.name:
            demand_results(store, IN_CALL_3)
        if in_turn(fault, end, at):
            save_call(store, IN_CALL_3)
            demand_results(store, IN_CALL_3)
            save_call(store, IN_A_LATER_WORLD)
            catalog.prune(store, Retention(last=1))
            made = read.read_manifest(store, IN_A_LATER_WORLD.name)
            assert store.sizes(RESULTS).keys() == {each.file.name for each in made.results}
            demand_results(store, IN_A_LATER_WORLD)


@cache
def with_results_to_remove() -> Disk:
    disk = Disk()
    store = store_on(disk)
    with past(b"another", b"job") as slot:
        save(store, held(identity(1, lineage=5), call=2), past=slot)
    save_call(store, IN_CALL_3)
    save_call(store, IN_A_LATER_WORLD)
    return disk


@pytest.mark.parametrize(("fault", "end"), WAYS, ids=lambda value: value.name.lower())
def test_a_removal_takes_no_result_that_a_checkpoint_names(fault: Fault, end: End) -> None:
    def prune(store: Store) -> object:
        return catalog.prune(store, Retention(last=1))

    for at in range(points(with_results_to_remove, prune)):
        disk, _ = broken(with_results_to_remove, prune, fault, at)
        store = store_on(disk.after(end))
        demand_results(store, IN_A_LATER_WORLD)
        assert all(entry.whole or not entry.sealed for entry in catalog.listing(store)), f"at {at}"
        prune(store)
        assert sorted(store.folders()) == [IN_A_LATER_WORLD.name, RESULTS]
        assert len(store.sizes(RESULTS)) == 3
