"""Sides: what is sealed is believed, anything else is not."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.commit_record import PAGE, Identity, Record
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.memory import Side, open_sides, populate
from tests.support.waiting import wait_until
from tests.unit.worker.made_commits import buffer_over, contents, identity, memory_files, seen

HEAD = 12  # eight letters and a checksum
PLACES = (0, PAGE // 2)


def record(number: int, *, data: int = 100) -> Record:
    return Record(Identity(1, 2, 3, number), number, loose=10, data=data, layout=5, tree=6, local=7)


def sealed(descriptor: int, *numbers: int) -> Side:
    side = Side(descriptor)
    side.reserve(1000)
    for sequence, number in enumerate(numbers, start=1):
        side.seal(sequence, record(number))
    return side


def test_the_newest_record_of_a_side_is_read_by_the_next_process(descriptor: int) -> None:
    for numbers in ([1], [1, 2], [1, 2, 3], [1, 2, 3, 4]):
        sealed(descriptor, *numbers)
        assert Side(descriptor).record() == (len(numbers), record(numbers[-1]))


def test_a_foreign_commit_is_still_known_as_one_by_the_next_process(descriptor: int) -> None:
    side = sealed(descriptor)
    foreign = Record(Identity(-(2**63), 2**63 - 1, 0, 1), 3, loose=0, data=1, layout=0, tree=0, local=0, stored=True)
    side.seal(9, foreign)
    assert Side(descriptor).record() == (9, foreign)


def test_an_opened_side_holds_nothing(descriptor: int) -> None:
    side = sealed(descriptor, 1, 2)
    side.open()
    assert side.record() is None
    assert Side(descriptor).record() is None


@given(st.integers(0, HEAD + 13 * 8 - 1), st.integers(1, 255))
def test_a_record_with_any_byte_changed_is_not_a_record(at: int, change: int) -> None:
    with memory_files(1) as [descriptor]:
        sealed(descriptor, 1)
        [byte] = os.pread(descriptor, 1, at)
        os.pwrite(descriptor, bytes([byte ^ change]), at)
        assert Side(descriptor).record() is None


@given(st.integers(0, HEAD + 13 * 8 - 1))
def test_a_record_written_up_to_any_byte_leaves_the_one_before_it(length: int) -> None:
    with memory_files(1) as [descriptor]:
        sealed(descriptor, 1, 2)
        whole = os.pread(descriptor, HEAD + 13 * 8, PLACES[1])
        os.pwrite(descriptor, bytes(length) + whole[length:], PLACES[1])
        found = Side(descriptor).record()
        assert found in ((1, record(1)), (2, record(2)))
        assert length == 0 or found == (1, record(1))


@given(st.integers(0, 2**64), st.booleans())
def test_garbage_is_an_empty_side(seed: int, begins_well: bool) -> None:
    with memory_files(1) as [descriptor]:
        os.write(descriptor, (b"hvdecmt2" if begins_well else b"") + Random(seed).randbytes(2 * PAGE))
        assert Side(descriptor).record() is None


@pytest.mark.parametrize("size", [1, HEAD, PAGE // 2 + 3, PAGE - 1, PAGE, PAGE + 1])
def test_memory_of_an_odd_size_is_an_empty_side_that_can_be_used(pair: list[int], size: int) -> None:
    for descriptor in pair:
        os.write(descriptor, b"x" * size)
    buffer = buffer_over(pair)
    assert buffer.last() is None
    buffer.take(contents(1), identity(1), step=1)
    assert seen(buffer_over(pair)) == seen(buffer)


def test_a_record_of_more_bytes_than_there_are_is_not_a_record(descriptor: int) -> None:
    side = sealed(descriptor)
    side.seal(1, record(1, data=side.bytes.numel() - 18))
    assert Side(descriptor).record() is not None
    side.seal(2, record(2, data=side.bytes.numel() - 17))
    assert Side(descriptor).record() == (1, record(1, data=side.bytes.numel() - 18))


def test_the_page_of_the_record_is_laid_out_as_written_down_here(descriptor: int) -> None:
    """A restart may come with a newer version of this package: it must not misread what the older one left."""
    sealed(descriptor).seal(1, record(5)._replace(call=3))
    fields = struct.pack("<13q", 1, 1, 2, 3, 5, 5, 10, 100, 5, 6, 7, 0, 3)
    assert os.pread(descriptor, HEAD + 104, 0) == b"hvdecmt2" + struct.pack("<I", zlib.crc32(fields)) + fields


def test_a_record_of_an_earlier_version_is_not_a_record(descriptor: int) -> None:
    side = sealed(descriptor)
    fields = struct.pack("<12q", 1, 1, 2, 3, 5, 5, 10, 100, 5, 6, 7, 0)
    os.pwrite(descriptor, b"hvdecmt1" + struct.pack("<I", zlib.crc32(fields)) + fields, 0)
    assert side.record() is None


def test_the_record_says_in_which_call_the_commit_was_made(descriptor: int) -> None:
    made = record(1)._replace(call=4, stored=True)
    sealed(descriptor).seal(1, made)
    assert Side(descriptor).record() == (1, made)


def test_growing_keeps_what_lies_there_and_its_record(descriptor: int) -> None:
    side = sealed(descriptor, 1)
    side.write(3, b"stays")
    small = side.bytes.numel()
    assert side.reserve(100 * PAGE)
    assert side.bytes.numel() >= 100 * PAGE > small
    assert (side.read(3, 5), side.record()) == (b"stays", (1, record(1)))
    assert not side.reserve(100 * PAGE)
    assert not side.reserve(1)


def test_a_side_never_shrinks_below_what_another_process_made_of_it(descriptor: int) -> None:
    side = sealed(descriptor)
    os.ftruncate(descriptor, 50 * PAGE)
    side.reserve(side.bytes.numel() + 1)
    assert os.fstat(descriptor).st_size == 50 * PAGE


def test_tensors_over_a_side_that_grew_show_the_same_memory(descriptor: int) -> None:
    side = sealed(descriptor)
    old = side.bytes[:8]
    side.reserve(100 * PAGE)
    side.bytes[:8] = torch.arange(8, dtype=torch.uint8)
    assert old.tolist() == list(range(8))


def test_memory_made_ready_beforehand_is_there_and_holds_what_it_held(descriptor: int) -> None:
    side = Side(descriptor)
    side.reserve(16 << 20)
    side.write(5 << 20, b"stays")
    blocks = os.fstat(descriptor).st_blocks
    populate([side.bytes]).join(30)
    assert side.read(5 << 20, 5) == b"stays"
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    if release >= (5, 14):
        assert os.fstat(descriptor).st_blocks * 512 >= 16 << 20 > blocks * 512


def test_private_memory_is_given_back_with_its_side() -> None:
    def open_files() -> int:
        return sum(
            "hvd-elastic-commit" in os.readlink(entry)
            for entry in Path("/proc/self/fd").iterdir()
            if entry.is_symlink()
        )

    before = open_files()
    sides = open_sides(None)
    assert open_files() == before + 2
    del sides
    wait_until(lambda: open_files() == before, what="the files to be closed")


def test_inherited_descriptors_stay_open_for_whoever_owns_them(pair: list[int]) -> None:
    files = [os.fstat(descriptor).st_ino for descriptor in pair]
    sides = open_sides(pair)
    del sides
    assert [os.fstat(descriptor).st_ino for descriptor in pair] == files


def closed_descriptor() -> int:
    descriptor = os.memfd_create("gone")
    os.close(descriptor)
    return descriptor


@pytest.mark.parametrize("kind", ["closed", "pipe", "directory", "read-only", "sealed", "null", "negative", "huge"])
def test_descriptors_that_are_not_memory_are_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 2 * PAGE)
    with memory_files(2) as [good, frozen]:
        os.ftruncate(frozen, 2 * PAGE)
        fcntl.fcntl(frozen, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        reading, writing = os.pipe()
        directory, file = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY)
        null = os.open("/dev/null", os.O_RDWR)
        bad = {
            "closed": closed_descriptor(), "pipe": writing, "directory": directory, "read-only": file, "sealed": frozen,
            "null": null, "negative": -1, "huge": 2**70,
        }[kind]  # fmt: skip
        try:
            with pytest.raises(
                StateError, match=rf"descriptors {good},{bad} cannot be used: .+; unset HVD_ELASTIC"
            ) as told:
                open_sides([good, bad])
            assert "\n" not in str(told.value)
        finally:
            for descriptor in (reading, writing, directory, file, null):
                os.close(descriptor)


def test_one_file_given_twice_is_refused(descriptor: int) -> None:
    twin = os.dup(descriptor)
    try:
        for pair in ([descriptor, descriptor], [descriptor, twin]):
            with pytest.raises(StateError, match="two of them are one file"):
                open_sides(pair)
    finally:
        os.close(twin)


def test_a_single_side_is_too_few() -> None:
    with memory_files(1) as descriptors, pytest.raises(StateError, match="needs 2 memory descriptors, got 1"):
        open_sides(descriptors)


@pytest.mark.parametrize("length", [2**62, 2**63, 2**80])
def test_more_memory_than_can_be_is_refused_in_one_line(length: int) -> None:
    with memory_files(1) as [descriptor], pytest.raises(StateError, match=r"no memory for a commit of \d+ MB: "):
        Side(descriptor).reserve(length)
