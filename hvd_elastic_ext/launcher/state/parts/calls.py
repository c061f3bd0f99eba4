"""The training calls of the job: the results of those that are over, and where they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.core.call_results import UNEQUAL
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

MOST_KNOWN: Final = 1 << 31
"""No call has a larger number: a message that names one is wrong."""


@dataclass(slots=True)
class PastTransfer:
    """A past that is sent to another slot. ``results``: how many of them at least. ``began``: when (mono).

    ``first``: a commit waits for it. ``asked``: the hosts whose helpers were started for it. ``record``: as
    :attr:`Calls.record_world` then, if the source has that record; else None.
    """

    target: Seat
    source: Seat
    results: int
    token: str
    began: float
    first: bool = False
    record: int | None = None
    asked: set[str] = field(default_factory=set)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that take part."""
        return (self.source.host, self.target.host)


@dataclass(slots=True)
class Calls:
    """Facts about calls. In a job with one call, which nearly all are, they stay as they begin."""

    newest: int = 1
    """The largest number of a call, or of results, that was ever reported. While it is 1, nothing is decided, unless
    there are :attr:`collectives`."""
    collectives: bool = False
    """Whether the result of call 0 has, or will have, what collectives returned before the first training call."""
    pasts: dict[Seat, int] = field(default_factory=dict)
    """By seat, the number of results in its memory, by its agent or process."""
    refused: dict[int, str] = field(default_factory=dict)
    """Calls whose result was not kept, and why."""
    record_due: bool = False
    """Whether processes have begun the first call after such collectives, and not kept yet what these returned."""
    recorded: set[Seat] | None = None
    """Seats whose result of call 0 is of the newest start of the job, as far as is known: a slot that was away then has
    that of an earlier one. None: no process has reported any yet, and all are taken for that."""
    record_world: int = 0
    """The generation of the world whose processes have kept it."""
    told: dict[int, bool] = field(default_factory=dict)
    """Calls whose end is in the journal, and whether the result was kept."""
    transfer: PastTransfer | None = None
    not_before: float = 0.0
    """No transfer before then (mono): the last one has failed."""

    @property
    def sending(self) -> Seat | None:
        """The seat whose results are being sent, and then its commit."""
        return None if self.transfer is None or not self.transfer.first else self.transfer.source

    def go_first(self, source: Seat, target: Seat) -> bool:
        """Whether a slot lacks results that belong to the commit of another one: without them, its process could not
        come to the training call of that commit.
        """
        return self.pasts.get(source, 0) > max(1, self.pasts.get(target, 0))

    def has_record(self, seat: Seat) -> bool:
        """Whether a slot holds what collectives returned at the newest start of the job."""
        return self.pasts.get(seat, 0) > 0 and not self.record_due and not self.is_stale(seat)

    def is_stale(self, seat: Seat) -> bool:
        """Whether the result of call 0 in a slot, if it has any, may be of an earlier start."""
        return self.recorded is not None and seat not in self.recorded

    def recorded_in(self, seats: Iterable[Seat], generation: int) -> bool:
        """Slots have what collectives have returned to the members of a world. Return whether that is new."""
        before = self.recorded if generation == self.record_world else None
        self.recorded, self.record_world = {*(before or ()), *seats}, generation
        return self.recorded != before

    def named(self, call: int) -> None:
        """A process has named a call."""
        self.newest = max(self.newest, call)

    def holds(self, seat: Seat, results: int) -> None:
        """A slot holds this many results. Those from one on that ranks have refused, since it differs, do not count."""
        results = min([results, *(call for call, why in self.refused.items() if why == UNEQUAL)])
        if results > 0:
            self.pasts[seat] = results
            self.newest = max(self.newest, results)
        else:
            self.pasts.pop(seat, None)
            if self.recorded is not None:
                self.recorded.discard(seat)

    def agent_joined(self, host: str, found: Collection[tuple[Seat, int]]) -> None:
        """An agent has joined, and reports the results in its slots."""
        for seat in [seat for seat in self.pasts if seat.host == host]:
            del self.pasts[seat]
        if self.recorded is not None:
            here = {seat for seat, results in found if results}
            self.recorded -= {seat for seat in self.recorded if seat.host == host and seat not in here}
        for seat, results in found:
            self.holds(seat, results)


def call_number(value: object) -> int | None:
    """The number of a call, or of results, in a message; None for anything else."""
    return value if type(value) is int and 0 <= value < MOST_KNOWN else None
