"""The next step of saving memory in a job in which no process trains. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Kept

Identity = tuple[int, int, int, int]


class Found(NamedTuple):
    """A checkpoint that ``host`` has found: its name, its path, and the commit and the step that it holds."""

    name: str
    path: str
    identity: Identity
    step: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """``held``: the commit in the memory of each seat; ``stored``: the newest checkpoint; ``whole``: it was read back.

    ``looked``: the agents have answered. ``stateless``: processes have trained that keep no commit.
    """

    looked: bool = False
    held: Mapping[Seat, Kept] = field(default_factory=dict)
    stored: Found | None = None
    whole: bool = False
    stateless: bool = False


class Step(Enum):
    """The next step."""

    LOOK = "see what memory and storage hold"
    WRITE = "write what memory holds"
    VERIFY = "read the checkpoint back"
    SLEEP = "nothing is left to save"
    WAIT = "it cannot be saved"


def next_step(known: Known, *, read_back: bool = True, useless: tuple[int, int, int] | None = None) -> Step:
    """Choose the next step. ``read_back``: a checkpoint counts only once it is read back. ``useless``: a commit from
    whose checkpoint no job can resume."""
    if not known.looked:
        return Step.LOOK
    newest = max((kept.commit[1:] for kept in known.held.values()), default=None)
    if newest is not None and (known.stored is None or known.stored.identity[1:] < newest):
        return Step.WAIT if newest == useless else Step.WRITE
    if known.stored is None:
        return Step.WAIT if known.stateless else Step.SLEEP
    return Step.SLEEP if known.whole or not read_back else Step.VERIFY
