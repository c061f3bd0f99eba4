"""What an agent tells of the commit memory of its slots."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hvd_elastic_ext.agent.slots.commit_memory import CommitMemory
from hvd_elastic_ext.agent.slots.slot import Slot
from hvd_elastic_ext.core.commit_record import Identity
from tests.unit.worker.made_commits import buffer_over, contents


def take(memory: CommitMemory, *identities: Identity) -> None:
    buffer = buffer_over(memory.descriptors)
    for each in identities:
        buffer.take(contents(each.number), each, step=10 * each.number)


@pytest.fixture
def memory() -> Any:
    one = CommitMemory(0, 3)
    yield one
    one.close()


def test_memory_tells_the_commit_that_was_sealed_last(memory: CommitMemory) -> None:
    assert memory.held() is None
    take(memory, *(Identity(7, 2, 3, number) for number in range(1, 6)))
    assert memory.held() == [2, 3, 5, 50]


def test_a_commit_of_no_world_is_not_told(memory: CommitMemory) -> None:
    take(memory, Identity(0, 2, 0, 1))
    assert memory.held() is None


def test_a_torn_record_is_not_told_and_the_commit_before_it_is(memory: CommitMemory) -> None:
    take(memory, Identity(7, 2, 3, 1), Identity(7, 2, 3, 2))
    for descriptor in memory.descriptors:
        page = os.pread(descriptor, 4096, 0)
        if b"hvdecmt2" in page and (2).to_bytes(8, "little") == page[12:20]:
            os.pwrite(descriptor, b"\0", 20)
    assert memory.held() == [2, 3, 1, 10]


def test_memory_that_one_process_has_made_larger_cannot_be_made_smaller_by_another(memory: CommitMemory) -> None:
    os.ftruncate(memory.descriptors[0], 1 << 20)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptors[0], 1 << 10)
    buffer_over(memory.descriptors)  # as a process does that starts meanwhile


def test_a_slot_that_has_memory_and_never_had_a_process_is_told_as_at_rest() -> None:
    slot = Slot(3, agent=None)  # type: ignore[arg-type]
    assert not slot.in_use
    descriptors = slot.memory()
    assert slot.in_use
    assert "held" not in slot.status()
    buffer_over(descriptors).take(contents(4), Identity(7, 2, 3, 4), step=40)
    status = slot.status()
    assert (status["life"], status["state"], status["pid"], status["held"]) == (0, "rest", None, [2, 3, 4, 40])
    for descriptor in descriptors:
        os.close(descriptor)
