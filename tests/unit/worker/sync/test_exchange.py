"""Commits on their way: every rank ends with the root's, or keeps its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from horovod.common.exceptions import HorovodInternalError

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.sync import exchange
from hvd_elastic_ext.worker.sync.exchange import Send, elect
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.made_commits import buffer_over, contents, seen

SIZE = 3


def holding(number: int, *, lineage: int = 7, **options: Any) -> CommitBuffer:
    buffer = buffer_over(None)
    buffer.take(contents(number, **options), Identity(lineage, 0, 1, number), step=number)
    return buffer


def test_a_peer_that_is_lost_on_the_way_leaves_everyone_their_own_commit() -> None:
    def rank_main(comms: LockstepComms) -> Any:
        buffer = holding(9 if comms.rank() == 0 else comms.rank(), size=3000)
        before = seen(buffer)
        said = exchange.candidates(buffer, comms, entered=1)
        if comms.rank() == 1:
            comms._fabric.leave("rank 1 was killed")
            return None
        send = partial(exchange.send_all, root=0)
        receive = partial(exchange.receive_all, root=0, record=said[0].record, local=5)
        move = receive if comms.rank() else send
        with pytest.raises(HorovodInternalError):
            move(buffer, comms)
        assert seen(buffer) == before
        buffer.take(contents(4), Identity(7, 0, 1, 10), step=4)
        return True

    found, _ = in_lockstep(SIZE, rank_main)
    assert found == [True, None, True]


def test_a_received_commit_is_of_the_call_of_the_root() -> None:
    def rank_main(comms: LockstepComms) -> Any:
        buffer = holding(9 - comms.rank())
        first = buffer.record
        assert first is not None
        if comms.rank() == 0:
            buffer._seal(buffer._current, first._replace(call=3))
        said = exchange.candidates(buffer, comms, entered=1)
        if comms.rank() == 0:
            exchange.send_all(buffer, comms, root=0)
        else:
            exchange.receive_all(buffer, comms, root=0, record=said[0].record, local=0)
            buffer.received(said[0].record, b"", lineage=7)
        return buffer.record.call if buffer.record is not None else None

    found, _ = in_lockstep(SIZE, rank_main)
    assert found == [3, 3, 3]


def test_only_what_may_differ_is_sent_to_ranks_that_hold_the_commit() -> None:
    def rank_main(comms: LockstepComms) -> Any:
        buffer = buffer_over(None)
        mine = contents(5)
        loose = [tensor for tensor, firm in zip(mine.tensors, mine.firm, strict=True) if not firm]
        loose[0].fill_(comms.rank())
        buffer.take(mine, Identity(7, 0, 1, 1), step=1)
        said = exchange.candidates(buffer, comms, entered=1)
        decided = elect(said)
        assert decided.send is Send.LOOSE
        sent, tree = exchange.exchange_loose(buffer, comms, root=decided.root, record=said[decided.root].record)
        commit = buffer.last()
        places = [place for place, firm in zip(commit.layout.places, mine.firm, strict=True) if not firm]
        return [place.view(sent).tolist() for place in places], tree

    found, fabric = in_lockstep(SIZE, rank_main)
    assert found[0] == found[1] == found[2]
    assert set(found[0][0][0]) == {0.0}
    assert found[0][1] == contents(5).tree
    sizes = [int(line.split()[2]) for line in fabric.log if line.startswith("broadcast")]
    assert sum(sizes) < 300


@pytest.mark.parametrize(
    ("digests", "same"),
    [
        (["ab" * 16] * 3, True),
        (["ab" * 16, "ab" * 16, "ac" * 16], False),
        (["0" * 32] * 3, True),
        (["f" * 32, "0" * 32, "f" * 32], False),
    ],
)
def test_ranks_find_out_together_whether_they_are_the_same(digests: list[str], same: bool) -> None:
    found, _ = in_lockstep(SIZE, lambda comms: exchange.same_everywhere(digests[comms.rank()], comms))
    assert found == [same] * SIZE
