"""Commits in a slot's memory are read and written there beside a live process, and whatever fails costs nothing."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.transfer import slot_memory, transfer
from hvd_elastic_ext.core.commit_record import HANDED_OVER, Identity
from hvd_elastic_ext.core.errors import Permanent, Transient
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from tests.unit.worker.made_commits import Seen, buffer_over, contents, memory_files, seen

SECRET = "5e" * 32
BIG = 3000


def which(number: int, *, generation: int = 1, lineage: int = 7) -> Identity:
    return Identity(lineage, 1, generation, number)


def commit(buffer: CommitBuffer, number: int, *, size: int = 50, **named: int) -> None:
    buffer.take(contents(number, size=size), which(number, **named), step=number)


def holder(descriptors: list[int], *numbers: int, **options: int) -> CommitBuffer:
    """A process that has taken these commits."""
    buffer = buffer_over(descriptors)
    for number in numbers:
        commit(buffer, number, **options)
    return buffer


@pytest.fixture
def source() -> Iterator[list[int]]:
    with memory_files(3) as descriptors:
        yield descriptors


@pytest.fixture
def target() -> Iterator[list[int]]:
    with memory_files(3) as descriptors:
        yield descriptors


class Sending:
    """A send helper: what it answered first, and what in the end."""

    def __init__(self, memory: list[int], number: int, pool: ThreadPoolExecutor) -> None:
        answers: queue.Queue[dict[str, Any]] = queue.Queue()
        request = {"do": "send", "slot": 4, "commit": [1, 1, number], "address": "127.0.0.1", "secret": SECRET}
        self.ended = pool.submit(agent_requests.answered, {**request, "sides": {"4": memory}}, answers.put)
        self.address = answers.get(timeout=20)["listening"]


@contextmanager
def sending(memory: list[int], number: int) -> Iterator[Sending]:
    with ThreadPoolExecutor(1) as pool:
        yield Sending(memory, number, pool)


def receive(memory: list[int], number: int, address: Any) -> dict[str, Any]:
    request = {"do": "receive", "slot": 2, "commit": [1, 1, number], "from": list(address), "secret": SECRET}
    return agent_requests.answered({**request, "sides": {"2": memory}})


def copy(source: list[int], target: list[int], number: int) -> dict[str, Any]:
    request = {"do": "copy", "from": 0, "to": 1, "commit": [1, 1, number]}
    return agent_requests.answered({**request, "sides": {"0": source, "1": target}})


def transferred(source: list[int], target: list[int], number: int) -> dict[str, Any]:
    """By both ends, and the sender hears how much was sent."""
    with sending(source, number) as sender:
        answer = receive(target, number, sender.address)
        said = sender.ended.result(20)
    assert (said["sent"], 0 <= said["seconds"] < 20) == (answer["bytes"], True)
    return answer


def after(memory: list[int]) -> Seen:
    """What the next process in the slot finds."""
    found = seen(buffer_over(memory))
    assert found is not None
    return found


@pytest.mark.parametrize("how", [transferred, copy])
def test_a_commit_of_another_slot_is_what_the_next_process_finds_but_for_the_rank_s_own_part(
    source: list[int], target: list[int], how: Any
) -> None:
    theirs = seen(holder(source, 1, 2, 3, size=BIG))
    assert theirs is not None
    answer = how(source, target, 3)
    assert (answer["held"], answer["bytes"]) == ([1, 1, 3, 3], theirs.record.shared)
    mine = after(target)
    assert (mine.tree, mine.tensors, mine.kinds) == (theirs.tree, theirs.tensors, theirs.kinds)
    assert mine.record == theirs.record._replace(local=0)
    assert mine.local == b""


@pytest.mark.parametrize("how", [transferred, copy])
def test_a_slot_keeps_what_its_last_commit_has_of_its_own(source: list[int], target: list[int], how: Any) -> None:
    holder(source, 9, size=BIG)
    holder(target, 4, 5)
    how(source, target, 9)
    assert (after(target).record.identity, after(target).local) == (which(9), b"local 5")


def test_what_a_process_of_no_world_has_of_its_own_is_not_kept(source: list[int], target: list[int]) -> None:
    holder(source, 9)
    holder(target, 0, lineage=0)
    transferred(source, target, 9)
    assert (after(target).record.identity, after(target).local) == (which(9), b"")


def test_that_a_commit_came_from_storage_is_known_of_it_at_the_other_end(source: list[int], target: list[int]) -> None:
    holder(source, 9)
    with slot_memory.writing(source) as side, slot_memory.reading(source, (1, 1, 9)) as found:
        with slot_memory.room(side.descriptor, found.record.shared) as into:
            slot_memory.copy(found, into)
        side.seal(found.record._replace(identity=which(10), stored=True))
    transferred(source, target, 10)
    assert after(target).record.stored


def test_a_part_that_came_from_storage_is_not_passed_for_a_slot_s_own(source: list[int], target: list[int]) -> None:
    buffer = holder(target, 4)
    record = buffer.record
    assert record is not None
    buffer._seal(0, record._replace(stored=True))
    holder(source, 9)
    transferred(source, target, 9)
    assert (after(target).record.stored, after(target).local) == (False, b"")


def test_what_is_not_held_is_failed_for_good(source: list[int], target: list[int]) -> None:
    holder(source, 1, 2, 3)
    for answer in (copy(source, target, 1), copy(source, target, 9)):
        assert answer["for_good"] is True
        assert "is not in that memory" in answer["failed"]
    request = {"do": "send", "slot": 4, "commit": [1, 1, 9], "address": "127.0.0.1", "secret": SECRET}
    assert agent_requests.answered({**request, "sides": {"4": source}})["for_good"] is True


@pytest.mark.parametrize("number", [9, 8])
def test_a_slot_that_holds_it_already_or_something_newer_is_left_as_it_is(
    source: list[int], target: list[int], number: int
) -> None:
    holder(source, 8)
    before = seen(holder(target, 8, 9))
    nobody = ("127.0.0.1", 1)
    for answer in (receive(target, number, nobody), copy(source, target, number)):
        assert answer == {"held": [1, 1, 9, 9], "bytes": 0, "seconds": 0.0}
    assert after(target) == before


def test_another_commit_than_was_asked_for_is_refused(source: list[int], target: list[int]) -> None:
    holder(source, 8)
    with sending(source, 8) as sender:
        answer = receive(target, 9, sender.address)
        assert answer == {"failed": "the sender has sent another commit than was asked for", "for_good": False}
        assert sender.ended.result(20)["for_good"] is False
    assert slot_memory.held(target) is None


# --- whatever fails leaves what was there


@contextmanager
def cut_off(address: Any, length: int) -> Iterator[Any]:
    """Hands on ``length`` bytes of what a sender says."""
    with transfer.listening("127.0.0.1") as door:

        def relay() -> None:
            import socket

            with door.accept()[0] as receiver, socket.create_connection(tuple(address)) as sender:
                threads = [threading.Thread(target=pump, args=(receiver, sender, 1 << 40), daemon=True)]
                threads[0].start()
                pump(sender, receiver, length)
                for each in (receiver, sender):
                    each.shutdown(socket.SHUT_RDWR)

        def pump(one: Any, other: Any, most: int) -> None:
            try:
                while most and (data := one.recv(min(most, 4096))):
                    other.sendall(data)
                    most -= len(data)
            except OSError:
                pass

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        yield door.getsockname()
        thread.join(20)
        assert not thread.is_alive()


@settings(max_examples=12)
@given(length=st.integers(0, 50_000))
def test_a_transfer_that_ends_at_any_byte_leaves_the_slot_s_commit_and_no_half_of_another(length: int) -> None:
    with memory_files(3) as source, memory_files(3) as target, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "BLOCK", 5000)
        patch.setattr(transfer, "WAIT_S", 0.3)  # where not even the proof is asked for
        record = holder(source, 9, size=BIG).record
        assert record is not None
        before = seen(holder(target, 4, 5))
        with sending(source, 9) as sender, cut_off(sender.address, length) as door:
            answer = receive(target, 9, door)
            ended = sender.ended.result(20)
        whole = "held" in answer
        assert not whole or length > record.shared
        assert whole or length < record.shared + 1000, answer
        assert answer.get("for_good", False) is False
        assert ("sent" in ended) <= whole
        assert (after(target) == before) is not whole
        assert {found.record.identity for found in slot_memory.sealed(target) if found} <= {
            which(4),
            which(5),
            which(9),
        }


@pytest.mark.parametrize("moment", range(6))
def test_a_receiver_that_ends_at_any_moment_of_sealing_leaves_the_old_or_the_new_commit(
    source: list[int], target: list[int], monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Its writes are few: the two heads that go first, the slot's own part, the record and its head."""
    holder(source, 9, size=BIG)
    before = seen(holder(target, 4, 5))
    left, real = moment, os.pwrite

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    if moment < 5:
        with pytest.raises(KeyboardInterrupt):
            copy(source, target, 9)
        assert after(target) == before
    else:
        copy(source, target, 9)
        assert after(target).record.identity == which(9)


