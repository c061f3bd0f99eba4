"""The text of ``state.json``: what a launcher saved for the next one, with a version and a checksum. Pure.

Version 2 has one field for each part of :class:`Saved`. Version 1 had all but three of them, untyped, in ``more``. Both
are read strictly: a part of the wrong kind makes the whole text a damaged one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hvd_elastic_ext.autoscale.decide import Change
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.launcher.custody.custody import Commit, Stored
from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.folder.saved import Saved, SavedScaling, UnrecordedChange
from hvd_elastic_ext.launcher.health import ledger_json
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

VERSION: Final = 2


PORTS: Final = 1 << 16


class NewerVersion(ValueError):
    """A newer hvd-elastic wrote the text."""


def to_text(saved: Saved) -> str:
    """One line that :func:`from_text` reads."""
    document = to_json(saved)
    return _text({**document, "sum": sum_of(document)}) + "\n"


def from_text(text: str) -> Saved:
    """What :func:`to_text` wrote. Raises ``ValueError``, one line, for anything else."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is int and version > VERSION:
        raise NewerVersion(f"a newer hvd-elastic wrote it, in version {version}; {VERSION} is known here")
    if type(version) is not int or version not in _READERS:
        raise ValueError("not a launcher's state of a version known here")
    if document.pop("sum", None) != sum_of(document):
        raise ValueError("its checksum is wrong")
    return from_json(document)


def sum_of(document: Mapping[str, Any]) -> str:
    """Protects against damage, not against attacks: a user who can write here can do anything."""
    return hashlib.sha256(_text(document).encode()).hexdigest()


def to_json(saved: Saved) -> dict[str, Any]:
    """As ``json.dumps`` takes it."""
    change, stored = saved.change, saved.stored
    return {
        "version": VERSION,
        "incarnation": saved.incarnation,
        "generation": saved.generation,
        "run": saved.run,
        "ended": saved.ended,
        "finished": saved.finished,
        "ledger": ledger_json.saved_to_json(saved.ledger, wall=saved.at),
        "hosts": {host.name: host.slots for host in saved.hosts},
        "ports": dict(saved.ports),
        "only_here": saved.only_here,
        "stored": None if stored is None else stored._asdict(),
        "change": None if change is None else {**change._asdict(), "fields": dict(change.fields)},
        "commits": [noted._asdict() for noted in saved.commits],
        "outcome": saved.outcome,
        "scaling": None if saved.scaling is None else _scaling_to_json(saved.scaling),
        "refused": {str(call): why for call, why in saved.refused.items()},
        "recorded": None if saved.recorded is None else [[seat.host, seat.slot] for seat in saved.recorded],
        "record_world": saved.record_world,
    }


def from_json(document: Mapping[str, Any]) -> Saved:
    """What :func:`to_json` wrote, here or in an earlier version. Raises ``ValueError``, one line, for anything else."""
    try:
        return _READERS[document["version"]](document)
    except KeyError as missing:
        raise ValueError(f"without {missing}") from None
    except (AttributeError, TypeError) as error:
        raise ValueError(f"with a part of the wrong kind: {error}") from None


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False)


# --- the versions


def _second(document: Mapping[str, Any]) -> Saved:
    ledger, at = ledger_json.saved_from_json(document["ledger"])
    stored, change, scaling = document["stored"], document["change"], document.get("scaling")
    return Saved(
        _count(document["incarnation"]),
        _count(document["generation"]),
        _word_or_none(document["run"]),
        _is(document["ended"], bool),
        _is(document["finished"], bool),
        at,
        ledger,
        _hosts(document["hosts"]),
        _ports(document["ports"]),
        _word_or_none(document["only_here"]),
        None if stored is None else _stored(stored["commit"], stored["step"], stored["path"]),
        None if change is None else _change(change),
        tuple(map(_noted, _is(document["commits"], list))),
        _word_or_none(document.get("outcome")),
        None if scaling is None else _scaling(scaling),
        _refused(document.get("refused", {})),
        None if (recorded := document.get("recorded")) is None else tuple(map(_seat, _is(recorded, list))),
        _count(document.get("record_world", 0)),
    )


