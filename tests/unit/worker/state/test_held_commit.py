"""Commits that stay where they are while training commits on, for whoever makes them durable."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hvd_elastic_ext.core.commit_record import KEPT_AT, PAGE, newest
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.state import keeper
from hvd_elastic_ext.worker.state.slot_memory import HeldCommit
from tests.support.waiting import wait_until
from tests.unit.worker.lockstep import in_lockstep
from tests.unit.worker.made_commits import contents, identity, keeper_of, memory_files


def lies_on(descriptor: int) -> tuple[int, bytes] | None:
    """Number and bytes of the commit that an owner of the memory finds there."""
    size = os.fstat(descriptor).st_size
    page = os.pread(descriptor, PAGE, 0)
    found = newest(page, size - PAGE) if size >= PAGE else None
    return None if found is None else (found.record.identity.number, os.pread(descriptor, found.record.total, PAGE))


def commit(buffer: CommitBuffer, *numbers: int) -> None:
    for number in numbers:
        buffer.take(contents(number), identity(number), step=number)


def release(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.pwrite(descriptor, b"\0", KEPT_AT)


class Said(Link):
    """A link that remembers what was said."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        super().__init__(connection)
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def send(self, what: str, **fields: Any) -> None:
        self.heard.append((what, fields))


def test_a_kept_commit_stays_whole_until_it_is_released_or_another_is_kept(memory: list[int]) -> None:
    """Also for the process that follows in the slot."""
    buffer = CommitBuffer(open_sides(memory))
    commit(buffer, 1, 2)
    kept = memory[buffer.keep()]
    before = lies_on(kept)
    assert before[0] == 2
    for number in range(3, 12):
        if number == 7:
            buffer = CommitBuffer(open_sides(memory))
            assert buffer.record.identity.number == 6
        commit(buffer, number)
        assert lies_on(kept) == before
        assert buffer.record.identity.number == number
    second = memory[buffer.keep()]
    assert [os.pread(each, 1, KEPT_AT) for each in memory].count(b"\1") == 1
    commit(buffer, 12, 13, 14)
    assert lies_on(kept)[0] in (12, 13, 14)
    assert lies_on(second)[0] == 11
    release(memory)
    commit(buffer, 15, 16)
    assert lies_on(second)[0] in (15, 16)


def test_a_request_that_is_open_when_a_training_call_ends_is_met_in_the_next_one(memory: list[int]) -> None:
    """Defect: the launcher waited for that commit for ever, and no checkpoint was made in the second call."""
    link = Said()
    first = CommitBuffer(open_sides(memory))
    before = HeldCommit(first, link)
    before.request({"tell": "keep", "commit": [0, 1, 3]})
    commit(first, 1, 2)
    before.committed(identity(2), 2)
    second = CommitBuffer(open_sides(memory))
    after = HeldCommit(second, link)
    before.pass_on(after)
    assert (before.is_requested, after.is_requested, link.heard) == (False, True, [])
    commit(second, 3)
    after.committed(identity(3), 3)
    [(what, fields)] = link.heard
    assert (what, fields["commit"]) == ("commit_kept", identity(3))
    assert lies_on(memory[fields["side"]])[0] == 3
    before.pass_on(after)
    assert not after.is_requested


def test_memory_for_a_kept_commit_is_there_before_it_is_needed(memory: list[int]) -> None:
    buffer = CommitBuffer(open_sides(memory))
    commit(buffer, 1, 2)
    assert os.fstat(memory[2]).st_size == 0
    buffer.prepare_to_keep()
    assert os.fstat(memory[2]).st_size > PAGE


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_commit_that_was_named_is_kept_and_what_was_missed_is_said(memory: list[int], late: int) -> None:
    buffer, link = CommitBuffer(open_sides(memory)), Said()
    held = HeldCommit(buffer, link)
    commit(buffer, 1)
    commit(buffer, *range(2, 2 + late))
    held.request({"tell": "keep", "commit": [0, 1, 2]})
    for number in (2 + late, 3 + late):
        commit(buffer, number)
        held.committed(identity(number), number)
    if late:
        assert link.heard == [("commit_not_kept", {"wanted": (0, 1, 2), "newest": (0, 1, 2 + late)})]
        return
    assert [what for what, _ in link.heard] == ["commit_kept"]
    said = link.heard[0][1]
    assert (said["commit"], said["step"]) == (identity(2), 2)
    found = lies_on(memory[said["side"]])
    assert found[0] == 2


@pytest.mark.parametrize("stay", [False, True])
def test_a_commit_that_was_passed_before_it_was_named_is_said_to_be_at_once(memory: list[int], *, stay: bool) -> None:
    """The next commit may never come: others have kept it, and stay there."""
    buffer, link = CommitBuffer(open_sides(memory)), Said()
    held = HeldCommit(buffer, link)
    for number in (1, 2):
        commit(buffer, number)
        held.committed(identity(number), number)
    held.request({"tell": "keep", "commit": [0, 1, 2], "stay": stay})
    assert link.heard == [("commit_not_kept", {"wanted": (0, 1, 2), "newest": (0, 1, 2)})]
    held.request({"tell": "keep", "commit": [0, 1, 3]})
    commit(buffer, 3)
    held.committed(identity(3), 3)
    assert [what for what, _ in link.heard] == ["commit_not_kept", "commit_kept"]


