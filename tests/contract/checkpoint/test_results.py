"""The results of finished calls beside checkpoints, in every store."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.checkpoint.archive import catalog, read, results, write
from hvd_elastic_ext.checkpoint.archive.catalog import Retention
from hvd_elastic_ext.checkpoint.format.errors import Damaged, StoreFailed
from hvd_elastic_ext.checkpoint.format.manifest import RESULTS, Manifest
from hvd_elastic_ext.checkpoint.stores.store import Store
from tests.contract.checkpoint.conftest import Opener
from tests.support.checkpoints import (
    append,
    demand_same,
    held,
    identity,
    past,
    result_of,
    results_in,
    save,
    save_unsealed,
)

CONTENTS = [b"call 0", result_of(held(seed=1)), result_of(held(seed=2))]
"""The results of the calls 0, 1 and 2."""
LARGE = bytes(range(256)) * (40 << 10)
"""More than one block of checksums."""


def loaded(store: Store, made: Manifest, name: str) -> list[bytes]:
    with past() as slot:
        results.load(store, name, made.results, slot)
        return results_in(slot)


def names(made: Manifest) -> list[str]:
    return [each.file.name for each in made.results]


def test_a_checkpoint_brings_back_the_results_of_the_calls_before_its_own(store: Store, opener: Opener) -> None:
    commit, contents = held(seed=9, call=3), [*CONTENTS[:2], LARGE]
    with past(*contents) as slot:
        made = save(store, commit, past=slot)
    again = opener()
    assert read.verify(again, commit.name) == made
    assert [(each.call, each.step, each.commit) for each in made.results] == [(0, 0, 0), (1, 10, 1), (2, 20, 2)]
    assert loaded(again, made, commit.name) == contents
    (entry,) = catalog.listing(again)
    assert (entry.call, entry.whole, entry.lacks) == (3, True, "")
    demand_same(again, commit)


def test_results_of_later_calls_are_not_of_the_checkpoint(store: Store) -> None:
    with past(*CONTENTS) as slot:
        made = save(store, held(call=2), past=slot)
    assert [each.call for each in made.results] == [0, 1]


def test_each_result_is_written_once_for_all_checkpoints(store: Store, opener: Opener) -> None:
    with past(*CONTENTS[:2]) as slot:
        first = save(store, held(identity(1), call=2), past=slot)
        second = save(opener(), held(identity(2), call=2), past=slot)
        append(slot, CONTENTS[2], 2)
        third = save(store, held(identity(3), call=3), past=slot)
    assert names(first) == names(second) == names(third)[:2]
    assert opener().sizes(RESULTS).keys() == set(names(third))


def test_jobs_in_one_place_do_not_mix_their_results(store: Store) -> None:
    commits = [held(identity(1, lineage=lineage), seed=lineage, call=2) for lineage in (7, 8)]
    contents = [[b"none", result_of(held(seed=seed))] for seed in (7, 8)]
    made = []
    for commit, each in zip(commits, contents, strict=True):
        with past(*each) as slot:
            made.append(save(store, commit, past=slot))
    for manifest, commit, each in zip(made, commits, contents, strict=True):
        assert loaded(store, manifest, commit.name) == each


def test_a_file_that_no_manifest_names_is_not_trusted(store: Store) -> None:
    with past(*CONTENTS[:2]) as slot:
        (zero, one) = results.write(store, slot, 2)  # the writer was killed before the checkpoint was complete
        store.put(RESULTS, one.file.name, b"x" * one.file.bytes)
        made = save(store, held(call=2), past=slot)
    assert {zero.file.name, one.file.name}.isdisjoint(names(made))
    assert loaded(store, made, held().name) == CONTENTS[:2]


def test_pruning_keeps_what_a_kept_checkpoint_names_and_removes_the_rest(store: Store, opener: Opener) -> None:
    old = held(identity(1, lineage=5), seed=1, call=2)
    with past(b"another job", b"its result") as slot:
        save(store, old, past=slot)
    with past(*CONTENTS) as slot:
        made = [save(store, held(identity(n, generation=2), seed=n, call=3), past=slot) for n in (1, 2, 3)]
    left_over = "result-00007-0123456789abcdef-01234567.bin"
    store.put(RESULTS, left_over, b"of a writer that was killed")
    catalog.prune(opener(), Retention(last=2))
    assert opener().sizes(RESULTS).keys() == set(names(made[0]))
    for number in (2, 3):
        read.verify(opener(), held(identity(number, generation=2)).name)


def test_pruning_removes_no_result_while_a_checkpoint_is_in_progress(store: Store) -> None:
    """Its manifest may name any file."""
    commit = held(identity(2), call=3)
    with past(*CONTENTS) as slot:
        save(store, held(identity(1), call=2), past=slot)
        left_over = results.write(store, slot, 3)[2]
        store.put(commit.name, "shard-00000-of-00001-00.safetensors", b"the first part")
        catalog.prune(store, Retention(last=1))
        assert left_over.file.name in store.sizes(RESULTS)
        store.remove_folder(commit.name)
        catalog.prune(store, Retention(last=1))
        assert left_over.file.name not in store.sizes(RESULTS)


def test_a_checkpoint_whose_result_is_gone_before_its_end_is_not_completed(store: Store) -> None:
    with past(*CONTENTS[:2]) as slot:
        finished = results.write(store, slot, 2)
    store.remove(RESULTS, finished[1].file.name)
    commit = held(call=2)
    files = save_unsealed(store, commit)
    with pytest.raises(StoreFailed, match=f"{RESULTS}/result-00001-.* now missing or incomplete"):
        write.seal(store, commit.record, files, parts=2, world=2, results=finished)
    assert not catalog.listing(store)[0].sealed


@pytest.mark.parametrize("how", ["shorter", "missing", "changed"])
def test_a_damaged_result_makes_the_checkpoint_damaged_with_the_file_named(store: Store, how: str) -> None:
    commit = held(call=2)
    with past(*CONTENTS[:2]) as slot:
        made = save(store, commit, past=slot)
    file = made.results[1].file
    if how == "missing":
        store.remove(RESULTS, file.name)
    else:
        store.put(RESULTS, file.name, CONTENTS[1][:-1] + b"?" * (how == "changed"))
    why = {
        "missing": f"{RESULTS}/{file.name} is missing",
        "shorter": f"{RESULTS}/{file.name} has {file.bytes - 1} bytes instead of {file.bytes}",
        "changed": f"{file.name}: block 0 of 1 is not what was written",
    }[how]
    with pytest.raises(Damaged, match=why):
        read.verify(store, commit.name)
    (entry,) = catalog.listing(store)
    assert (entry.whole, entry.why) == ((True, "") if how == "changed" else (False, why))
    with past() as slot:
        with pytest.raises(Damaged, match="result-00001"):
            results.load(store, commit.name, made.results, slot)
        assert results_in(slot) == []
