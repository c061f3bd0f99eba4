"""Sends commits from the root to the other ranks."""

from __future__ import annotations

import secrets

import torch
from torch import Tensor

from hvd_elastic_ext.core.commit_record import Record
from hvd_elastic_ext.worker.calls.meeting import Row
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, digest_of
from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.sync.election import Candidate


def candidates(
    buffer: CommitBuffer,
    comms: Comms,
    *,
    entered: int,
    by_hand: bool = False,
    imported: int = 0,
    row: Row = Row(0, 0),  # noqa: B008 (a tuple)
) -> list[Candidate]:
    """Return the last commit of each rank, from one small table that all ranks add up. For ``imported`` see Candidate.

    ``by_hand``: this rank's firm tensors have changed outside a world's steps, so their contents must be compared.
    """
    table = torch.zeros(comms.size(), len(Candidate._fields), dtype=torch.int64)
    mine = _candidate(buffer, entered, by_hand=by_hand)._replace(
        imported=imported, in_call=row.call, past=row.past, left=row.left, generators=row.generators, others=row.others,
        collectives=row.collectives, known=row.known, begun=row.begun,
    )  # fmt: skip
    table[comms.rank()] = torch.tensor(mine, dtype=torch.int64)
    comms.sum(table, name="election")
    return [Candidate(*numbers) for numbers in table.tolist()]


def _candidate(buffer: CommitBuffer, entered: int, *, by_hand: bool) -> Candidate:
    record = buffer.record
    assert record is not None
    shared = buffer.sending()
    tree = shared[record.data + record.layout :]
    return Candidate(
        *record.identity,
        step=record.step,
        loose=record.loose,
        data=record.data,
        layout=record.layout,
        tree=record.tree,
        layout_digest=buffer.layout_digest(),
        loose_digest=digest_of(shared[: record.loose]) << 31 ^ digest_of(tree),
        firm_digest=1 + digest_of(shared[record.loose : record.data]) if by_hand and record.identity.lineage else 0,
        proposal=1 + secrets.randbelow(2**62),
        entered=entered,
        call=record.call,
    )


def send_all(buffer: CommitBuffer, comms: Comms, *, root: int) -> None:
    """Send the last commit to all other ranks, which call :func:`receive_all`."""
    comms.broadcast(buffer.sending(), root=root, name="commit")


def receive_all(buffer: CommitBuffer, comms: Comms, *, root: int, record: Record, local: int) -> None:
    """Receive a commit whose shared regions are as in ``record`` into a spare side; it is not sealed yet.

    A peer that is lost meanwhile leaves this rank's own commit as it was.
    """
    comms.broadcast(buffer.receiving(record, local=local), root=root, name="commit")


def exchange_loose(buffer: CommitBuffer, comms: Comms, *, root: int, record: Record) -> tuple[Tensor, bytes]:
    """Return the root's loose bytes and its tree, on every rank. ``record`` is the root's."""
    shared = buffer.sending()
    at = record.data + record.layout
    if comms.rank() == root:
        loose, tree = shared[: record.loose], shared[at : at + record.tree]
    else:
        loose, tree = (torch.empty(length, dtype=torch.uint8) for length in (record.loose, record.tree))
    comms.broadcast(loose, root=root, name="loose")
    comms.broadcast(tree, root=root, name="tree")
    return loose, tree.numpy().tobytes()


def same_everywhere(digest: str, comms: Comms) -> bool:
    """Return whether every rank has the same digest (hexadecimal)."""
    number = int(digest[:15], 16)
    return comms.max(number, name="digest.max") == -comms.max(-number, name="digest.min")
