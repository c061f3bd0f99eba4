"""A commit that is handed over to a slot while its process waits is neither lost nor passed over, and costs no rank
what is its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.transfer import slot_memory
from hvd_elastic_ext.core.commit_record import HANDED_OVER, Identity, Record
from hvd_elastic_ext.core.errors import StateError, Transient
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import Side
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.state.keeper import Keeper
from hvd_elastic_ext.worker.sync import exchange
from tests.unit.worker.interruption import every_moment, interrupted
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.made_commits import buffer_over, contents, keeper_of, memory_files, seen

Memory = list[int]


@pytest.fixture
def mine() -> Iterator[Memory]:
    with memory_files(3) as descriptors:
        yield descriptors


@pytest.fixture
def theirs() -> Iterator[Memory]:
    with memory_files(3) as descriptors:
        yield descriptors


def named(number: int, generation: int = 1, *, lineage: int = 7) -> Identity:
    return Identity(lineage, 0, generation, number)


def take(buffer: CommitBuffer, identity: Identity, **options: Any) -> None:
    buffer.take(contents(identity.number, **options), identity, step=identity.number)


def hand_over(source: Memory, target: Memory, commit: Identity) -> None:
    request = {"do": "copy", "from": 0, "to": 1, "commit": [*commit[1:]], "sides": {"0": source, "1": target}}
    answer = agent_requests.answered(request)
    assert answer.get("held", [])[:3] == [*commit[1:]], answer


def with_commit(memory: Memory, identity: Identity, **options: Any) -> Memory:
    take(buffer_over(memory), identity, **options)
    return memory


# --- the buffer


def test_what_was_handed_over_is_the_last_commit_once_the_process_has_looked(mine: Memory, theirs: Memory) -> None:
    buffer = buffer_over(mine)
    take(buffer, named(1))
    assert not buffer.catch_up()
    hand_over(with_commit(theirs, named(9), size=5000), mine, named(9))
    assert buffer.record.identity == named(1)
    assert buffer.catch_up()
    assert buffer.record.identity == named(9)
    assert seen(buffer) == seen(buffer_over(mine))
    assert not buffer.catch_up()


def test_no_commit_of_the_process_writes_over_it_or_passes_for_newer_before_that(mine: Memory, theirs: Memory) -> None:
    buffer = buffer_over(mine)
    take(buffer, named(1))
    hand_over(with_commit(theirs, named(90)), mine, named(90))
    for number in range(2, 12):
        take(buffer, named(number))
        assert buffer.record.identity == named(number)
        next_process = buffer_over(mine).record
        assert next_process.identity == named(90)
    assert buffer.catch_up()
    after = seen(buffer)
    assert (after.record.identity, after.tree) == (named(90), contents(90).tree)


def test_a_process_whose_commits_have_become_newer_goes_on_with_its_own(mine: Memory, theirs: Memory) -> None:
    buffer = buffer_over(mine)
    take(buffer, named(1))
    hand_over(with_commit(theirs, named(9)), mine, named(9))
    take(buffer, named(3, 2))
    assert not buffer.catch_up()
    next_process = buffer_over(mine).record
    assert next_process.identity == named(3, 2)


def test_a_process_that_forgets_what_is_of_no_use_to_it_leaves_what_was_handed_over(
    mine: Memory, theirs: Memory
) -> None:
    """As one that has begun and found nothing of use, while a commit was on its way."""
    for number in (1, 2, 3):
        with_commit(mine, named(number))
    buffer = buffer_over(mine)
    hand_over(with_commit(theirs, named(9)), mine, named(9))
    buffer.forget()
    assert buffer.last() is None
    take(buffer, Identity(0, 0, 0, 0))
    assert buffer.catch_up()
    assert buffer.record.identity == named(9)


def test_a_process_that_forgets_while_a_commit_arrives_gets_it_all_the_same(mine: Memory, theirs: Memory) -> None:
    buffer = buffer_over(mine)
    with_commit(theirs, named(9))
    with slot_memory.reading(theirs, named(9)[1:]) as source, slot_memory.writing(mine) as target:
        with slot_memory.room(target.descriptor, source.record.shared) as into:
            slot_memory.copy(source, into)
        buffer.forget()
        take(buffer, Identity(0, 0, 0, 0))
        target.seal(source.record)
        buffer.forget()
    assert buffer.catch_up()
    found = seen(buffer)
    assert (found.record.identity, found.tree) == (named(9), contents(9).tree)


def test_a_process_that_forgets_touches_nothing_where_a_commit_arrives(
    mine: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        with_commit(mine, named(number))
    buffer = buffer_over(mine)
    opened: list[int] = []
    real = Side.open

    def noted(side: Side) -> None:
        opened.append(side._descriptor)
        real(side)

    monkeypatch.setattr(Side, "open", noted)
    with slot_memory.writing(mine) as target:
        buffer.forget()
    assert sorted([*opened, target.descriptor]) == sorted(mine)


def test_what_is_sealed_by_others_and_no_newer_is_not_taken_up_and_the_next_commit_is_above_it(mine: Memory) -> None:
    buffer = buffer_over(mine)
    take(buffer, named(8))
    take(buffer, named(9))
    record = buffer.record
    for older in (record, record._replace(identity=named(8), step=8)):
        Side(mine[0]).seal(HANDED_OVER, older)
        assert not buffer.catch_up()
    buffer.relabel(named(9))
    next_process = buffer_over(mine)
    assert next_process.record.identity == named(9)


def test_what_arrives_from_a_root_lies_where_nothing_is_handed_over(mine: Memory, theirs: Memory) -> None:
    buffer, root = buffer_over(mine), buffer_over(None)
    take(buffer, named(1))
    take(root, named(5))
    buffer.receiving(root.record, local=3).copy_(root.sending())
    with_commit(theirs, named(9))
    hand_over(theirs, mine, named(9))
    buffer.received(root.record, b"abc", lineage=7)
    found = seen(buffer)
    assert (found.record.identity, found.tree, found.local) == (named(5), contents(5).tree, b"abc")
    assert buffer.catch_up()


def test_looking_interrupted_at_any_instruction_loses_no_commit(mine: Memory, theirs: Memory) -> None:
    with_commit(theirs, named(9))

    def attempt(moment: int) -> bool:
        with memory_files(3) as memory:
            buffer = buffer_over(with_commit(memory, named(1)))
            hand_over(theirs, memory, named(9))
            was = interrupted(buffer.catch_up, at=moment)
            for each in (buffer, buffer_over(memory)):
                each.catch_up()
                assert each.record.identity == named(9), moment
            return was

    assert list(every_moment(attempt, stride=3))


def test_where_all_other_memory_is_being_read_or_written_a_commit_waits_for_it(mine: Memory) -> None:
    buffer = buffer_over(mine[:2])
    take(buffer, named(1))
    begun = threading.Event()

    def commit() -> None:
        begun.set()
        take(buffer, named(2))

    thread = threading.Thread(target=commit, daemon=True)
    with slot_memory.writing(mine[:2]) as target:
        thread.start()
        begun.wait(20)
        with slot_memory.room(target.descriptor, 100) as into:
            into[:] = b"a" * 100
            assert bytes(into) == b"a" * 100
            assert thread.is_alive()
    thread.join(20)
    assert buffer.record.identity == named(2)


@pytest.mark.parametrize("size", [5, 5000])
def test_a_commit_gets_its_rank_s_own_part_where_it_lies(mine: Memory, theirs: Memory, size: int) -> None:
    buffer = buffer_over(mine)
    hand_over(with_commit(theirs, named(9), size=size), mine, named(9))
    assert buffer.catch_up()
    before = seen(buffer)
    assert before.local == b""
    own = b"own" * 3000
    buffer.complete(own)
    after = seen(buffer)
    assert (after.local, after.tree, after.tensors) == (own, before.tree, before.tensors)
    assert seen(buffer_over(mine)) == after


# --- a State


def trained(memory: Memory, *, seed: int, commits: int) -> tuple[Identity, torch.Tensor]:
    """Memory that a job of one process has left: its last commit, and the weights in it."""

    def rank_main(comms: LockstepComms) -> Any:
        keeper, owner, _ = keeper_of(comms, memory, seed=seed)
        keeper.sync()
        for number in range(commits):
            owner.epoch = 100 + number
            with torch.no_grad():
                owner.model.weight.add_(1.0)
            keeper.save()
        return keeper._identity(), owner.model.weight.detach().clone()

    (found,), _ = in_lockstep(1, rank_main)
    return found


def drawn() -> list[float]:
    return [random.random(), float(torch.rand(1))]


@contextmanager
def waiting(memory: Memory, *, seed: int = 3) -> Iterator[tuple[Keeper, Any, Identity]]:
    """A process that was in a world, and waits for its next one."""
    keepers: list[Any] = []

    def first_world(comms: LockstepComms) -> None:
        keeper, owner, _ = keeper_of(comms, memory, seed=seed)
        keeper.sync()
        keeper.save()
        keepers.append((keeper, owner, keeper._identity()))

    in_lockstep(1, first_world)
    yield keepers[0]


def in_another_world(keeper: Keeper) -> None:
    def world(comms: LockstepComms) -> None:
        keeper._comms = keeper._stopping._comms = comms
        keeper.sync()

    in_lockstep(1, world)


def test_a_process_that_waits_goes_on_from_what_was_handed_over_meanwhile(mine: Memory, theirs: Memory) -> None:
    commit, weight = trained(theirs, seed=1, commits=4)
    with waiting(mine) as (keeper, owner, _):
        keeper.restore(world_lost=True)
        hand_over(theirs, mine, commit)
        owner.epoch = 77  # an on_reset callback that commits
        keeper.save()
        in_another_world(keeper)
        assert torch.equal(owner.model.weight, weight)
        assert owner.epoch == 103
        keeper.save()
        assert keeper._identity()[1:] > commit[1:]


def test_a_roll_back_before_the_next_world_is_to_what_the_process_has_itself(mine: Memory, theirs: Memory) -> None:
    commit, weight = trained(theirs, seed=1, commits=4)
    with waiting(mine) as (keeper, owner, _):
        own = owner.model.weight.detach().clone()
        hand_over(theirs, mine, commit)
        keeper.restore(world_lost=True)
        assert torch.equal(owner.model.weight, own)
        in_another_world(keeper)
        assert torch.equal(owner.model.weight, weight)


def test_a_rank_that_had_generators_of_its_own_goes_on_with_them(mine: Memory, theirs: Memory) -> None:
    commit, _ = trained(theirs, seed=1, commits=4)
    with waiting(mine) as (keeper, _, _):
        torch.manual_seed(5)
        random.seed(5)
        keeper.save()
        expected = drawn()
        hand_over(theirs, mine, commit)
        in_another_world(keeper)
        assert drawn() == expected


@pytest.mark.parametrize("when", ["before it starts", "while it boots"])
def test_a_process_takes_up_the_commit_of_another_slot_whatever_program_it_is(
    mine: Memory, theirs: Memory, when: str
) -> None:
    commit, weight = trained(theirs, seed=1, commits=4)
    if when == "before it starts":
        hand_over(theirs, mine, commit)

    def rank_main(comms: LockstepComms) -> Any:
        keeper, owner, _ = keeper_of(comms, mine, seed=9, program="another")
        if when == "while it boots":
            hand_over(theirs, mine, commit)
            keeper.save()
        keeper.sync()
        return owner.model.weight.detach().clone()

    (found,), _ = in_lockstep(1, rank_main)
    assert torch.equal(found, weight)


def test_a_rank_without_generators_of_its_own_gets_them_as_a_newcomer_and_a_roll_back_repeats_what_it_drew(
    mine: Memory, theirs: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first commit, too. All scripts seed alike: ranks would go on alike."""
    commit, _ = trained(theirs, seed=1, commits=4)
    hand_over(theirs, mine, commit)
    seeded: list[tuple[int, ...]] = []
    real = rng.seed_newcomer

    def seed(*place: int) -> None:
        seeded.append(place)
        real(*place)

    monkeypatch.setattr(rng, "seed_newcomer", seed)

    def rank_main(comms: LockstepComms) -> Any:
        keeper, *_ = keeper_of(comms, mine, seed=9)
        like_a_script = drawn()
        keeper.sync()
        once = drawn()
        keeper.restore(world_lost=False)
        return like_a_script, once, drawn()

    ((like_a_script, once, again),), _ = in_lockstep(1, rank_main)
    assert seeded == [(commit.lineage, commit.generation + 1, 0)]
    assert once == again != like_a_script
    found = seen(buffer_over(mine))  # the next process knows the commit for its own
    assert found.record.identity[1:] == commit[1:]
    assert b"rng" in found.local


