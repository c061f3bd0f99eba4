"""Which rank sends its commit, and what of it. Every rank decides the same from one table of all commits."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from hvd_elastic_ext.core.commit_record import Identity, Record


class Send(Enum):
    """What the root sends to the others."""

    NOTHING = "nothing"
    """All hold the same commit."""
    LOOSE = "loose"
    """All hold the same commit, except for plain values, buffers and other things that are not trained."""
    ALL = "all"


class Candidate(NamedTuple):
    """The last commit of one rank. All fields are integers: a row of a table that the ranks sum up.

    ``layout_digest`` and ``loose_digest`` tell whether two commits have the same tensors, and the same loose contents;
    ``firm_digest`` is that of the firm contents where they changed outside a world's steps, else 0; ``proposal`` is the
    lineage it would begin; ``entered`` the last generation it was part of; ``imported`` whether a checkpoint from
    before was put into it (2), or looked for and not found (1).
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

    @property
    def identity(self) -> Identity:
        """Lineage, incarnation, generation and number of its commit."""
        return Identity(self.lineage, self.incarnation, self.generation, self.number)

    @property
    def record(self) -> Record:
        """The record of its commit, as far as it is shared."""
        return Record(
            self.identity, self.step, loose=self.loose, data=self.data, layout=self.layout, tree=self.tree, local=0
        )


class Election(NamedTuple):
    """``root`` sends; the world goes on as ``lineage`` in ``generation``."""

    root: int
    send: Send
    lineage: int
    generation: int
    reason: str


def elect(candidates: Sequence[Candidate]) -> Election:
    """Choose the holder of the newest commit, the lowest rank among equals.

    Before the first sync of a job, commits do not count. Then rank 0 sends, as scripts that load a
    checkpoint there expect, or a rank that loaded one by our ``load``.
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
    """Which commit it holds. With time-based commits, two ranks may give one number to commits of different steps."""
    return candidate.identity, candidate.step


def _age(commit: tuple[Identity, int]) -> tuple[int, ...]:
    """Ordered by age. A lineage is a random number, so it only decides when two jobs' commits are equally new."""
    identity, step = commit
    return (identity.lineage != 0, *identity[1:], step, identity.lineage)


def _shape(candidate: Candidate) -> tuple[int, ...]:
    return (candidate.loose, candidate.data, candidate.layout, candidate.layout_digest)
