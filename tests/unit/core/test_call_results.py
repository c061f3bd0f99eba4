"""The past of a slot: results are appended, counted, transferred, and a damaged one is never used."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from hvd_elastic_ext.core import call_results as past


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("past")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def other() -> Iterator[int]:
    descriptor = os.memfd_create("other")
    yield descriptor
    os.close(descriptor)


def test_results_are_read_back_in_their_order(memory: int) -> None:
    assert past.count(memory) == 0
    assert past.entries(memory) == ()
    assert past.append(memory, [b"zero"], call=0, step=0, number=0) is None
    assert past.append(memory, [b"one", memoryview(b"more"), b""], call=1, step=20, number=7) is None
    assert past.count(memory) == 2
    first, second = past.entries(memory)
    assert (bytes(past.read(memory, first)), bytes(past.read(memory, second))) == (b"zero", b"onemore")
    assert (second.call, second.step, second.number) == (1, 20, 7)


def test_a_result_that_is_there_stays_and_a_later_one_needs_all_before_it(memory: int) -> None:
    past.append(memory, [b"first"], call=0, step=0, number=0)
    assert past.append(memory, [b"again"], call=0, step=0, number=0) is None
    assert past.append(memory, [b"two"], call=2, step=0, number=0) == "the result of call 1 was not kept"
    assert [bytes(past.read(memory, each)) for each in past.entries(memory)] == [b"first"]


def test_results_beyond_the_limit_are_refused_with_both_sizes(memory: int) -> None:
    past.append(memory, [bytes(2_000_000)], call=0, step=0, number=0)
    why = past.append(memory, [bytes(3_000_000)], call=1, step=0, number=0, limit=4_000_000)
    assert why == "its 3 MB and 2 MB of earlier results are more than 4 MB (HVD_ELASTIC_RESULTS_BYTES)"
    assert past.count(memory) == 1
    why = past.append(memory, [bytes(400)], call=1, step=0, number=0, limit=100)
    assert why == "its 444 B and 2 MB of earlier results are more than 100 B (HVD_ELASTIC_RESULTS_BYTES)"


def test_a_message_names_what_is_kept_before_the_first_call_by_what_it_is() -> None:
    assert past.result_of(3) == "the result of call 3"
    assert past.result_of(0) == "what collectives returned before the first call"


def test_a_process_that_dies_while_it_appends_leaves_the_past_as_it_was(memory: int) -> None:
    past.append(memory, [b"kept"], call=0, step=0, number=0)
    os.pwrite(memory, b"half of a result", 4096 + past.length(memory))
    assert past.count(memory) == 1
    assert past.append(memory, [b"whole"], call=1, step=1, number=1) is None
    assert [bytes(past.read(memory, each)) for each in past.entries(memory)] == [b"kept", b"whole"]


def test_the_last_result_is_taken_away_and_only_the_last(memory: int) -> None:
    for call in range(3):
        past.append(memory, [bytes([call]) * 9000], call=call, step=call, number=call)
    past.drop_last(memory, 1)
    assert past.count(memory) == 3
    past.drop_last(memory, 2)
    assert [entry.call for entry in past.entries(memory)] == [0, 1]
    assert past.append(memory, [b"other"], call=2, step=2, number=2) is None
    assert past.read(memory, past.entries(memory)[2]) == b"other"


def test_a_past_is_transferred_whole(memory: int, other: int) -> None:
    for call in range(3):
        past.append(memory, [bytes([call]) * (5 << 20)], call=call, step=call, number=call)
    past.append(other, [b"shorter"], call=0, step=0, number=0)
    past.replace(other, past.body(memory), 3)
    assert past.entries(other) == past.entries(memory)
    assert past.read(other, past.entries(other)[2]) == bytes([2]) * (5 << 20)


def test_a_past_that_has_as_many_results_is_not_replaced(memory: int, other: int) -> None:
    past.append(memory, [b"theirs"], call=0, step=0, number=0)
    past.append(other, [b"mine"], call=0, step=0, number=0)
    past.replace(other, past.body(memory), 1)
    assert bytes(past.read(other, past.entries(other)[0])) == b"mine"


def test_what_a_slot_lacks_is_appended_and_what_it_has_stays(memory: int, other: int) -> None:
    for call in range(3):
        past.append(memory, [bytes([call]) * 9000], call=call, step=call * 10, number=call)
    past.append(other, [b"mine"], call=0, step=0, number=0)
    number, body = past.mapped(memory)
    assert past.extend(other, body, number) == 3
    assert past.extend(other, body, number) == 3
    assert bytes(past.read(other, past.entries(other)[0])) == b"mine"
    assert past.read(other, past.entries(other)[2]) == bytes([2]) * 9000
    assert past.entries(other)[2].step == 20


@pytest.mark.parametrize("at", [3, 60, 9100])
def test_nothing_of_a_damaged_past_is_appended(memory: int, other: int, at: int) -> None:
    for call in range(2):
        past.append(memory, [bytes(9000)], call=call, step=0, number=0)
    number, body = past.mapped(memory)
    damaged = bytearray(body)
    damaged[at] ^= 1
    with pytest.raises(past.Damaged, match="damaged"):
        past.extend(other, memoryview(damaged), number)
    with pytest.raises(past.Damaged, match="damaged"):
        past.extend(other, memoryview(damaged)[:-1], number)
    assert past.count(other) == 0


def test_an_empty_past_is_mapped_as_nothing(memory: int) -> None:
    number, body = past.mapped(memory)
    assert (number, bytes(body)) == (0, b"")


def test_a_damaged_result_is_not_used_and_not_taken_over(memory: int, other: int) -> None:
    past.append(memory, [b"content"], call=0, step=0, number=0)
    (entry,) = past.entries(memory)
    os.pwrite(memory, b"X", entry.at)
    with pytest.raises(past.Damaged, match="result 0 is damaged"):
        past.read(memory, entry)
    with pytest.raises(past.Damaged, match="result 0 is damaged"):
        past.replace(other, past.body(memory), 1)
    assert past.count(other) == 0


@pytest.mark.parametrize("content", [b"", b"x" * 4096, b"hvdepst1" + bytes(20)])
def test_what_is_no_past_counts_as_empty(memory: int, content: bytes) -> None:
    os.pwrite(memory, content, 0)
    assert past.count(memory) == 0
    assert past.append(memory, [b"first"], call=0, step=0, number=0) is None
    assert past.count(memory) == 1


def test_a_cleared_past_begins_again(memory: int) -> None:
    past.append(memory, [b"old"], call=0, step=0, number=0)
    past.clear(memory)
    assert past.count(memory) == 0
    assert past.append(memory, [b"new"], call=0, step=0, number=0) is None
    assert bytes(past.read(memory, past.entries(memory)[0])) == b"new"


def test_the_first_result_can_be_replaced_and_those_after_it_stay(memory: int) -> None:
    past.append(memory, [b"zero"], call=0, step=0, number=0)
    past.append(memory, [bytes(range(200)) * 100], call=1, step=20, number=7)
    for first in (b"", b"a longer one" * 1000, b"short"):
        assert past.amend(memory, [first, b"!"]) is None
        zero, one = past.entries(memory)
        assert bytes(past.read(memory, zero)) == first + b"!"
        assert bytes(past.read(memory, one)) == bytes(range(200)) * 100
        assert (one.call, one.step, one.number) == (1, 20, 7)
    assert "too much" in str(past.amend(memory, [bytes(100)], limit=100))
    assert past.count(memory) == 2


@pytest.mark.parametrize("fails", ["to grow", "to write"])
def test_without_memory_for_another_first_result_all_results_stay(fails: str) -> None:
    descriptor, before = os.memfd_create("past", os.MFD_ALLOW_SEALING), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for call, data in enumerate([b"first", b"second"]):
            past.append(descriptor, [data], call=call, step=call, number=call)
        room = os.fstat(descriptor).st_size
        if fails == "to grow":
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        else:
            os.ftruncate(descriptor, 2 * room)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        with pytest.raises(OSError, match=r"not permitted|too large"):
            past.amend(descriptor, [b"x" * (room // 2)])
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        there = past.entries(descriptor)
        assert [bytes(past.read(descriptor, each)) for each in there] == [b"first", b"second"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        os.close(descriptor)
