"""The launcher's lines on the terminal: one for each important event of the journal.

A planner that records an event logs nothing itself: its line is made here. Events that are not in :data:`LINES` have no
line. Events of training processes go to the journal without the launcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from hvd_elastic_ext.core.errors import HOSTS_KEPT
from hvd_elastic_ext.launcher.rules.health.causes import Cause

log = logging.getLogger(__name__)

Fields = Mapping[str, Any]

PROCESS_CAUSES: Final = frozenset(map(str, (Cause.CRASHED, Cause.MEMORY, Cause.SILENT, Cause.STALLED)))
"""Causes of a strike that follow only from the end of a process."""


def announce(event: str, generation: int, fields: Fields) -> None:
    """Log the line of an event, if it has one."""
    if event in LINES and (text := LINES[event](generation, fields)):
        log.log(logging.INFO if event in INFO_EVENTS else logging.WARNING, "%s", text)


def _published(_: int, fields: Fields) -> str:
    signs = (("+", "added"), ("-", "removed"), ("more slots: ", "grown"), ("fewer slots: ", "shrunk"))
    if not fields["hosts"] and fields["removed"] and not fields.get("departing"):
        return ""  # the driver decides whether the hosts are kept, and logs that
    from_none = (
        len(fields["added"]) == len(fields["hosts"]) and not fields["removed"]
    )  # earlier hosts may have been kept after an empty list
    changes = [] if from_none else [f"{sign}{host}" for sign, key in signs for host in fields[key]]
    hosts = ", ".join(f"{host}:{slots}" for host, slots in fields["hosts"].items()) or "none"
    return f"hosts: {hosts}" + (f" ({', '.join(changes)})" if changes and fields["number"] > 1 else "")


def _refused(_: int, fields: Fields) -> str:
    kept = f"{HOSTS_KEPT} until a list is accepted" if fields.get("kept") else ""
    return f"the host list is refused: {fields['reason'].removesuffix(HOSTS_KEPT)}{kept}"


def _resized(generation: int, fields: Fields) -> str:
    before: Mapping[str, int] = fields.get("slots_before", {})
    signed = (*(("+", host) for host in fields["added"]), *(("-", host) for host in fields["removed"]))
    named_hosts = " ".join(f"{sign}{host}" for sign, host in signed if host not in before)
    resized = (f"{host}: {count} to {fields['hosts'][host]} slots" for host, count in before.items())
    changes = ", ".join(filter(None, (named_hosts, *resized)))
    where = ", ".join(f"{host}:{count}" for host, count in fields["hosts"].items())
    parts = [f"world {generation}: size {fields['size']} ({where})"]
    named = changes and fields["cause"] != "start"
    parts.append(f"{fields['cause']}: {changes}" if named else fields["cause"])
    if (downtime_s := fields["downtime_s"]) is not None:
        parts.append(f"downtime {downtime_s:.1f} s")
    elif fields["cause"] != "start":
        parts.append("downtime unknown")
    if (lost := fields["steps_lost"]) is not None:
        parts.append(f"steps lost: {lost}")
    if because := fields.get("lost_because"):
        parts.append(because)
    if without := fields.get("without"):
        parts.append(f"--min-np lets it start without {', '.join(without)}")
    return "; ".join(parts)


def _exited(_: int, fields: Fields) -> str:
    if fields["cause"] in ("done", "told to leave"):
        return ""
    rank = fields.get("rank")
    who = _place(fields) if rank is None else f"rank {rank} ({_place(fields)})"
    return f"{who} has ended: {fields['reason']}"


def _standby(_: int, fields: Fields) -> str:
    beside = " beside the training" if fields.get("trains", True) else ""
    return f"{_place(fields)} starts a process{beside}"


def _place(fields: Fields) -> str:
    return f"{fields['host']} slot {fields['slot']}" if fields.get("slot") is not None else str(fields["host"])


def _struck(_: int, fields: Fields) -> str:
    seconds = fields.get("cooldown_s")
    if why := fields.get("waived"):
        return f"{fields['subject']} is used again at once: {why}"
    if seconds is None:
        return ""
    again = fields.get("again")
    as_before = f"{fields['cause']}, as before ({again} strikes)" if again else None
    if why := fields.get("host_blocked"):
        host = fields["host"]
        why = as_before or _shortened(why.removeprefix(f"host {host}: "), fields)
        return f"{host} is blocked for {fields['host_blocked_s']:.0f} s: {why}"
    return f"{fields['subject']} is blocked for {seconds:.0f} s: {as_before or _shortened(fields['reason'], fields)}"


def _shortened(why: str, fields: Fields) -> str:
    """The reason of a block, without the text that the line before it, about the process's end, has already."""
    cause, reason = fields["cause"], fields["reason"]
    return why.replace(f": {reason.removeprefix(f'{cause}: ')}", "") if cause in PROCESS_CAUSES else why


def _scaled(_: int, fields: Fields) -> str:
    go = f"; {', '.join(fields['leaving'])} may go" if fields["leaving"] else ""
    return f"asks for {_hosts(fields['hosts'])} instead of {fields['before']} (--autoscale): {fields['reason']}{go}"


def _scale_recommended(_: int, fields: Fields) -> str:
    return f"{_hosts(fields['hosts'])} recommended (--autoscale): {fields['reason']}"


def _not_scaled(_: int, fields: Fields) -> str:
    return f"{_hosts(fields['hosts'])} cannot be requested now; the request is repeated: {fields['reason']}"


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _blocked(_: int, fields: Fields) -> str:
    seconds = fields.get("for_s")
    ends = "until it is cleared" if seconds is None else f"for {seconds:.0f} s"
    return f"{fields['host']} is blocked {ends}: {fields['reason']}"


def _cleared(_: int, fields: Fields) -> str:
    what = "is used again before its time is over" if fields.get("waived") else "may work again"
    return f"{fields['host']} {what}: {fields['reason']}"


def _reason(prefix: str) -> Callable[[int, Fields], str]:
    return lambda _, fields: f"{prefix.format_map(fields)}{fields['reason']}"


LINES: Final[Mapping[str, Callable[[int, Fields], str]]] = {
    "published": _published,
    "refused": _refused,
    "standby": _standby,
    "resized": _resized,
    "exited": _exited,
    "struck": _struck,
    "blocked": _blocked,
    "scaled": _scaled,
    "scale_recommended": _scale_recommended,
    "not_scaled": _not_scaled,
    "cleared": _cleared,
    "finished": lambda _, fields: "" if fields["code"] else f"the job ends: {fields['reason']}",
}
"""``(generation, fields) -> line`` by event; an empty line is not announced."""

INFO_EVENTS: Final = frozenset(
    {"published", "standby", "resized", "cleared", "finished", "scaled", "scale_recommended"}
)
"""Events that need no action of the user."""
