"""A health ledger as it is saved, and as plain JSON, and back, across launchers with different clocks. Pure.

Times are saved as seconds from the moment of saving, with its wall time: so cooldowns continue while no launcher
runs. A stepped wall clock may end a block too early or too late; it loses no strike and orders nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, HealthRecord, Strike, Subject

VERSION: Final = 1
KINDS: Final = ("slot", "pod", "host", "node")


def as_saved(ledger: HealthLedger, now: float) -> HealthLedger:
    """The ledger with all times in seconds from ``now`` (mono); what no longer counts is left out."""
    records = {s: _as_saved(record, now) for s, record in ledger.records.items() if not record.empty(now)}
    faults = tuple(replace(fault, at=fault.at - now, unproven_s=0.0, detail="") for fault in ledger.faults)
    return HealthLedger(records, faults)


def continued(saved: HealthLedger, now: float, *, passed_s: float) -> HealthLedger:
    """A ledger of :func:`as_saved` in the time of a clock that shows ``now``, this long after it was saved."""
    passed = max(0.0, passed_s)
    records = {subject: _continued(record, now, passed) for subject, record in saved.records.items()}
    faults = tuple(replace(fault, at=now + min(0.0, fault.at) - passed) for fault in saved.faults)
    return HealthLedger(records, faults)


def by_hand(saved: HealthLedger) -> HealthLedger:
    """Of a ledger of :func:`as_saved` the blocks by hand: they hold for every run of the job."""
    records = {
        subject: replace(record, strikes=0, cooldown=0.0, until=0.0, cause=None, lifted=False, detail="")
        for subject, record in saved.records.items()
        if record.held and not record.drained
    }
    return HealthLedger(records)


def to_json(ledger: HealthLedger, now: float, *, wall: float) -> dict[str, Any]:
    """The ledger at ``now`` (mono) as ``json.dumps`` takes it; what no longer counts is left out."""
    return saved_to_json(as_saved(ledger, now), wall=wall)


def from_json(document: object, now: float, *, wall: float) -> HealthLedger:
    """The ledger that :func:`to_json` wrote, in the time of a clock that shows ``now``. Raises as the next one."""
    saved, at = saved_from_json(document)
    return continued(saved, now, passed_s=wall - at)


def saved_to_json(saved: HealthLedger, *, wall: float) -> dict[str, Any]:
    """A ledger of :func:`as_saved` as ``json.dumps`` takes it. ``wall``: when it was saved (Unix seconds)."""
    return {
        "version": VERSION,
        "saved": wall,
        "records": [{**_subject(subject), **_record(record)} for subject, record in saved.records.items()],
        "faults": [
            {**_subject(fault.subject), "cause": fault.cause.value, "at": fault.at, "node": fault.node}
            for fault in saved.faults
        ],
    }


def saved_from_json(document: object) -> tuple[HealthLedger, float]:
    """The ledger that :func:`saved_to_json` wrote, and when it was saved.

    Raises ``ValueError``, one line, for anything else.
    """
    try:
        return _read(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a saved health ledger: {type(error).__name__} {error}") from None


def _read(document: Any) -> tuple[HealthLedger, float]:
    if document["version"] != VERSION:
        raise ValueError(
            f"version {document['version']!r} of a saved health ledger is not known here; known: {VERSION}"
        )
    records = {_subject_of(item): _record_of(item) for item in document["records"]}
    faults = tuple(
        Strike(_subject_of(item), Cause(item["cause"]), _number(item["at"]), str(item["node"]))
        for item in document["faults"]
    )
    return HealthLedger(records, faults), _number(document["saved"])


def _as_saved(record: HealthRecord, now: float) -> HealthRecord:
    held = record.held_back(now)
    held_until = record.held_until - now if held and record.held_until is not None else None
    held_since = record.held_since - now if held and record.held_since is not None else None
    return replace(record, until=record.until - now, held=held, held_until=held_until, held_since=held_since)


def _continued(record: HealthRecord, now: float, passed: float) -> HealthRecord:
    held_until = None if record.held_until is None else now + _left(record.held_until, passed)
    held_since = None if record.held_since is None else now + min(0.0, record.held_since) - passed
    return replace(record, until=now + _left(record.until, passed), held_until=held_until, held_since=held_since)


def _subject(subject: Subject) -> dict[str, Any]:
    known = {"kind": subject.kind, "name": subject.name, "uid": subject.uid, "slot": subject.slot}
    return {**known, "life": subject.life} if subject.life else known


def _record(record: HealthRecord) -> dict[str, Any]:
    return {
        "strikes": record.strikes,
        "cooldown": record.cooldown,
        "ends_in": record.until,
        "cause": None if record.cause is None else record.cause.value,
        "lifted": record.lifted,
        "held": record.held,
        "held_for": record.held_until,
        "held_since": record.held_since,
        "reason": record.reason,
        "drained": record.drained,
        "detail": record.detail,
    }


def _subject_of(item: Mapping[str, Any]) -> Subject:
    kind, name, uid, slot = item["kind"], item["name"], item["uid"], item["slot"]
    life = item.get("life", "")
    if kind not in KINDS or not all(isinstance(text, str) for text in (name, uid, life)):
        raise ValueError(f"a saved health ledger blames {kind!r} {name!r}; there is no such subject")
    if (kind == "slot") != (type(slot) is int):
        raise ValueError(f"a saved health ledger names slot {slot!r} of {kind} {name!r}")
    return Subject(kind, name, uid, slot, life)


def _record_of(item: Mapping[str, Any]) -> HealthRecord:
    strikes = item["strikes"]
    if type(strikes) is not int or strikes < 0:
        raise ValueError(f"a saved health ledger counts {strikes!r} strikes")
    held_for, held_since = item["held_for"], item.get("held_since")
    return HealthRecord(
        strikes=strikes,
        cooldown=max(0.0, _number(item["cooldown"])),
        until=_number(item["ends_in"]),
        cause=None if item["cause"] is None else Cause(item["cause"]),
        lifted=bool(item["lifted"]),
        held=bool(item["held"]),
        held_until=None if held_for is None else _number(held_for),
        held_since=None if held_since is None else _number(held_since),
        reason=str(item["reason"]),
        drained=item.get("drained") is True,
        detail=external_text(text) if isinstance(text := item.get("detail"), str) else "",
    )


def _left(seconds: float, passed: float) -> float:
    """What is left of a future time. A past time keeps its distance, so that no strike decays meanwhile."""
    return max(0.0, seconds - passed) if seconds > 0 else seconds


def _number(value: object) -> float:
    if (found := finite_number(value)) is None:
        raise ValueError(f"a saved health ledger holds {value!r} where a number of seconds belongs")
    return found