# --- beside a live process


def test_what_is_read_stays_while_its_process_goes_on_to_commit(source: list[int]) -> None:
    buffer = holder(source, 1, 2)
    with slot_memory.reading(source, (1, 1, 2)) as found:
        before = bytes(found.shared)
        for number in range(3, 9):
            commit(buffer, number)
            assert buffer.record is not None
            assert buffer.record.identity == which(number)
        assert bytes(found.shared) == before
        found.demand_same()
    for number in range(9, 12):
        commit(buffer, number)
    with pytest.raises(Permanent, match="not in that memory"), slot_memory.reading(source, (1, 1, 2)):
        pass


def test_what_was_replaced_all_the_same_is_noticed(source: list[int]) -> None:
    holder(source, 1, 2)
    with slot_memory.reading(source, (1, 1, 2)) as found:
        found.demand_same()
        holder(source).relabel(which(2, lineage=99))
        found.demand_same()  # the same commit under another job's name
        for descriptor in source:
            os.pwrite(descriptor, bytes(12), 0)
            os.pwrite(descriptor, bytes(12), 2048)
        with pytest.raises(Transient, match="was replaced"):
            found.demand_same()


def test_where_a_commit_arrives_its_process_writes_nothing(target: list[int]) -> None:
    buffer = holder(target, 1, 2)
    with slot_memory.writing(target) as side, slot_memory.room(side.descriptor, 1000) as into:
        into[:] = b"a" * 1000
        for number in range(3, 9):
            commit(buffer, number)
            assert seen(buffer) is not None
        assert bytes(into) == b"a" * 1000


