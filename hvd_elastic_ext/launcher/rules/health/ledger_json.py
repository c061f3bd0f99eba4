"""A health ledger as plain JSON and back, across launchers with different clocks. Pure.

Times are saved as seconds from the moment of saving, with its wall time: so cooldowns continue while no launcher
runs. A stepped wall clock may end a block too early or too late; it loses no strike and orders nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger, Record, Strike, Subject

VERSION: Final = 1
KINDS: Final = ("slot", "pod", "host", "node")


def to_json(ledger: HealthLedger, now: float, *, wall: float) -> dict[str, Any]:
    """The ledger at ``now`` (mono) as ``json.dumps`` takes it; what no longer counts is left out."""
    return {
        "version": VERSION,
        "saved": wall,
        "records": [
            {**_subject(subject), **_record(record, now)}
            for subject, record in ledger.records.items()
            if not record.empty(now)
        ],
        "faults": [
            {**_subject(fault.subject), "cause": fault.cause.value, "at": fault.at - now, "node": fault.node}
            for fault in ledger.faults
        ],
    }


def from_json(document: object, now: float, *, wall: float) -> HealthLedger:
    """The ledger that :func:`to_json` wrote, in the time of a clock that shows ``now``.

    Raises ``ValueError``, one line, for anything else.
    """
    try:
        return _read(document, now, wall)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no saved health ledger: {type(error).__name__} {error}") from None


def by_hand(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Of what :func:`to_json` wrote the blocks by hand: they hold for every run of the job."""
    match document:
        case {"version": version, "saved": saved, "records": [*records]}:
            nothing = {"strikes": 0, "cooldown": 0.0, "ends_in": 0.0, "cause": None, "forgiven": False}
            held = [
                {**record, **nothing}
                for record in records
                if isinstance(record, dict) and record.get("held") is True and record.get("drained") is not True
            ]
            return {"version": version, "saved": saved, "records": held, "faults": []}
    return None


def _read(document: Any, now: float, wall: float) -> HealthLedger:
    if document["version"] != VERSION:
        raise ValueError(
            f"version {document['version']!r} of a saved health ledger is not known here; known: {VERSION}"
        )
    passed = max(0.0, wall - _number(document["saved"]))
    records = {_subject_of(item): _record_of(item, now, passed) for item in document["records"]}
    faults = tuple(
        Strike(_subject_of(item), Cause(item["cause"]), now + min(0.0, _number(item["at"])) - passed, str(item["node"]))
        for item in document["faults"]
    )
    return HealthLedger(MappingProxyType(records), faults)


def _subject(subject: Subject) -> dict[str, Any]:
    known = {"kind": subject.kind, "name": subject.name, "uid": subject.uid, "slot": subject.slot}
    return {**known, "life": subject.life} if subject.life else known


def _record(record: Record, now: float) -> dict[str, Any]:
    return {
        "strikes": record.strikes,
        "cooldown": record.cooldown,
        "ends_in": record.until - now,
        "cause": None if record.cause is None else record.cause.value,
        "forgiven": record.forgiven,
        "held": record.held_back(now),
        "held_for": None if record.held_until is None or not record.held_back(now) else record.held_until - now,
        "reason": record.reason,
        "drained": record.drained,
    }


def _subject_of(item: Mapping[str, Any]) -> Subject:
    kind, name, uid, slot = item["kind"], item["name"], item["uid"], item["slot"]
    life = item.get("life", "")
    if kind not in KINDS or not all(isinstance(text, str) for text in (name, uid, life)):
        raise ValueError(f"a saved health ledger blames {kind!r} {name!r}; there is no such subject")
    if (kind == "slot") != (type(slot) is int):
        raise ValueError(f"a saved health ledger names slot {slot!r} of {kind} {name!r}")
    return Subject(kind, name, uid, slot, life)


def _record_of(item: Mapping[str, Any], now: float, passed: float) -> Record:
    strikes = item["strikes"]
    if type(strikes) is not int or strikes < 0:
        raise ValueError(f"a saved health ledger counts {strikes!r} strikes")
    held_for = item["held_for"]
    return Record(
        strikes=strikes,
        cooldown=max(0.0, _number(item["cooldown"])),
        until=now + _left(_number(item["ends_in"]), passed),
        cause=None if item["cause"] is None else Cause(item["cause"]),
        forgiven=bool(item["forgiven"]),
        held=bool(item["held"]),
        held_until=None if held_for is None else now + _left(_number(held_for), passed),
        reason=str(item["reason"]),
        drained=item.get("drained") is True,
    )


def _left(seconds: float, passed: float) -> float:
    """What is left of a future time. A past time keeps its distance, so that no strike decays meanwhile."""
    return max(0.0, seconds - passed) if seconds > 0 else seconds


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a saved health ledger holds {value!r} where a number of seconds belongs")
    return float(value)
