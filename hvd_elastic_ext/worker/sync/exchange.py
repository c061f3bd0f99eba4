"""Brings the newest commit to every rank: a table of all ranks' commits, the election of a root, and its broadcast.

Every rank elects the same root from one table. What the root sends depends on what the others hold: nothing if all hold
the same commit, only the loose values if nothing else differs. A fingerprint of all shared state shows whether the
ranks are equal afterwards.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.values.trees import encode_value
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.worker.calls.meeting import Row
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, digest_of
from hvd_elastic_ext.worker.comms import Comms


class Send(Enum):
    """What the root sends to the others."""

    NOTHING = "nothing"
    """All ranks hold the same commit."""
    LOOSE = "loose"
    """All ranks hold the same commit, except for plain values, buffers and other values that are not trained."""
    ALL = "all"


class Candidate(NamedTuple):
    """The last commit of one rank. All fields are integers: a row of a table that the ranks sum up."""

    lineage: int
    """This and the next three: the commit's identity."""
    incarnation: int
    generation: int
    number: int
    step: int
    loose: int
    """This and the next three: lengths of the commit's regions, in bytes."""
    data: int
    layout: int
    tree: int
    layout_digest: int
    """Two commits with the same one have the same tensors."""
    loose_digest: int
    """With the same one, they also have the same loose contents."""
    firm_digest: int
    """The digest of the firm contents if they have changed outside a world's steps, else 0."""
    proposal: int
    """The lineage that this rank would begin."""
    entered: int
    """The last generation that it was part of."""
    imported: int = 0
    """2 if it has loaded an earlier checkpoint, 1 if it has looked for one and found none, else 0."""
    call: int = 0
    """The training call in which the commit was made."""
    in_call: int = 0
    """The call that the rank is in, 0 outside of any."""
    past: int = 0
    """This and the next seven: as in :class:`~hvd_elastic_ext.worker.calls.meeting.Row`."""
    left: int = 0
    generators: int = 0
    begun: int = 0
    others: int = 0
    collectives: int = 0
    known: int = 0
    past_bytes: int = 0
    replay: int = 0
    """Whether it notes its steps, under ``run --replay``."""

    @property
    def identity(self) -> Identity:
        """Lineage, incarnation, generation and number of its commit."""
        return Identity(self.lineage, self.incarnation, self.generation, self.number)

    @property
    def record(self) -> Record:
        """The shared part of the record of its commit."""
        return Record(
            self.identity, self.step, loose=self.loose, data=self.data, layout=self.layout, tree=self.tree, local=0,
            call=self.call,
        )  # fmt: skip

    @property
    def row(self) -> Row:
        """What its rank says about its training calls."""
        return Row(
            self.in_call, self.past, self.left, self.generators, self.others, self.collectives, self.known, self.begun,
            self.past_bytes,
        )  # fmt: skip


class Election(NamedTuple):
    """What all ranks do in this sync."""

    root: int
    """The rank that sends."""
    send: Send
    lineage: int
    """The world continues as this lineage, in this generation."""
    generation: int
    reason: str


def elect(candidates: Sequence[Candidate]) -> Election:
    """Choose the holder of the newest commit, the lowest rank among equals.

    Before the first sync of a job, commits do not count. Then a rank that has loaded a checkpoint by our
    ``load`` sends; without one rank 0 sends, because scripts load their checkpoints there.
    """
    generation = 1 + max(candidate.entered for candidate in candidates)
    if not any(candidate.lineage for candidate in candidates):
        words = [candidate.imported for candidate in candidates]
        root = words.index(2) if 2 in words else 0
        reason = f"first sync: rank {root} sends" + (", which has loaded an earlier checkpoint" if 2 in words else "")
        return Election(root, Send.ALL, candidates[root].proposal, generation, reason)
    newest = max(map(_commit, candidates), key=_age)
    holders = [rank for rank, candidate in enumerate(candidates) if _commit(candidate) == newest]
    root, where = holders[0], f"{newest[0].generation}.{newest[0].number}"
    lineage = newest[0].lineage
    if len(holders) < len(candidates):
        return Election(root, Send.ALL, lineage, generation, f"rank {root} holds the newest commit, {where}")
    for differing, send, but in (
        (_shape, Send.ALL, ", but of different tensors"),
        # For example, one rank has loaded a checkpoint: no rank stepped, so equal numbers do not mean equal weights.
        (attrgetter("firm_digest"), Send.ALL, ", but weights were changed by hand"),
        (attrgetter("loose_digest"), Send.LOOSE, ", with values of their own"),
    ):
        if len(set(map(differing, candidates))) > 1:
            return Election(root, send, lineage, generation, f"all ranks hold commit {where}{but}")
    return Election(root, Send.NOTHING, lineage, generation, f"all ranks hold commit {where}")


def _commit(candidate: Candidate) -> tuple[Identity, int]:
    """Identify its commit. With time-based commits, two ranks may give one number to commits of different steps."""
    return candidate.identity, candidate.step


def _age(commit: tuple[Identity, int]) -> tuple[int, ...]:
    """Return a sort key by age. A lineage is random, so it only decides between equally new commits of two jobs."""
    identity, step = commit
    return (identity.lineage != 0, *identity[1:], step, identity.lineage)


def _shape(candidate: Candidate) -> tuple[int, ...]:
    return (candidate.loose, candidate.data, candidate.layout, candidate.layout_digest)


# --- the table, and the sending


def candidates(
    buffer: CommitBuffer,
    comms: Comms,
    *,
    entered: int,
    by_hand: bool = False,
    imported: int = 0,
    row: Row = Row(0, 0),  # noqa: B008 (a tuple)
    replay: bool = False,
) -> list[Candidate]:
    """Return the last commit of each rank, from one small table that all ranks add up. For ``imported`` and ``replay``
    see Candidate.

    ``by_hand``: this rank's firm tensors have changed outside a world's steps, so their contents must be compared.
    """
    table = torch.zeros(comms.size(), len(Candidate._fields), dtype=torch.int64)
    mine = _candidate(buffer, entered, by_hand=by_hand)._replace(
        imported=imported, in_call=row.call, past=row.past, left=row.left, generators=row.generators, others=row.others,
        collectives=row.collectives, known=row.known, begun=row.begun, past_bytes=row.bytes, replay=replay,
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


# --- whether all are equal


def fingerprint(tree: Any) -> str:
    """Hash tensors by type, shape and bytes (not by device), containers by content, the rest as text."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in _pieces(tree):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()


def _pieces(node: Any) -> Iterator[bytes]:
    if isinstance(node, Tensor):
        yield f"tensor {node.dtype} {tuple(node.shape)}".encode()
        yield _content(node)
    elif isinstance(node, Mapping):
        yield f"mapping {len(node)}".encode()
        for key, value in sorted(node.items(), key=lambda item: repr(item[0])):
            yield repr(key).encode()
            yield from _pieces(value)
    elif isinstance(node, list | tuple):
        yield f"sequence {len(node)}".encode()
        for value in node:
            yield from _pieces(value)
    else:
        tensors: list[Tensor] = []
        yield encode_value(write(node, tensors))
        for tensor in tensors:
            yield from _pieces(tensor)


def _content(tensor: Tensor) -> bytes:
    dense = tensor.detach().to("cpu").to_dense() if tensor.layout != torch.strided else tensor.detach().to("cpu")
    plain = dense.resolve_conj().resolve_neg().contiguous()
    # Torch calls a single element contiguous with any stride, but cannot view it as bytes then.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