def test_a_commit_that_no_world_has_agreed_on_is_not_kept(memory: list[int]) -> None:
    buffer, link = CommitBuffer(open_sides(memory)), Said()
    held = HeldCommit(buffer, link)
    commit(buffer, 1)
    held.request({"tell": "keep", "commit": [0, 1, 2]})
    alone = identity(2)._replace(lineage=0)
    buffer.take(contents(2), alone, step=2)
    held.committed(alone, 2)
    assert [what for what, _ in link.heard] == ["commit_not_kept"]


def staying(link: Link) -> Iterator[tuple[HeldCommit, threading.Thread]]:
    """A process that keeps the commit it was asked for, in a thread of its own."""
    with memory_files(3) as descriptors:
        buffer = CommitBuffer(open_sides(descriptors))
        commit(buffer, 1)
        held = HeldCommit(buffer, link)
        held.request({"tell": "keep", "commit": [0, 1, 2], "stay": True})
        commit(buffer, 2)
        thread = threading.Thread(target=held.committed, args=(identity(2), 2))
        thread.start()
        try:
            yield held, thread
        finally:
            held.request({"tell": "keep", "commit": None})
            thread.join(10)


@pytest.mark.parametrize("end", ["given up", "another is named", "its agent is gone"])
def test_who_is_told_to_stay_goes_no_further_until_it_hears_otherwise_or_nobody_can_tell_it(end: str) -> None:
    ours, theirs = socket.socketpair()
    link = Said(ours)
    with theirs, contextlib.contextmanager(staying)(link) as (held, thread):
        wait_until(lambda: link.status.waiting, what="the process that stays")
        thread.join(0.2)
        assert thread.is_alive()
        if end == "its agent is gone":
            link.close()
        else:
            held.request({"tell": "keep", "commit": None if end == "given up" else [0, 1, 9]})
        thread.join(10)
        assert not thread.is_alive()
        assert not link.status.waiting
    link.close()


def test_a_word_that_comes_just_before_it_stays_is_heard() -> None:
    class Answered(Said):
        """Another rank has passed the commit, and the next name is here at once."""

        def send(self, what: str, **fields: Any) -> None:
            super().send(what, **fields)
            if what == "commit_kept":
                held.request({"tell": "keep", "commit": [0, 1, 9], "stay": True})

    ours, theirs = socket.socketpair()
    link = Answered(ours)
    with theirs, memory_files(3) as descriptors:
        buffer = CommitBuffer(open_sides(descriptors))
        held = HeldCommit(buffer, link)
        commit(buffer, 1)
        held.request({"tell": "keep", "commit": [0, 1, 2], "stay": True})
        commit(buffer, 2)
        thread = threading.Thread(target=held.committed, args=(identity(2), 2))
        thread.start()
        thread.join(10)
        stays = thread.is_alive()
        held.request({"tell": "keep", "commit": None})
        thread.join(10)
        assert not stays
    link.close()


def test_nothing_is_kept_while_memory_for_another_one_is_made_ready(memory: list[int]) -> None:
    buffer, link = CommitBuffer(open_sides(memory)), Said()
    held = HeldCommit(buffer, link)
    commit(buffer, 1, 2)
    held.request({"tell": "keep", "commit": [0, 1, 2]})

    def in_between() -> None:
        held.committed(identity(2), 2)

    buffer.prepare_to_keep = in_between
    held.request({"tell": "keep", "commit": [0, 1, 3]})
    assert link.heard == []
    assert not any(os.pread(each, 1, KEPT_AT) == b"\1" for each in memory)


def test_without_a_third_side_nothing_is_kept_and_that_is_said(pair: list[int]) -> None:
    buffer, link = CommitBuffer(open_sides(pair)), Said()
    commit(buffer, 1)
    HeldCommit(buffer, link).request({"tell": "keep", "commit": [0, 1, 2]})
    assert link.heard == [("commit_not_kept", {"wanted": [0, 1, 2], "newest": None})]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_where_commits_are_kept_for_checkpoints_memory_is_asked_for_three_of_them(
    memory: list[int], monkeypatch: pytest.MonkeyPatch, checkpoints: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(keeper, "memory_warning", lambda *, copies, **_: asked.append(copies))
    in_lockstep(1, lambda comms: keeper_of(comms, memory, link=Said() if checkpoints else None) and None)
    assert asked == [3 if checkpoints else 2]


def test_a_request_that_comes_while_the_last_files_are_written_does_not_drop_them(memory: list[int]) -> None:
    """Other ranks are done sooner, and the launcher may name a commit that no rank makes any more."""
    buffer, said = CommitBuffer(open_sides(memory)), Said()
    held = HeldCommit(buffer, said)
    commit(buffer, 1)
    held.committed(identity(1), 1)

    def written() -> int:
        held.request({"commit": [*identity(9)[1:]], "stay": False})
        side = buffer.keep()
        assert side is not None
        return side

    assert held.last(identity(1), 1, instead=written) is None
    assert [what for what, _ in said.heard] == ["commit_not_kept", "last_commit"]
    commit(buffer, 2)
    held.committed(identity(2), 2)  # another training begins
    held.request({"commit": [*identity(3)[1:]], "stay": False})
    assert held.is_requested
