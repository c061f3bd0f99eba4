"""Hosts that will go, and the end of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.endings import Left, Staying
from hvd_elastic_ext.launcher.health.stalls import Member
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat


@dataclass(slots=True)
class Notices:
    """Hosts that will go, by the published list; what agents report is in the roster."""

    departing: Mapping[str, float] = field(default_factory=dict)
    """When each will be gone (mono; infinite if unknown)."""
    announced: Mapping[str, Cause] = field(default_factory=dict)
    """Why each goes."""
    listed: frozenset[str] = frozenset()
    """Those that the newest list names."""
    unavailable: set[str] = field(default_factory=set)
    """Clouds that a host could not ask, as was reported."""


@dataclass(slots=True)
class Preemption:
    """What processes were told about the loss of hosts."""

    all_by: float | None = None
    """When less than training needs will be left (mono; infinite if unknown); None if enough will be."""
    open: bool = True
    """A process may have been told that its host goes, perhaps by an earlier launcher."""


@dataclass(slots=True)
class Outcome:
    """How the job ends."""

    over: bool = False
    """It has ended: with ``failure``, or well if that is None."""
    failure: JobFailed | None = None
    """Why everything is to end."""
    finishing: bool = False
    """Training is done: the rest of the world comes to its end."""
    failed: tuple[int, str] = (0, "")
    """The generation of the last process that has failed, and a text about it."""
    early: tuple[Member, ...] = ()
    """Members that were done with training while others went on in a world of their own."""
    went_on: dict[ProcessId, int] = field(default_factory=dict)
    """Those others, and the step after which they did more than the first ones."""
    more: dict[Seat, int] = field(default_factory=dict)
    """How many steps more they did, for those that have ended."""


@dataclass(slots=True)
class CleanExits:
    """Members of a world that have ended with exit code 0 within their training function."""

    of: int = 0
    """The number of that world, or of one between that and the next one that forms."""
    members: tuple[ProcessId, ...] = ()
    """All members of that world."""
    unknown: list[Staying] = field(default_factory=list)
    """What else may have been in it, if it is that of an earlier launcher."""
    left: dict[ProcessId, Left] = field(default_factory=dict)
    """Those that have left; kept until another world has formed."""
    until: float | None = None
    """Until when others are waited for (mono); None if they are not."""
    open: bool = False
    """What the newest end means is not decided yet."""
    alone: bool = False
    """The newest end left no process of the newest world."""
    logged: bool = False
    """The log says that training goes on although they have left."""
    advised: bool = False
    """The log has the remedy."""


@dataclass(slots=True)
class Shutdown:
    """The progress of the end."""

    unconnected: dict[str, Host] = field(default_factory=dict)
    """Hosts that could not be told to end: their processes may run for ever."""
    refused: dict[str, str] = field(default_factory=dict)
    """The reasons, of those that have answered."""
    running: dict[str, Host] = field(default_factory=dict)
    """Hosts with processes that were not seen to end."""
    ends_by: float | None = None
    gone_by: float | None = None
    asked: set[str] = field(default_factory=set)
    """Hosts that are ended without a connection."""
    pending: set[str] = field(default_factory=set)
    """Those of them that have not answered."""
    skip_waiting: bool = False
    """The job is ended for the second time: missing hosts are not waited for."""

    def is_late(self, now: float) -> bool:
        """Whether processes and agents had enough time to end."""
        return self.ends_by is not None and now >= self.ends_by
