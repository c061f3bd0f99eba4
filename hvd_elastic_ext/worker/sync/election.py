"""Decides which rank sends its commit, and which part. Every rank decides the same, from one table of all commits."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from hvd_elastic_ext.core.commit_record import Identity, Record


class Send(Enum):
    """What the root sends to the others."""

    NOTHING = "nothing"
    """All ranks hold the same commit."""
    LOOSE = "loose"
    """All ranks hold the same commit, except for plain values, buffers and other values that are not trained."""
    ALL = "all"


class Candidate(NamedTuple):
    """The last commit of one rank. All fields are integers: a row of a table that the ranks sum up.

    Two commits with the same ``layout_digest`` have the same tensors; with the same ``loose_digest``, also the same
    loose contents. ``firm_digest``: the digest of the firm contents if they have changed outside a world's steps, else
    0. ``proposal``: the lineage that this rank would begin. ``entered``: the last generation that it was part of.
    ``imported``: 2 if it has loaded an earlier checkpoint, 1 if it has looked for one and found none, else 0.
    ``call``: the training call in which the commit was made. ``in_call``: the one that the rank is in, 0 outside of
    any; ``past`` and the rest: see ``worker/calls/meeting.py``.
    """

    lineage: int
    incarnation: int
    generation: int
    number: int
    step: int
    loose: int
    data: int
    layout: int
    tree: int
    layout_digest: int
    loose_digest: int
    firm_digest: int
    proposal: int
    entered: int
    imported: int = 0
    call: int = 0
    in_call: int = 0
    past: int = 0
    left: int = 0
    generators: int = 0
    begun: int = 0
    others: int = 0
    collectives: int = 0
    known: int = 0

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


class Election(NamedTuple):
    """``root`` sends; the world continues as ``lineage`` in ``generation``."""

    root: int
    send: Send
    lineage: int
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
        reason = f"first sync: rank {root} sends" + (", which has a checkpoint from before" if 2 in words else "")
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
