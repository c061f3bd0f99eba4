"""Results between a slot's memory and storage: which are taken, and what damage does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.checkpoint.archive import catalog, read, results
from hvd_elastic_ext.checkpoint.archive.catalog import Retention
from hvd_elastic_ext.checkpoint.format.errors import Damaged
from hvd_elastic_ext.checkpoint.format.manifest import RESULTS
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.errors import Permanent
from tests.support.checkpoints import held, identity, past, result_of, results_in, save

CONTENTS = [b"call 0", result_of(held(seed=1)), result_of(held(seed=2))]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def spoil(slot: int, call: int) -> None:
    """Change a byte of a result in memory."""
    at = call_results.entries(slot)[call].at
    os.pwrite(slot, bytes([os.pread(slot, 1, at)[0] ^ 1]), at)


def test_a_checkpoint_of_an_unknown_call_has_no_results(store: LocalStore) -> None:
    with past(*CONTENTS) as slot:
        assert save(store, held(call=0), past=slot).results == ()
    assert store.sizes(RESULTS) == {}


def test_a_result_that_was_not_kept_is_told_and_only_that_checkpoint_cannot_be_resumed(store: LocalStore) -> None:
    with past(*CONTENTS[:2]) as slot:
        made = save(store, held(call=3), past=slot)
    assert made.lacks == "it is of call 3, and the result of call 2 was not kept"
    (entry,) = catalog.listing(store)
    assert (entry.whole, entry.lacks) == (True, made.lacks)
    with past() as slot:
        assert save(store, held(identity(2), call=1), past=slot).lacks == ""


def test_a_result_that_is_damaged_in_memory_is_not_stored(store: LocalStore) -> None:
    with past(*CONTENTS) as slot:
        spoil(slot, 1)
        with pytest.raises(Permanent, match="the result of call 1 in memory is damaged"):
            results.write(store, slot, 3)
        assert not [name for name in store.sizes(RESULTS) if name.startswith("result-00001")]
        os.pwrite(slot, b"?", call_results.entries(slot)[0].at - 1)
        with pytest.raises(Permanent, match="results of finished calls in memory are damaged"):
            results.write(store, slot, 3)


def test_other_results_in_a_slot_give_way_to_those_of_the_checkpoint(store: LocalStore) -> None:
    with past(*CONTENTS) as slot:
        made = save(store, held(call=3), past=slot)
    with past(CONTENTS[0], b"of another program", b"too") as slot:
        results.load(store, held().name, made.results, slot)
        assert results_in(slot) == CONTENTS
        entries = call_results.entries(slot)
        assert [(each.call, each.step, each.number) for each in entries] == [(0, 0, 0), (1, 10, 1), (2, 20, 2)]


def test_more_results_of_the_same_calls_stay(store: LocalStore) -> None:
    with past(*CONTENTS) as slot:
        made = save(store, held(call=2), past=slot)
        results.load(store, held().name, made.results, slot)
        assert results_in(slot) == CONTENTS


def test_a_damaged_past_gives_way_too(store: LocalStore) -> None:
    with past(*CONTENTS) as slot:
        made = save(store, held(call=3), past=slot)
        os.pwrite(slot, b"?", call_results.entries(slot)[0].at - 1)
        results.load(store, held().name, made.results, slot)
        assert results_in(slot) == CONTENTS


def test_a_file_that_is_not_the_result_that_its_manifest_tells_of_is_refused(store: LocalStore) -> None:
    """Checksums and manifest may be right, and the digest of the result another one."""
    with past(*CONTENTS) as slot:
        made = save(store, held(call=2), past=slot)
    zero, one = made.results
    wrong = [zero, type(one)(one.file, one.step, one.commit, one.digest ^ 1)]
    with past() as slot:
        with pytest.raises(Damaged, match="result 1 is damaged"):
            results.load(store, held().name, wrong, slot)
        assert results_in(slot) == []


def test_a_result_is_read_without_the_checkpoint_s_own_files(store: LocalStore) -> None:
    with past(*CONTENTS) as slot:
        made = save(store, held(call=3), past=slot)
    assert [bytes(read.result(store, held().name, each)) for each in made.results] == CONTENTS


def test_the_results_of_a_checkpoint_of_a_later_version_stay(store: LocalStore, tmp_path: Path) -> None:
    with past(*CONTENTS) as slot:
        made = save(store, held(identity(1), call=2), past=slot)
        save(store, held(identity(2), call=1), past=slot)
    manifest = tmp_path / held(identity(1)).name / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 3', '"version": 4'))
    catalog.prune(store, Retention(last=1))
    assert made.results[1].file.name in store.sizes(RESULTS)
