"""Records events and the resulting actions as lines of JSON. A replay makes the same decisions.

The first line of each launcher has its start; each other line has its number, an event, its time and the actions. It
contains no environments and no keys: the executor adds those.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Final, get_args

from hvd_elastic_ext.core.errors import Interrupted, JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Sink
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.threads.beside import report
from hvd_elastic_ext.launcher.driver import actions, events
from hvd_elastic_ext.launcher.driver.actions import Action
from hvd_elastic_ext.launcher.driver.events import Event
from hvd_elastic_ext.launcher.health import ledger_json

VERSION: Final = 4
_KINDS: Final[Mapping[str, type[Event]]] = {kind.__name__: kind for kind in get_args(Event)}


class Recorder:
    """Writes the file. A sink that fails loses lines and stops no job."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._number = 0
        self._known: set[str] = set()

    def job_started(self, start: Mapping[str, Any]) -> None:
        """A launcher or its next session begins; ``start`` is what a replay starts with."""
        self._number = 0
        self._write({"recording": VERSION, **start})

    def happened(
        self,
        now: float,
        event: Event,
        done: Iterable[Action],
        again_at: float | None = None,
        *,
        error: str | None = None,
    ) -> None:
        """An event and its actions. ``again_at``: after a look, when the next one is due. ``error``: what it raised."""
        self._number += 1  # even if the line cannot be written: a replay says which are missing
        own = {"number": self._number, "mono": now, "event": to_json(event, now), "done": described(done)}
        self._write({**own, "again_at": again_at, "error": error})

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._sink.write(text_of(line) + "\n")
            self._sink.flush()
        except OSError:
            return  # the sink reports it
        except Exception as error:  # noqa: BLE001 - a recording is beside the job
            report(error, self._known, "the job goes on, and a line is missing in the recording")


def text_of(line: object) -> str:
    """JSON of what a recording holds. Infinity is ``{"infinity": 1}`` or ``{"infinity": -1}``; NaN is null."""
    return to_text(line, default=str, instead=_infinity)


def parsed(text: str) -> Any:
    """What :func:`text_of` wrote. Raises ``ValueError`` for a text that is not JSON."""
    return json.loads(text, object_hook=_number)


def _infinity(number: float) -> dict[str, int] | None:
    return None if math.isnan(number) else {"infinity": 1 if number > 0 else -1}


def _number(found: dict[str, Any]) -> Any:
    return math.inf * found["infinity"] if found in ({"infinity": 1}, {"infinity": -1}) else found


def error_text(error: Exception) -> str:
    """An exception in the form of a recording."""
    return f"{type(error).__name__}: {error}"


# --- events


def to_json(event: Event, now: float) -> dict[str, Any]:
    """An event at ``now`` (mono) as JSON. Output of processes is left out: no decision depends on it."""
    kind = type(event).__name__
    match event:
        case events.News(host, {"event": "output"}):
            return {"kind": kind, "host": host, "news": {"event": "output"}}
        case events.HostsChanged(hosts, departing, refused):
            listed = [asdict(host) for host in hosts]
            return {"kind": kind, "hosts": listed, "departing": dict(departing), "refused": refused}
        case events.Expected(hosts_left, until):
            return {"kind": kind, "hosts": [asdict(host) for host in hosts_left], "until": until}
        case events.HealthChanged(ledger, name, more):
            data = ledger_json.to_json(ledger, now, wall=now)
            return {"kind": kind, "ledger": data, "event": name, "fields": dict(more)}
        case events.End(why):
            number = why.signal_number if isinstance(why, Interrupted) else None
            return {"kind": kind, "why": str(why), "signal": number}
    return {"kind": kind, **{field.name: getattr(event, field.name) for field in fields(event)}}


def from_json(data: Mapping[str, Any], now: float) -> Event:
    """The event that :func:`to_json` wrote. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
    kind = data["kind"]
    if kind in _READERS:
        return _READERS[kind](data, now)
    return _KINDS[kind](**{name: value for name, value in data.items() if name != "kind"})


def _hosts_changed(data: Mapping[str, Any], _: float) -> Event:
    departing = {host: (str(reason), by) for host, (reason, by) in data["departing"].items()}
    hosts = HostSet(tuple(Host(**host) for host in data["hosts"]))
    return events.HostsChanged(hosts, departing, data.get("refused"))


def _end(data: Mapping[str, Any], _: float) -> Event:
    number, why = data["signal"], data["why"]
    return events.End(JobFailed(why) if number is None else Interrupted(number, why))


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], float], Event]]] = {
    "HostsChanged": _hosts_changed,
    "Expected": lambda data, _: events.Expected(tuple(Host(**host) for host in data["hosts"]), data["until"]),
    "HealthChanged": lambda data, now: events.HealthChanged(
        ledger_json.from_json(data["ledger"], now, wall=now), data["event"], data["fields"]
    ),
    "End": _end,
}
"""Readers of events with fields that JSON has no type for."""


# --- what was done


def described(done: Iterable[Action]) -> list[str]:
    """One line for each action, with all that was decided; one for each order that many get together."""
    return [line for action in done for line in _described(action)]


def _described(action: Action) -> Iterator[str]:
    match action:
        case actions.Tell() | actions.AssignRanks():
            yield from (f"Send {host} {_text(order)}" for host, order in action.orders())
        case actions.Record(event, generation, more, _):
            yield f"journal {event} {generation} {_text(more)}"
        case actions.Send(host, order) | actions.SendCommit(host, order):
            yield f"{type(action).__name__} {host} {_text(order)}"
        case actions.StartAgent(host) | actions.EndAgent(host):
            yield f"{type(action).__name__} {host.name} {_text(asdict(host))}"
        case _:
            data = {field.name: getattr(action, field.name) for field in fields(action)}
            yield f"{type(action).__name__} {_text(data)}"


def _text(value: object) -> str:
    return to_text(value, default=str, instead=_infinity, sort_keys=True)
