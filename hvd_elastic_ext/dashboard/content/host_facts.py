"""The state of each host, from the newest journal records about it. Pure.

A running launcher has newer data. This is for jobs that have ended, or whose launcher does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.report.faults import expected
from hvd_elastic_ext.report.timeline import names, number, text, whole

MAX_HOSTS: Final = 5000
"""Most hosts that are kept and shown."""


@dataclass(slots=True)
class HostFacts:
    """What the journal says of a host."""

    slots: int | None = None
    listed: bool = False
    trains: bool = False
    spares: int = 0
    """Processes that wait there to take the place of a lost one."""
    strikes: int = 0
    why: str = ""
    """The reason of its last fault."""
    held: str = ""
    """Why the host is blocked."""
    until: float | None = None
    """The end of its cooldown or block (Unix seconds). None: not blocked; infinite: by hand, without an end."""
    notice: str = ""
    """Why it will be gone soon."""
    straggler: str = ""
    """Why it counts as slow."""
    gone: str = ""
    """How the host was lost."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Rank and pid of each process, as started."""


class Hosts:
    """All hosts in the journal."""

    def __init__(self) -> None:
        self.known: dict[str, HostFacts] = {}

    def note(self, record: Record) -> None:
        """Apply a record. A record without a host changes nothing."""
        if (took := _TAKES.get(record.event)) is not None:
            took(self, record)

    def at(self, name: str) -> HostFacts:
        """Return the facts of a host; beyond :data:`MAX_HOSTS` hosts, facts that are not kept."""
        if name in self.known or len(self.known) < MAX_HOSTS:
            return self.known.setdefault(name, HostFacts())
        return HostFacts()

    def _started(self, _: Record) -> None:
        for host in self.known.values():
            host.trains, host.spares = False, 0

    def _published(self, record: Record) -> None:
        listed = _sizes(record.get("hosts"))
        for name, host in self.known.items():
            host.listed = name in listed
        for name, slots in listed.items():
            host = self.at(name)
            host.listed, host.slots = True, slots

    def _resized(self, record: Record) -> None:
        world = _sizes(record.get("hosts"))
        for name, host in self.known.items():
            host.trains = name in world
        for name, slots in world.items():
            host = self.at(name)
            host.trains, host.gone, host.spares = True, "", 0
            host.slots = slots if host.slots is None else host.slots
        for name in (*names(record.get("added")), *names(record.get("removed"))):
            host = self.at(name)
            host.straggler = host.notice = ""

    def _slept(self, record: Record) -> None:
        self._started(record)

    def _spawned(self, record: Record) -> None:
        rank, pid = whole(record.get("rank")), whole(record.get("pid"))
        if rank is not None:
            self._of(record).ranks[rank] = pid or 0

    def _standby(self, record: Record) -> None:
        if record.get("spare") is True:
            self._of(record).spares += 1

    def _exited(self, record: Record) -> None:
        host = self._of(record)
        host.spares = 0 if host.trains else max(0, host.spares - 1)
        rank = whole(record.get("rank"))
        if rank is not None:
            host.ranks.pop(rank, None)
        if not expected(record):
            host.why = text(record.get("reason")) or text(record.get("cause"))

    def _struck(self, record: Record) -> None:
        host = self._of(record)
        host.strikes += 1
        host.why = text(record.get("reason")) or text(record.get("cause"))
        seconds = number(record.get("host_blocked_s"))  # none if other slots of the host may work
        if seconds is not None and not record.get("waived"):
            host.until, host.held = (number(record.t) or 0.0) + seconds, host.why

    def _blocked(self, record: Record) -> None:
        host = self._of(record)
        seconds = number(record.get("for_s"))
        host.until = float("inf") if seconds is None else (number(record.t) or 0.0) + seconds
        host.held = text(record.get("reason"))

    def _cleared(self, record: Record) -> None:
        host = self._of(record)
        host.until, host.held = None, ""
        if not record.get("waived"):
            host.strikes = 0

    def _notice(self, record: Record) -> None:
        self._of(record).notice = text(record.get("reason")) or "will be gone soon"

    def _notice_over(self, record: Record) -> None:
        self._of(record).notice = ""

    def _straggler(self, record: Record) -> None:
        self._of(record).straggler = text(record.get("reason"))

    def _fenced(self, record: Record) -> None:
        self._of(record).gone = text(record.get("reason"))

    def _of(self, record: Record) -> HostFacts:
        return self.at(text(record.get("host") or record.get("subject")))


_TAKES: Final[Mapping[str, Callable[[Hosts, Record], None]]] = {
    "started": Hosts._started,
    "published": Hosts._published,
    "resized": Hosts._resized,
    "slept": Hosts._slept,
    "finished": Hosts._slept,
    "spawned": Hosts._spawned,
    "standby": Hosts._standby,
    "exited": Hosts._exited,
    "struck": Hosts._struck,
    "blocked": Hosts._blocked,
    "cleared": Hosts._cleared,
    "notice": Hosts._notice,
    "notice_over": Hosts._notice_over,
    "straggler": Hosts._straggler,
    "fenced": Hosts._fenced,
}


def _sizes(value: Any) -> dict[str, int]:
    """Return the slots by host from a mapping; 0 for a value that is not a whole number. Anything else gives no
    hosts."""
    if not isinstance(value, dict):
        return {}
    return {text(name): whole(slots) or 0 for name, slots in value.items()}


def row(name: str, host: HostFacts, now: float) -> dict[str, Any]:
    """One host as the page shows it, in the terms of `hvd-elastic hosts list -o json`. ``now``: Unix seconds."""
    blocked = host.until is not None and host.until > now
    forever = host.until == float("inf")
    left_s = None if forever or host.until is None or not blocked else round(host.until - now, 1)
    return {
        "name": name,
        "slots": host.slots,
        "state": "blocked" if blocked else "free",
        "strikes": host.strikes,
        "left_s": left_s,
        "why": host.held if blocked else host.why,
        "trains": host.trains,
        "spares": host.spares,
        "listed": host.listed,
        "notice": host.notice,
        "straggler": host.straggler,
        "gone": host.gone,
        "ranks": sorted(host.ranks),
        "cpu": None,
        "memory": None,
        "gpu": None,
        "gpu_memory": None,
        "price": None,
        "shares": None,
    }
