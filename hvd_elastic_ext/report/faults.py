"""Ends of processes and strikes, in the words of the launcher. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.report.timeline import Moment, number, text, whole

TOLD_TO_LEAVE: Final = "told to leave"
"""The launcher's cause for exits that it requested."""
_BECAUSE_OF_OTHERS: Final = ("peer lost", "behind")
"""Its causes for processes that ended because of another one."""
LEFT: Final = "left"
"""Its cause for processes that end without an order and without an error."""


def note_of(faults: Sequence[Moment]) -> str:
    """Say what happened to each host; omit the name if there is only one."""
    exits = [m.record for m in faults if m.record.event == "exited" and explains(m.record)]
    causes = [record for record in exits if text(record.get("cause")) not in _BECAUSE_OF_OTHERS] or exits
    notes = [(host_of(record), _end_note(record)) for record in causes]
    explained = {host for host, _ in notes}
    struck = [m.record for m in faults if m.record.event == "struck"]
    again = {host_of(record): strike_note(record) for record in struck if record.get("waived")}
    for record in struck:
        if (host := host_of(record)) not in explained:
            notes.append((host, joined(text(record.get("cause")), detail_of(record), between=": ")))
        notes.append((host, again.get(host) or strike_note(record)))
    alone = len({host for host, _ in notes}) == 1
    return "; ".join(dict.fromkeys(note if alone else f"{host}: {note}" for host, note in notes))


def host_of(record: Record) -> str:
    """The host of an end or a strike."""
    return text(record.get("host") or record.get("subject"))


def seat(host: str, slot: int | None) -> str:
    """A slot as the launcher names it, such as ``h3[0]``; without its number, the host."""
    return host if slot is None or not host else f"{host}[{slot}]"


def expected(record: Record) -> bool:
    """Whether an exit is normal."""
    return whole(record.get("code")) == 0 or text(record.get("cause")) == TOLD_TO_LEAVE


def explains(record: Record) -> bool:
    """Whether an exit is the reason for a lost world, also an exit with code 0 of a process that left by itself."""
    return not expected(record) or text(record.get("cause")) == LEFT


def _end_note(record: Record) -> str:
    """Cause and reason of an exit; some reasons begin with the cause as their first word."""
    cause, reason = exit_note(record), text(record.get("reason"))
    return reason if reason.startswith(f"{cause} ") else joined(cause, detail_of(record), between=": ")


def exit_note(record: Record) -> str:
    """The cause of an exit."""
    code = whole(record.get("code"))
    return text(record.get("cause")) or ("ended" if code is None else f"exit code {code}")


def detail_of(record: Record) -> str:
    """What the launcher knew of a fault beyond its cause."""
    cause, reason = text(record.get("cause")), text(record.get("reason"))
    return "" if reason == cause else reason.removeprefix(f"{cause}: ")


def joined(*parts: str, between: str = "; ") -> str:
    """The parts that are not empty."""
    return between.join(filter(None, parts))


_USED_AGAIN: Final = "used again at once, as no other host may work"
_NEEDED: Final = "used again at once, as no world can form without it"


def strike_note(record: Record) -> str:
    """What follows from a strike."""
    if why := text(record.get("waived")):
        return _NEEDED if why.startswith("no world can form") else _USED_AGAIN
    seconds, until = number(record.get("cooldown_s")), number(record.get("until"))
    if seconds is None and until is not None:
        seconds = until - record.t
    return "blocked" if seconds is None else f"blocked for {max(0.0, seconds):.0f} s"
