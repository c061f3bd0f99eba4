"""What a host loads: the newest that is whole, and what follows it is newer than all that was passed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint.format.manifest import name_of
from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.stores.store import open_store
from hvd_elastic_ext.core import commit_record as sides
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import Side, open_sides
from tests.support.checkpoints import held, identity, save
from tests.unit.worker.made_commits import contents


@pytest.fixture
def memory() -> Iterator[list[int]]:
    """Of one slot."""
    descriptors = [os.memfd_create(f"side-{number}") for number in range(3)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def loaded(place: Path, memory: list[int]) -> tuple[dict[str, Any], Record]:
    """What was answered, and what a process in the slot finds."""
    request = {"do": "load", "place": str(place), "ranks": {"2": 0}, "sides": {"2": memory}}
    answer = agent_requests.answered(request)
    record = CommitBuffer([Side(each) for each in memory]).record
    assert record is not None
    return answer, record


def kept(place: Path, *identities: Identity) -> None:
    for each in identities:
        save(open_store(str(place)), held(each))


def damage(place: Path, which: Identity) -> None:
    shard = next((place / name_of(which)).glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)


def test_the_newest_goes_by_its_own_name(tmp_path: Path, memory: list[int]) -> None:
    kept(tmp_path, identity(8), identity(9))
    answer, record = loaded(tmp_path, memory)
    assert record.identity == identity(9)
    assert (answer["generation"], answer["slots"]) == (1, [2])


def test_one_that_is_taken_in_place_of_a_damaged_one_goes_on_in_a_world_as_late_as_that(
    tmp_path: Path, memory: list[int]
) -> None:
    older, damaged = identity(8), identity(12, generation=5, incarnation=2)
    kept(tmp_path, older, damaged)
    damage(tmp_path, damaged)
    answer, record = loaded(tmp_path, memory)
    assert answer["path"].endswith(name_of(older))
    assert record.identity == identity(8, generation=5, incarnation=2)
    assert answer["generation"] == 5


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_a_process_of_no_world_left_in_memory_gives_way_to_it(
    tmp_path: Path, memory: list[int], number: int
) -> None:
    kept(tmp_path, identity(8))
    buffer = CommitBuffer(open_sides(memory))
    for each in range(number):
        buffer.take(contents(each), Identity(0, 9, 0, each), step=0)
    _, record = loaded(tmp_path, memory)
    assert (record.identity, record.stored) == (identity(8), True)


@pytest.mark.parametrize("number", [9, 10, 11])
def test_a_newer_commit_that_has_outlived_its_process_is_not_written_over(
    tmp_path: Path, memory: list[int], number: int
) -> None:
    kept(tmp_path, identity(8))
    buffer = CommitBuffer(open_sides(memory))
    for each in range(8, number + 1):
        buffer.take(contents(each), identity(each), step=each)
    answer, record = loaded(tmp_path, memory)
    assert (record.identity, record.stored) == (identity(number), False)
    assert answer["slots"] == [2]


def test_what_is_loaded_beside_a_live_process_is_told_and_leaves_that_what_it_goes_by(
    tmp_path: Path, memory: list[int]
) -> None:
    kept(tmp_path, identity(8))
    buffer = CommitBuffer(open_sides(memory))
    buffer.take(contents(1), Identity(0, 9, 0, 1), step=0)
    answer, record = loaded(tmp_path, memory)
    assert (answer["held"], record.identity) == ([*identity(8)[1:], 40], identity(8))
    last = buffer.last()
    assert last is not None
    assert (last.record.identity, last.tree) == (Identity(0, 9, 0, 1), contents(1).tree)
    assert buffer.catch_up()
    assert buffer.record is not None
    assert (buffer.record.identity, buffer.record.stored) == (identity(8), True)


def test_where_something_newer_is_held_that_is_told(tmp_path: Path, memory: list[int]) -> None:
    kept(tmp_path, identity(8))
    CommitBuffer(open_sides(memory)).take(contents(3), identity(9), step=90)
    answer, _ = loaded(tmp_path, memory)
    assert (answer["held"], answer["step"]) == ([*identity(9)[1:], 90], 40)


def seen(place: Path, memory: list[int], *skip: str) -> dict[str, Any]:
    return agent_requests.answered({"do": "held", "place": str(place), "skip": list(skip), "sides": {"2": memory}})


def test_what_memory_and_storage_hold_is_told_side_by_side(tmp_path: Path, memory: list[int]) -> None:
    assert seen(tmp_path, memory) == {"held": {}, "newest": None}
    kept(tmp_path, identity(8), identity(9))
    buffer = CommitBuffer(open_sides(memory))
    for number in (10, 11):
        buffer.take(contents(number), identity(number), step=number)
    answer = seen(tmp_path, memory)
    [[which, step, side]] = answer["held"].values()
    assert (which, step) == ([*identity(11)], 11)
    found = sides.newest(os.pread(memory[side], sides.PAGE, 0), os.fstat(memory[side]).st_size - sides.PAGE)
    assert found is not None
    assert found.record.identity == identity(11)
    assert (answer["newest"]["identity"], answer["newest"]["name"]) == ([*identity(9)], name_of(identity(9)))
    assert seen(tmp_path, memory, name_of(identity(9)))["newest"]["identity"] == [*identity(8)]


def test_a_commit_of_no_world_is_nothing_to_keep(tmp_path: Path, memory: list[int]) -> None:
    CommitBuffer(open_sides(memory)).take(contents(3), Identity(0, 9, 0, 3), step=0)
    assert seen(tmp_path, memory)["held"] == {}


def test_whether_one_is_whole_is_told_with_the_reason(tmp_path: Path) -> None:
    kept(tmp_path, identity(8), identity(9))
    damage(tmp_path, identity(9))

    def answer(which: Identity) -> dict[str, Any]:
        return agent_requests.answered({"do": "verify", "place": str(tmp_path), "name": name_of(which), "sides": {}})

    assert answer(identity(8)) == {"whole": True, "why": ""}
    assert answer(identity(9))["whole"] is False
    assert "shard" in answer(identity(9))["why"]
