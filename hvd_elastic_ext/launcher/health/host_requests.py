"""Requests of ``hvd-elastic hosts`` and their answers, by a running launcher or from its saved state. Pure.

Requests: ``{"do": "list"}``, ``{"do": "block", "host": H, "for": seconds or null, "reason": text}``,
``{"do": "clear", "host": H}``. ``H`` is a host, or a node that is known. Answers: ``{"hosts": [row, …]}``,
``{"said": line}``, ``{"error": line}``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import Host, name_error
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Subject

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.health.ledger import HealthRecord
    from hvd_elastic_ext.launcher.membership.spares import Counts


MAX_REASON: Final = 200
NEEDED: Final = "; it trains on until others can do without it (--min-np)"
NOT_LISTED: Final = "; not in the list of hosts"
MAX_FOR_S: Final = durations.LONGEST_DAYS * 86400.0
NAMES: Final = 8
"""Most hosts that an error names."""


class Starting(NamedTuple):
    """What is being started on a host, and is not in a world yet."""

    what: str
    """An agent or a process."""
    since_s: float
    """How many seconds ago it was started."""
    lacks: str
    """What is missing."""
    left_s: float | None = None
    """The time that is left; None if there is no limit."""
    limit: str = ""
    """The option that sets the limit."""
    outside: bool = False
    """It is not starting any more, but waits until the job ends, or all others have ended."""

    @property
    def brief(self) -> str:
        """The same in a few words."""
        end = "ready" if self.left_s is None else f"at most {max(0.0, self.left_s):.0f} s more"
        return f"{self.what.removeprefix('the process in ')}, {end}"

    def __str__(self) -> str:
        most = "" if self.left_s is None else f", at most {max(0.0, self.left_s):.0f} s more"
        option = f": {self.limit}" if self.limit else ""
        return f"{self.what} {self.lacks} (started {duration(self.since_s)} ago{most}{option})"


class Answered(NamedTuple):
    """``ledger`` is the same object if the request changed nothing."""

    ledger: HealthLedger
    answer: Mapping[str, Any]


def answer(
    request: Mapping[str, Any],
    ledger: HealthLedger,
    *,
    hosts: Sequence[Host],
    now: float,
    training: Collection[str] = (),
    starting: Mapping[str, Starting] | None = None,
    spares: Mapping[str, Counts] | None = None,
    kept: Mapping[Host, str] | None = None,
) -> Answered:
    """Answer one request. ``hosts``: those published now; ``training``: those in the world.

    ``starting``: by host, what is being started there. ``spares``: by host, how many there are. ``kept``: hosts in use
    that are not published, and why.

    Raises :class:`UsageError` for an invalid request.
    """
    match request.get("do"):
        case "list":
            found = rows(ledger, hosts, now, training=training, starting=starting, spares=spares, kept=kept)
            return Answered(ledger, {"hosts": found})
        case "block":
            return _block(request, ledger, [*hosts, *(kept or {})], now)
        case "clear":
            return _clear(checked_name(request.get("host")), ledger, [*hosts, *(kept or {})], now)
        case other:
            raise UsageError(f"there is no request {other!r}; there are: list, block, clear")


def journal_entry(request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The event of the journal for a request that has changed something, and its fields."""
    host = str(request.get("host"))
    if request.get("do") == "clear":
        return "cleared", {"host": host, "reason": "by hand"}
    reason = request.get("reason") or ""
    return "blocked", {"host": host, "for_s": request.get("for"), "reason": f"by hand{': ' if reason else ''}{reason}"}


def rows(
    ledger: HealthLedger,
    hosts: Sequence[Host],
    now: float,
    *,
    training: Collection[str] = (),
    starting: Mapping[str, Starting] | None = None,
    spares: Mapping[str, Counts] | None = None,
    kept: Mapping[Host, str] | None = None,
) -> list[dict[str, Any]]:
    """One row for each published host, then each ``kept`` host, then each other subject on record.

    ``training``, ``starting``, ``spares``: as above. If there are hosts, other subjects except nodes have a row only
    while they are blocked.
    """
    listed: set[Subject] = set()
    found, unlisted = [], kept or {}
    for host, known in ledger.by_host((*hosts, *unlisted)):
        about = known or HealthLedger()
        mine = [s for s in about.subjects(host) if not about.records[s].empty(now)]
        listed.update(s for s in mine if s.kind != "node")
        row = _host_row(about, host, mine, now=now, starting=(starting or {}).get(host.name))
        if (counts := (spares or {}).get(host.name)) is not None:
            row |= {"spares": counts._asdict(), "why": "; ".join(filter(None, (f"spares: {counts}", row["why"])))}
        if row["state"] == "blocked" and host.name in training:
            row["why"] += NEEDED
        if (why := unlisted.get(host)) is not None:
            state = "kept" if row["state"] == "free" else row["state"]
            row |= {"published": False, "state": state, "why": "; ".join(filter(None, (row["why"], why)))}
        found.append(row)
    rest = [s for s, record in ledger.records.items() if s not in listed and not record.empty(now)]
    others = [_other_row(subject, ledger.records[subject], now) for subject in sorted(rest, key=_order)]
    if not found:
        return others
    for row in others:
        row["why"] += "" if row["kind"] == "node" else NOT_LISTED
    return found + [row for row in others if row["kind"] == "node" or row["state"] == "blocked"]