def _first(document: Mapping[str, Any]) -> Saved:
    ledger, more = document["ledger"], _is(document["more"], dict)
    health, at = (HealthLedger(), 0.0) if ledger is None else ledger_json.saved_from_json(ledger)
    stored, change = more.get("stored"), more.get("resized")
    return Saved(
        _count(document["incarnation"]),
        _count(document["generation"]),
        _word_or_none(more.get("run")),
        _is(more.get("ended", False), bool),
        _is(more.get("finished", False), bool),
        at,
        health,
        _hosts(more.get("hosts", {})),
        _ports(more.get("ports", {})),
        _word_or_none(more.get("checkpoint")),
        None if stored is None or stored[0] is None else _stored(*stored),
        None if change is None else _change(change),
        tuple(map(_noted, _is(more.get("commits", []), list))),
    )


_READERS: Final = {1: _first, VERSION: _second}


# --- the parts


def _is(value: Any, kind: type) -> Any:
    """``value``, of exactly this kind."""
    if type(value) is not kind:
        raise ValueError(f"with {str(value)[:40]!r} where a {kind.__name__} belongs")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"with {str(value)[:40]!r} where a number belongs that is not negative")
    return value


def _word_or_none(value: Any) -> str | None:
    return None if value is None else str(_is(value, str))


def _hosts(value: Any) -> tuple[Host, ...]:
    return tuple(Host(name, _count(slots)) for name, slots in value.items())


def _ports(value: Any) -> Mapping[str, int]:
    ports = {address: _count(port) for address, port in value.items()}
    if any(not 0 < port < PORTS for port in ports.values()):
        raise ValueError("with an invalid port")
    return MappingProxyType(ports)


def _refused(value: Any) -> Mapping[int, str]:
    return MappingProxyType({int(call): _is(why, str) for call, why in _is(value, dict).items()})


def _seat(value: Any) -> Seat:
    host, slot = value
    return Seat(_is(host, str), _count(slot))


def _commit(value: Any) -> Commit:
    incarnation, generation, number = (_is(part, int) for part in value)
    return incarnation, generation, number


def _stored(commit: Any, step: Any, path: Any) -> Stored:
    return Stored(_commit(commit), _is(step, int), _is(path, str))


def _change(value: Any) -> UnrecordedChange:
    fields = _is(value["fields"], dict)
    _ = fields["steps_lost"]
    return UnrecordedChange(_is(value["generation"], int), float(value["at"]), fields)


def _noted(value: Any) -> NotedCommit:
    reached = value["reached"]
    return NotedCommit(
        _is(value["host"], str),
        _is(value["agent"], str),
        _commit(value["commit"]),
        _is(value["step"], int),
        None if reached is None else _is(reached, int),
        _is(value.get("told", False), bool),
        _word_or_none(value["gone"]),
    )


def _scaling_to_json(saved: SavedScaling) -> dict[str, Any]:
    changes = [[each.at, each.before, each.after, each.trial] for each in saved.changes]
    times = {name: {str(size): list(of) for size, of in getattr(saved, name).items()} for name in ("steps_s", "busy_s")}
    return {**saved._asdict(), "leaving": list(saved.leaving), "changes": changes, **times}


def _scaling(value: Any) -> SavedScaling:
    return SavedScaling(
        _number(value["since"]),
        _count_or_none(value["wanted"]),
        _count_or_none(value["by_hand"]),
        tuple(_is(name, str) for name in value["leaving"]),
        _is(value["unasked"], bool),
        _number(value["steps"]),
        _number(value["host_steps"]),
        _count_or_none(value["counted"]),
        tuple(map(_number, value["pauses_s"])),
        tuple(map(_size_change, value["changes"])),
        _times(value["steps_s"]),
        _times(value["busy_s"]),
    )


def _size_change(value: Any) -> Change:
    at, before, after, *more = value  # without the last field in files of earlier versions
    return Change(_number(at), _count(before), _count(after), trial=_is(more[0], bool) if more else False)


def _times(value: Any) -> dict[int, tuple[float, ...]]:
    return {int(size): tuple(map(_number, of)) for size, of in value.items()}


def _number(value: Any) -> float:
    if (found := finite_number(value)) is None:
        raise ValueError(f"with {str(value)[:40]!r} where a number belongs")
    return found


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)
