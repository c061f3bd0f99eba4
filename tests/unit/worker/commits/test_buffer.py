"""A commit is whole or it is not there, whatever interrupts it, and costs no memory once there is some."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.buffer import Beside, CommitBuffer, Contents, digest_of
from tests.support.processes import run_process
from tests.unit.worker.interruption import every_moment, interrupted
from tests.unit.worker.made_commits import Seen, buffer_over, contents, identity, memory_files, raw, seen

HERE = Path(__file__).parent
Action = Callable[[CommitBuffer], object]

BIG = 2000


def take(number: int, **options: int) -> Action:
    new = contents(number, **options)
    return lambda buffer: buffer.take(new, identity(number), step=number)


def receive(buffer: CommitBuffer) -> None:
    """A commit arrives whose bytes come from another buffer."""
    sender = buffer_over(None)
    take(5, count=4, size=BIG)(sender)
    arriving(buffer, sender)


def arriving(buffer: CommitBuffer, sender: CommitBuffer) -> None:
    record = sender.record
    mine = b"the receiver's own"
    buffer.receiving(record, local=len(mine)).copy_(sender.sending())
    buffer.received(record, mine, lineage=99)


SENDER = buffer_over(None)
take(5, count=4, size=BIG)(SENDER)

INTERRUPTED: dict[str, Action] = {
    "a commit of the same tensors": take(3),
    "a commit of other tensors": take(3, count=6, size=2),
    "a commit that needs more memory": take(3, count=6, size=BIG),
    "receiving": lambda buffer: arriving(buffer, SENDER),
    "relabelling": lambda buffer: buffer.relabel(Identity(99, 1, 2, 3)),
    "preparing memory": lambda buffer: buffer.prepare(5 * BIG),
}
QUICK = ("a commit of the same tensors", "relabelling", "preparing memory")
"""Few instructions: every seventh of them is tried in every run, of others every 29th; all of them by `make soak`."""

AFTERWARDS: dict[str, Action] = {
    "a commit": take(8),
    "a larger commit": take(8, count=8, size=2 * BIG),
    "relabelling": lambda buffer: buffer.relabel(Identity(55, 1, 2, 4)),
    "receiving": lambda buffer: arriving(buffer, SENDER),
}


def twice_committed(descriptors: list[int]) -> CommitBuffer:
    """Both sides hold a commit, the last one relabelled: every record a side can have is there."""
    buffer = buffer_over(descriptors)
    take(1)(buffer)
    take(2)(buffer)
    buffer.relabel(Identity(7, 0, 2, 2))
    return buffer


def after(*actions: Action) -> Seen | None:
    with memory_files() as descriptors:
        buffer = twice_committed(descriptors)
        for action in actions:
            action(buffer)
        return seen(buffer)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(480)])])
@pytest.mark.parametrize("what", INTERRUPTED)
def test_interrupted_at_any_instruction_the_last_commit_is_the_old_or_the_new_one_whole(what: str, every: bool) -> None:
    action = INTERRUPTED[what]
    whole = [after(), after(action)]
    followed = {name: [after(follow), after(action, follow)] for name, follow in AFTERWARDS.items()}
    outcomes = set()

    def attempt(moment: int, name: str) -> bool:
        with memory_files() as descriptors:
            buffer = twice_committed(descriptors)
            was = interrupted(lambda: action(buffer), at=moment)
            assert seen(buffer) in whole, moment
            restarted = seen(buffer_over(descriptors))
            assert restarted in whole, moment
            outcomes.add(whole.index(restarted))
            AFTERWARDS[name](buffer)
            assert seen(buffer) in followed[name], (moment, name)
            assert seen(buffer_over(descriptors)) == seen(buffer), (moment, name)
            return was

    names = list(AFTERWARDS)
    if every:
        assert list(every_moment(lambda moment: max([attempt(moment, name) for name in names])))
    else:  # what comes afterwards takes turns
        stride = 7 if what in QUICK else 29
        assert list(every_moment(lambda at: attempt(at, names[at // stride % len(names)]), stride=stride))
    assert outcomes == ({0, 1} if whole[0] != whole[1] else {0})


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_restarted_process_goes_on_after_an_interruption_at_any_instruction(stride: int) -> None:
    whole = [after(), after(take(3))]
    next_one = after(take(4))

    def attempt(moment: int) -> bool:
        with memory_files() as descriptors:
            first = twice_committed(descriptors)
            was = interrupted(lambda: take(3)(first), at=moment)
            second = buffer_over(descriptors)
            assert seen(second) in whole
            take(4)(second)
            assert seen(second) == seen(buffer_over(descriptors)) == next_one
            return was

    assert list(every_moment(attempt, stride=stride))


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_forgetting_interrupted_at_any_instruction_never_brings_an_older_commit_back(stride: int) -> None:
    old, next_one = after(), after(take(4))

    def attempt(moment: int) -> bool:
        with memory_files() as descriptors:
            buffer = twice_committed(descriptors)
            was = interrupted(buffer.forget, at=moment)
            assert seen(buffer_over(descriptors)) in (old, None), moment
            assert seen(buffer) in (old, None), moment
            take(4)(buffer)
            assert seen(buffer) == seen(buffer_over(descriptors)) == next_one
            return was

    assert list(every_moment(attempt, stride=stride))


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.soak)])
def test_a_process_killed_at_a_random_moment_leaves_a_whole_commit(rounds: int) -> None:
    command = [sys.executable, "-m", "tests.unit.worker.killed_child", str(rounds)]
    with run_process(command, cwd=HERE.parents[3]) as process:
        code = process.wait(timeout=110)
    assert (code, process.stdout.split()[:2]) == (0, ["rounds", str(rounds)]), process.output


def test_many_commits_take_no_more_memory_than_a_few() -> None:
    with run_process([sys.executable, "-m", "tests.unit.worker.memory_growth"], cwd=HERE.parents[3]) as process:
        code = process.wait(timeout=100)
    assert code == 0, process.output


KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def any_contents(draw: st.DrawFn) -> Contents:
    tensors = []
    for shape in draw(st.lists(SHAPES, max_size=5)):
        dtype = draw(st.sampled_from(KINDS))
        tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))).to(dtype)
        tensors.append(tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor)
    firm = draw(st.lists(st.booleans(), min_size=len(tensors), max_size=len(tensors)))
    return Contents(draw(st.binary(max_size=50)), tensors, firm, draw(st.binary(max_size=50)))


@given(st.lists(any_contents(), min_size=1, max_size=6))
def test_whatever_is_new_resized_replaced_or_gone_each_commit_is_exact_and_the_one_before_it_whole(
    history: list[Contents],
) -> None:
    with memory_files() as descriptors:
        buffer = buffer_over(descriptors)
        before: Any = None
        for number, each in enumerate(history):
            wanted = [raw(tensor) for tensor in each.tensors]
            last = buffer.last()
            buffer.take(each, identity(number), step=number)
            if last is not None:
                assert [raw(view) for view in last.views] == before
            for restarted in (buffer, buffer_over(descriptors)):
                commit = restarted.last()
                assert (commit.tree, commit.local) == (each.tree, each.local)
                assert [raw(view) for view in commit.views] == wanted
                assert [view.dtype for view in commit.views] == [tensor.dtype for tensor in each.tensors]
                assert [view.shape for view in commit.views] == [tensor.shape for tensor in each.tensors]
                assert (commit.record.identity, commit.record.step) == (identity(number), number)
            before = wanted


def test_a_commit_that_finds_no_memory_leaves_the_last_one_and_the_next_small_one_works() -> None:
    import fcntl

    with memory_files() as descriptors:
        buffer = twice_committed(descriptors)
        old = seen(buffer)
        for descriptor in descriptors:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        with pytest.raises(StateError, match=r"no memory for a commit of \d+ MB: "):
            take(3, size=10 * BIG)(buffer)
        assert seen(buffer) == seen(buffer_over(descriptors)) == old
        take(3)(buffer)
        assert seen(buffer) == after(take(3))


def test_what_was_received_is_the_senders_commit_with_a_tree_of_ones_own() -> None:
    sender, receiver = buffer_over(None), buffer_over(None)
    take(5, count=4)(sender)
    take(1)(receiver)
    arriving(receiver, sender)
    theirs, mine = seen(sender), seen(receiver)
    assert (mine.tree, mine.tensors, mine.kinds) == (theirs.tree, theirs.tensors, theirs.kinds)
    assert mine.local == b"the receiver's own"
    assert mine.record == theirs.record._replace(
        identity=theirs.record.identity._replace(lineage=99), local=len(mine.local)
    )
    assert receiver.layout_digest() == sender.layout_digest()
    assert digest_of(receiver.sending()) == digest_of(sender.sending())


def test_what_is_arriving_is_not_a_commit_before_it_is_sealed(pair: list[int]) -> None:
    receiver = twice_committed(pair)
    old = seen(receiver)
    record = SENDER.record
    receiver.receiving(record, local=3).copy_(SENDER.sending())
    assert seen(receiver) == seen(buffer_over(pair)) == old


@dataclass(frozen=True)
class Wrong:
    data: int = 0
    layout: int = 0
    loose: int = 0


@pytest.mark.parametrize("wrong", [Wrong(data=-64), Wrong(data=64), Wrong(layout=-1), Wrong(loose=64)])
def test_a_received_commit_whose_lengths_are_not_those_of_its_tensors_is_refused(wrong: Wrong) -> None:
    record = SENDER.record
    lied = record._replace(
        data=record.data + wrong.data, layout=record.layout + wrong.layout, loose=record.loose + wrong.loose
    )
    receiver = buffer_over(None)
    arrives = receiver.receiving(lied, local=0)
    length = min(arrives.numel(), record.shared)
    arrives[:length].copy_(SENDER.sending()[:length])
    receiver.received(lied, b"", lineage=1)
    with pytest.raises(StateError, match="layout of a commit"):
        receiver.last()


def test_a_ranks_own_part_may_be_written_while_tensors_are_copied_and_be_of_any_length() -> None:
    buffer = buffer_over(None)
    for number, length in enumerate((10, 200_000, 10, 300_000), start=1):
        new = contents(number, local=b"x" * length)
        buffer.take(replace(new, local=lambda new=new: new.local), identity(number), step=number)
        last = buffer.last()
        assert last is not None
        assert last.local == new.local
        assert list(map(raw, last.views)) == list(map(raw, new.tensors))


def test_a_ranks_own_part_that_fails_leaves_the_last_commit() -> None:
    buffer = buffer_over(None)
    buffer.take(contents(1), identity(1), step=1)
    before = seen(buffer)

    def fails() -> bytes:
        raise RuntimeError("no generators")

    with pytest.raises(RuntimeError, match="no generators"):
        buffer.take(replace(contents(2), local=fails), identity(2), step=2)
    assert seen(buffer) == before


def beside(number: int) -> Beside:
    """What grows from commit to commit."""
    return Beside(f"beside {number}".encode(), [torch.full((number * 1000,), float(number)), torch.tensor(number)])


def test_what_is_put_beside_a_commit_is_there_for_the_next_process_of_the_slot_and_is_not_sent() -> None:
    with memory_files() as memory:
        buffer = buffer_over(memory)
        for number in (1, 2, 3):
            buffer.take(replace(contents(number), beside=beside(number)), identity(number), step=number)
        buffer.relabel(identity(3)._replace(lineage=99))
        found, wanted, bare = buffer_over(memory).beside(), beside(3), buffer_over(None)
        bare.take(contents(3), identity(3), step=3)
        assert found is not None
        assert (found.tree, list(map(raw, found.tensors))) == (wanted.tree, list(map(raw, wanted.tensors)))
        assert torch.equal(buffer.sending(), bare.sending())
        buffer.take(contents(4), identity(4), step=4)
        assert buffer.beside() is None


def test_interrupted_at_any_instruction_what_is_found_beside_a_commit_is_its_own() -> None:
    found = set()

    def attempt(moment: int) -> bool:
        with memory_files() as memory:
            buffer = buffer_over(memory)
            for number in (1, 2):
                buffer.take(replace(contents(number), beside=beside(number)), identity(number), step=number)
            new = replace(contents(3), beside=beside(3))
            was = interrupted(lambda: buffer.take(new, identity(3), step=3), at=moment)
            restarted = buffer_over(memory)
            found.add(restarted.record.identity.number)
            assert restarted.beside().tree == beside(restarted.record.identity.number).tree
            assert int(restarted.beside().tensors[1]) == restarted.record.identity.number
            return was

    assert list(every_moment(attempt, stride=29))
    assert found == {2, 3}


def test_what_lies_beside_an_earlier_commit_is_not_taken_for_that_of_one_that_has_come_from_elsewhere() -> None:
    buffer = buffer_over(None)
    for number in (3, 4):
        buffer.take(replace(contents(5, count=4, size=BIG), beside=beside(1)), identity(number), step=number)
    arriving(buffer, SENDER)
    assert buffer.last().record.shared == SENDER.record.shared
    assert buffer.beside() is None


def test_a_commit_that_arrives_where_its_own_process_was_killed_has_nothing_of_that_one_beside_it() -> None:
    """The first process put it beside the commit, and did not seal it. The next one gets the same commit there."""
    for live in (None, beside(2)):
        with memory_files() as memory:
            buffer = buffer_over(memory)
            buffer.take(replace(contents(4), local=b"own"), identity(4), step=4)
            torn = replace(contents(5), local=b"own", beside=beside(1))
            with buffer._staged(torn, buffer._plan_for(torn), identity(5), step=5):
                pass
            sender, buffer = buffer_over(None), buffer_over(memory)
            sender.take(contents(5), identity(5), step=5)
            record = sender.record
            buffer.receiving(record, local=3).copy_(sender.sending())
            buffer.received(record, b"own", lineage=99, beside=live)
            found = buffer.beside()
            assert (found and found.tree) == (live and live.tree)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_commit_is_made_without_what_cannot_be_put_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    buffer = buffer_over(None)
    quantized = torch.quantize_per_tensor(torch.ones(2, 3), 1.0, 0, torch.qint8)
    for number in (1, 2, 3):
        buffer.take(replace(contents(number), beside=Beside(b"x", [quantized])), identity(number), step=number)
    assert buffer.record.identity == identity(3)
    assert buffer.beside() is None
    [line] = caplog.messages
    assert "was not stored: " in line


def test_a_commit_is_made_without_what_finds_no_memory_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    import fcntl

    with memory_files() as descriptors:
        buffer = twice_committed(descriptors)
        for descriptor in descriptors:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        for number in (3, 4):
            large = replace(contents(number), beside=Beside(b"x", [torch.zeros(10 * BIG)]))
            buffer.take(large, identity(number), step=number)
        assert buffer.record.identity == identity(4)
        assert buffer.beside() is None
        buffer.prepare(buffer.record.total + buffer.beside_length)  # no memory is asked for that there is not
        buffer.take(replace(contents(5), beside=Beside(b"small", [])), identity(5), step=5)
        assert buffer.beside().tree == b"small"
    [line] = caplog.messages
    assert "was not stored: no memory for" in line


def test_the_end_of_a_call_is_released_and_what_a_checkpoint_keeps_there_stays() -> None:
    with memory_files(3) as memory:
        buffer = buffer_over(memory)
        sides = buffer._sides
        buffer.take(contents(1), identity(1), step=1)
        unused, before, after = buffer.hold(), buffer.hold(), buffer.hold()
        kept = buffer.keep()
        unused.release()
        before.protect()
        before.release()
        assert sides[kept].kept
        buffer.keep_none()
        after.protect()
        assert sides[kept].kept
        buffer.keep()  # meanwhile
        after.release()
        assert sides[kept].kept
        buffer.keep_none()
        after.protect()
        after.release()
        assert not sides[kept].kept