def test_a_process_is_not_written_over_while_it_stages_a_commit(
    target: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, seen_free = holder(target, 1, 2), []
    real = CommitBuffer._seal

    def sealing(self: CommitBuffer, index: int, record: Any) -> None:
        with slot_memory.writing(target) as side:
            seen_free.append(target.index(side.descriptor) != index)
        real(self, index, record)

    monkeypatch.setattr(CommitBuffer, "_seal", sealing)
    for number in range(3, 7):
        commit(buffer, number)
    assert seen_free == [True] * 4


def test_a_commit_that_is_kept_is_not_written_over(source: list[int], target: list[int]) -> None:
    buffer = holder(target, 1, 2)
    buffer.keep()
    commit(buffer, 3)
    holder(source, 9)
    kept = [index for index, each in enumerate(target) if slot_memory._kept(each)]
    transferred(source, target, 9)
    found = slot_memory.sealed(target)[kept[0]]
    assert found is not None
    assert found.record.identity == which(2)


@pytest.mark.parametrize("taken_up", [False, True])
def test_what_a_process_goes_by_stays_however_much_more_is_handed_over(
    source: list[int], target: list[int], taken_up: bool
) -> None:
    """Its own commit, or one that was handed over before and that it has looked for."""
    buffer, theirs = holder(target, 1, 2), holder(source, 8)
    if taken_up:
        transferred(source, target, 8)
        assert buffer.catch_up()
    mine = seen(buffer)
    for number in (9, 10, 11):
        commit(theirs, number)
        transferred(source, target, number)
        assert seen(buffer) == mine
        assert after(target).record.identity == which(number)


def test_a_side_that_its_process_has_just_committed_on_is_not_written_over(
    target: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the memory and the lock on it."""
    buffer, real = holder(target, 1, 2), slot_memory._locked
    committed: list[int] = []

    def locked(descriptor: int, how: int) -> Any:
        if not committed:
            committed.append(3)
            commit(buffer, 3)
        return real(descriptor, how)

    monkeypatch.setattr(slot_memory, "_locked", locked)
    mine = contents(3, size=50).tree
    with slot_memory.writing(target):
        found = seen(buffer)
        assert found is not None
        assert (found.record.identity, found.tree) == (which(3), mine)


def test_where_all_memory_is_in_use_nothing_is_written(target: list[int]) -> None:
    holder(target, 1, 2)
    with (
        slot_memory.writing(target),
        slot_memory.writing(target),
        pytest.raises(Transient, match="in use"),
        slot_memory.writing(target),
    ):
        pass


def test_a_commit_that_is_older_than_what_the_slot_has_made_meanwhile_is_not_sealed(target: list[int]) -> None:
    buffer = holder(target, 1, 2)
    theirs = buffer.record
    assert theirs is not None
    with slot_memory.writing(target) as side:
        commit(buffer, 10)
        with pytest.raises(Transient, match=r"has made commit 1\.1\.10 meanwhile"):
            side.seal(theirs._replace(identity=which(9), step=9, local=0))
    assert after(target).record.identity == which(10)


def test_a_slot_s_processes_count_on_below_what_is_handed_over(source: list[int], target: list[int]) -> None:
    buffer = holder(target, *range(10))
    holder(source, 30)
    for handed in (1, 2):
        assert slot_memory.next_sequence(target) == handed * HANDED_OVER
        transferred(source, target, 30 + handed - 1)
        commit(holder(source), 31)
        if handed == 1:
            assert buffer.catch_up()


def test_memory_grows_for_what_arrives_and_a_live_process_sees_it(source: list[int], target: list[int]) -> None:
    buffer = holder(target, 1)
    theirs = seen(holder(source, 9, size=100_000))
    assert theirs is not None
    transferred(source, target, 9)
    assert buffer.catch_up()
    mine = seen(buffer)
    assert mine is not None
    assert (mine.tensors, mine.local) == (theirs.tensors, b"local 1")
    last = buffer.last()
    assert last is not None
    assert bool((last.views[0] == torch.full_like(last.views[0], 9.0)).all())
