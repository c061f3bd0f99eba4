"""The notes of the newest committed steps, which each commit takes along. Pure.

A loss needs the notes since the last commit only. These are for later: to execute one step alone, from an earlier
checkpoint on (``hvd-elastic replay``). A commit must not wait for them, so they are text that is joined and not made
again; only the last piece grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core.recorded_steps import Head, head_of
from hvd_elastic_ext.worker.replay import notes
from hvd_elastic_ext.worker.replay.notes import Run, Runs

MOST: Final = 32 << 10
"""Most bytes of notes in a commit: some 1,000 steps, if each has another rate. The oldest ones go first."""
FULL: Final = 16
"""Runs of a piece that does not grow any more."""

Worlds = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some steps, one after another."""

    runs: Runs
    text: str
    steps: int


@dataclass(frozen=True, slots=True)
class History:
    """The steps that led to a commit."""

    at: int = 0
    """All of them, noted or not any more."""
    pieces: tuple[Piece, ...] = ()
    worlds: Worlds = ()
    """As :attr:`Head.worlds`."""

    @property
    def began(self) -> int:
        """The steps before the first one that is noted."""
        return self.at - sum(piece.steps for piece in self.pieces)

    def after(self, runs: Sequence[Run], *, generation: int) -> History:
        """Return what a commit of that world takes along, with the steps since the commit before it."""
        pieces, worlds = list(self.pieces), self.worlds
        if runs:
            grows = bool(pieces) and len(pieces[-1].runs) < FULL
            pieces.append(_piece((*(pieces.pop().runs if grows else ()), *runs)))
        if not worlds or worlds[-1][0] != generation:
            worlds = (*worlds, (generation, self.at))
        made = History(self.at + notes.count(runs), tuple(pieces), worlds)
        return made._bounded() if sum(len(piece.text) for piece in pieces) > MOST else made

    def encode(self, seed: int, *, step: int) -> str:
        """Return it as text for a commit after ``step`` steps: a line of its own, and one for each piece."""
        head = Head(seed, self.began, self.at, step, self.worlds)
        return "\n".join((head.encode(), *(piece.text for piece in self.pieces)))

    def _bounded(self) -> History:
        pieces, length = list(self.pieces), sum(len(piece.text) for piece in self.pieces)
        while length > MOST:
            length -= len(pieces.pop(0).text)
        began = self.at - sum(piece.steps for piece in pieces)
        ends = [begin for _, begin in self.worlds[1:]] + [self.at]
        kept = tuple(world for world, end in zip(self.worlds, ends, strict=True) if end >= began)
        return History(self.at, tuple(pieces), kept)


def decode(text: str) -> tuple[History, Head]:
    """Return what :meth:`History.encode` wrote. Raises as :func:`~notes.decode` for others."""
    head, lines = head_of(text), text.split("\n")[1:]
    runs = [notes.decode(line.encode()) for line in lines]
    pieces = tuple(Piece(each, line, notes.count(each)) for each, line in zip(runs, lines, strict=True))
    return History(head.at, pieces, head.worlds), head


def _piece(runs: Sequence[Run]) -> Piece:
    joined = notes.joined(runs)
    return Piece(joined, notes.encode(joined).decode(), notes.count(joined))