def _host_row(
    ledger: HealthLedger, host: Host, mine: Iterable[Subject], *, now: float, starting: Starting | None
) -> dict[str, Any]:
    status = ledger.blocked(now, host)
    usable = ledger.usable_slots(now, host)
    held = [(subject, ledger.records[subject]) for subject in mine]
    # The row of a host that works in part gives the reason for a blocked slot.
    missing = [ledger.blocked(now, host, slot) for slot in range(host.slots) if slot not in usable]
    why = status if status.blocked else missing[0] if missing else None
    reasons = [why.reason] if why else []
    is_starting = starting is not None and not starting.outside
    if starting is not None:
        reasons.append(str(starting))
        failed = max((record for _, record in held if record.strikes), key=lambda record: record.until, default=None)
        if failed is not None and not why:
            reasons.append(f"the last time: {failed.why}")
    return {
        "name": host.name,
        "kind": "host",
        "published": True,
        "node": host.node,
        "slots": host.slots,
        "usable": list(usable),
        "state": "blocked" if status.blocked else "in part" if missing else "starting" if is_starting else "free",
        "starting_s": round(starting.since_s, 3) if starting is not None and is_starting else None,
        "spares": None,
        "strikes": sum(record.strikes_left(now) for _, record in held),
        "since_s": None if why is None or why.since is None else round(now - why.since, 3),
        "left_s": None if why is None or why.until is None else round(why.until - now, 3),
        "why": "; ".join(reasons),
        "held": [{"subject": str(subject), **_facts(record, now)} for subject, record in held],
    }


def _other_row(subject: Subject, record: HealthRecord, now: float) -> dict[str, Any]:
    facts = _facts(record, now)
    return {
        "name": subject.name if subject.kind != "slot" else f"{subject.name}[{subject.slot}]",
        "kind": subject.kind,
        "published": False,
        "node": subject.name if subject.kind == "node" else "",
        "slots": None,
        "usable": None,
        "state": "blocked" if facts["blocked"] else "free",
        "starting_s": None,
        "spares": None,
        "strikes": facts["strikes"],
        "since_s": facts["since_s"],
        "left_s": facts["left_s"],
        "why": facts["why"],
        "held": [{"subject": str(subject), **facts}],
    }


def _facts(record: HealthRecord, now: float) -> dict[str, Any]:
    blocked = record.blocked(now)
    end = record.ends(now) if blocked else None
    by_hand = record.held_back(now)
    why = record.how_held if by_hand else record.why
    return {
        "blocked": blocked,
        "by_hand": by_hand and not record.drained,
        "strikes": record.strikes_left(now),
        "cause": None if record.cause is None else record.cause.value,
        "said": record.detail,
        "since_s": None if (since := record.since(now)) is None else round(now - since, 3),
        "left_s": None if end is None else round(end - now, 3),
        "why": why,
    }


def _order(subject: Subject) -> tuple[str, str, int]:
    return (subject.kind, subject.name, -1 if subject.slot is None else subject.slot)


def _block(request: Mapping[str, Any], ledger: HealthLedger, hosts: Sequence[Host], now: float) -> Answered:
    name = checked_name(request.get("host"))
    seconds = request.get("for")
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_FOR_S
    ):
        raise UsageError(f"a block for {seconds!r} seconds makes no sense; give a number above 0")
    reason = checked_reason(request.get("reason", ""))
    known = any(host.name == name for host in hosts)
    is_node = not known and _is_node(name, ledger, hosts)
    subject = Subject("node" if is_node else "host", name)
    until = None if seconds is None else now + seconds
    text = f"{subject} is blocked " + ("until it is cleared" if seconds is None else f"for {duration(seconds)}")
    if hosts and not known and not is_node:
        text += f"; no host of that name is published now{_near(name, [host.name for host in hosts])}"
    return Answered(ledger.block(subject, until, reason, at=now), {"said": text})


def _clear(name: str, ledger: HealthLedger, hosts: Sequence[Host], now: float) -> Answered:
    known = {word for host in hosts for word in (host.name, host.node) if word} | {s.name for s in ledger.records}
    if known and name not in known:
        near = _near(name, known) or f"; there are {', '.join(sorted(known)[:NAMES])}"
        raise UsageError(f"no host or node of the name {name} is published or on record{near}")
    mine = [subject for subject in ledger.records if subject.name == name]
    faults = [fault.subject for fault in ledger.faults if fault.subject.name == name]
    after = ledger
    for subject in dict.fromkeys([*mine, *faults]):
        after = after.cleared(subject)
    if not any(not ledger.records[subject].empty(now) for subject in mine):
        text = f"nothing was held against {name}"
    else:
        text = f"{name} is cleared: {', '.join(map(str, sorted(mine, key=_order)))}"
    for host in hosts:
        if host.name == name and (left := after.blocked(now, host)).blocked:
            text += f"; still blocked: {left.reason}; clear {host.node} too"
    return Answered(after if mine or faults else ledger, {"said": text})


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _is_node(name: str, ledger: HealthLedger, hosts: Sequence[Host]) -> bool:
    return any(host.node == name for host in hosts) or Subject("node", name) in ledger.records


def checked_name(name: object) -> str:
    """A name that can be a host's. Raises :class:`UsageError`."""
    problem = name_error(name) if isinstance(name, str) else f"{name!r} is not a host name"
    if problem is not None:
        raise UsageError(problem)
    return str(name)


def checked_reason(reason: object) -> str:
    """A reason that fits on a line. Raises :class:`UsageError`."""
    if not isinstance(reason, str) or len(reason) > MAX_REASON or not reason.isprintable():
        raise UsageError(f"--reason {reason!r}: write one line of at most {MAX_REASON} characters")
    return reason


def duration(seconds: float) -> str:
    """For people: ``9 s``, ``9m 50s``, ``2h 5m``, ``3d 4h``."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    for high, low, size, part in (("m", "s", 60, 1), ("h", "m", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if high == "m" else 24) or high == "d":
            rest = whole % size // part
            return f"{whole // size}{high}" + (f" {rest}{low}" if rest else "")
    raise AssertionError("days take everything")