def test_the_jobs_newest_commit_is_never_dropped_for_a_state_that_does_not_fit(mine: Memory, theirs: Memory) -> None:
    commit, _ = trained(theirs, seed=1, commits=4)
    hand_over(theirs, mine, commit)

    def rank_main(comms: LockstepComms) -> None:
        keeper, *_ = keeper_of(comms, mine, seed=9, width=5)
        with pytest.raises(StateError, match="newest commit is not of this program's State"):
            keeper.sync()

    in_lockstep(1, rank_main)
    found = buffer_over(mine).record
    assert found.identity == commit


def test_a_peer_that_is_lost_while_a_commit_arrives_leaves_memory_that_others_may_write_to(
    mine: Memory, theirs: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(buffer: CommitBuffer, *_: object, record: Record, **__: object) -> None:
        buffer.receiving(record, local=0)
        with pytest.raises(Transient, match="in use"), slot_memory.writing(mine), slot_memory.writing(mine):
            pass
        raise ConnectionError

    monkeypatch.setattr(exchange, "receive_all", lost)
    trained(theirs, seed=1, commits=2)

    def rank_main(comms: LockstepComms) -> None:
        keeper, *_ = keeper_of(comms, (theirs, mine)[comms.rank()], seed=9)
        if comms.rank() == 0:
            keeper.sync()
            return
        with pytest.raises(ConnectionError):
            keeper.sync()
        with slot_memory.writing(mine), slot_memory.writing(mine):
            pass
        raise Over

    with pytest.raises(Over):
        in_lockstep(2, rank_main)


class Over(Exception):
    """The rest of the world may go, too."""
