"""Objects, their versions and their history. Threads of watches wait here for changes.

As in etcd, the whole store has one version number, which grows with every write. Objects are kept as the bytes that are
sent. So each state of an object is serialised once for all lists and watches.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.support.kube import statuses
from tests.support.kube.resources import TABLE, Key, Resource

HISTORY: Final = 20_000
"""Events of each kind that a store keeps."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """One state of one object. ``rest``: the end of its JSON, after kind, apiVersion and resourceVersion."""

    key: Key
    uid: str
    revision: int
    rest: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]

    @property
    def tail(self) -> bytes:
        """The object's JSON without the opening brace, kind and apiVersion."""
        return b'"metadata":{"resourceVersion":"%d",%s' % (self.revision, self.rest)

    def body(self) -> Body:
        """Return a new copy of the object, without kind and apiVersion."""
        return json.loads(b"{" + self.tail)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Event:
    """One change. ``before``: None for an added object. For DELETED, ``record`` has the last state of the object and
    the version of the deletion.
    """

    revision: int
    type: str
    record: Record
    before: Record | None

    def line(self, kind: str, head: bytes) -> bytes:
        """Return the event as a line of a watch. ``kind``: the type for this watch, see :meth:`seen`."""
        record = self.record
        if kind == "DELETED" and self.type != "DELETED" and self.before is not None:
            record = replace(self.before, revision=self.revision)  # its last state that the selector matched
        return event_line(kind, head, record)

    def seen(self, wanted: Callable[[Record], bool]) -> str:
        """Return the type of this event for a watch of ``wanted`` objects only; "" if the watch does not see it."""
        was = self.before is not None and wanted(self.before)
        if self.type == "DELETED":
            return "DELETED" if was else ""
        if wanted(self.record):
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else ""


def event_line(kind: str, head: bytes, record: Record) -> bytes:
    return b'{"type":"%s","object":{%s%s}\n' % (kind.encode(), head, record.tail)


def dumps(body: Any) -> bytes:
    # Sorted, so that objects that differ only in the order of keys have the same bytes.
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()


def made(resource: Resource, key: Key, body: Body, revision: int) -> Record:
    """Return the record of an object's state at ``revision``. Empty maps are dropped, as on a real server."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    others = {name: value for name, value in body.items() if name not in ("metadata", "kind", "apiVersion")}
    rest = _rest(metadata, others)
    if b"{}" in rest or b"[]" in rest or b'"value":""' in rest:
        kept = _without_empty(metadata, "metadata")
        rest = _rest(kept, others if resource.custom else _without_empty(others, ""))
    return Record(key, metadata["uid"], revision, rest, metadata.get("labels") or {}, _fields(key, body))


def _rest(metadata: Body, others: Body) -> bytes:
    return dumps(metadata)[1:] + (b"," + dumps(others)[1:] if others else b"}")


_OF_METADATA: Final = frozenset(("finalizers", "ownerReferences", "managedFields", "labels", "annotations"))
_OF_PODS: Final = ("nodeSelector", "matchLabels", "limits", "requests", "capacity", "allocatable")
_MAPS: Final = frozenset(("labels", "annotations", *_OF_PODS, "data", "binaryData", "stringData"))
"""Fields of typed objects that are maps, and are dropped if empty. ``emptyDir: {}`` is not a map, and stays."""


_VARIABLES: Final = "env"
"""The field with environment variables: of typed objects, an empty value is dropped."""


def _without_empty(body: Body, name: str) -> Body:
    """Return ``body`` without the empty values that a real server does not keep. ``name``: its field in the object."""
    dropped = _OF_METADATA if name == "metadata" else _MAPS
    return {
        field: _without_empty(value, field)
        if isinstance(value, dict) and field not in _MAPS
        else [
            _without_empty(each, field if field == _VARIABLES else "") if isinstance(each, dict) else each
            for each in value
        ]
        if isinstance(value, list)
        else value
        for field, value in body.items()
        if not (value in ({}, []) and field in dropped) and not (name == _VARIABLES and (field, value) == ("value", ""))
    }


def _fields(key: Key, body: Body) -> Mapping[str, str]:
    found = {"metadata.name": key.name, "metadata.namespace": key.namespace}
    for name, path in _SELECTABLE.items():
        value: Any = body
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value if isinstance(value, str) else str(value).lower()
    return found


_SELECTABLE: Final = {
    ".".join(path): path
    for path in (
        ("spec", "nodeName"),
        ("spec", "unschedulable"),
        ("status", "phase"),
        ("involvedObject", "name"),
        ("involvedObject", "uid"),
        ("involvedObject", "kind"),
        ("reason",),
        ("type",),
    )
}


@dataclass(frozen=True, slots=True)
class Standstill:
    """The content of a watch cache that has had no updates from its store since ``revision``."""

    revision: int
    keys: list[Key]
    records: Mapping[Key, Record]


class Shelf:
    """All objects of one kind, and their events after the version ``compacted``. The store's lock protects it.

    ``standstill``: the content of this kind's watch cache while it gets no updates; None while it gets them. ``heard``:
    the version of the cache, which is that of the last event of this kind. The store reports its progress only with
    events, as an etcd that is not asked for it.
    """

    def __init__(self, resource: Resource, lock: threading.RLock, *, first: int, history: int) -> None:
        self.resource = resource
        self.changed = threading.Condition(lock)
        self.records: dict[Key, Record] = {}
        self.keys: list[Key] = []
        self.events: list[Event] = []
        self.compacted = first
        self.standstill: Standstill | None = None
        self.heard = first
        self._history = history

    def apply(self, event: Event) -> None:
        key = event.record.key
        if event.type == "DELETED":
            del self.records[key]
            del self.keys[bisect.bisect_left(self.keys, key)]
        else:
            if key not in self.records:
                bisect.insort(self.keys, key)
            self.records[key] = event.record
        self.events.append(event)
        self.heard = event.revision
        if len(self.events) > self._history * 5 // 4:
            self.compact(self.events[len(self.events) - self._history - 1].revision)
        self.changed.notify_all()

    def compact(self, revision: int) -> None:
        """Drop the events up to and including ``revision``."""
        del self.events[: self._after(revision)]
        self.compacted = max(self.compacted, revision)
        self.heard = max(self.heard, revision)

    def since(self, revision: int, *, most: int = 1000) -> list[Event]:
        """Return at most ``most`` events after ``revision``. Raises ApiError 410 if they are dropped."""
        if revision < self.compacted:
            raise statuses.too_old(revision, self.compacted)
        start, end = self._after(revision), self._end()
        return self.events[start : min(end, start + most)]

    def newest(self) -> int:
        """Return the version of the newest event that watches may send, 0 if there is none."""
        end = self._end()
        return self.events[end - 1].revision if end else 0

    def cached(self) -> int:
        """Return the version of the watch cache."""
        if self.standstill is not None:
            return self.standstill.revision
        return self.heard

    def at(self, revision: int) -> tuple[list[Key], Mapping[Key, Record]]:
        """Return the keys and records at ``revision``. Raises ApiError 410 if the events since then are dropped."""
        if self.standstill is not None and revision == self.standstill.revision:
            return self.standstill.keys, self.standstill.records
        if revision < self.compacted:
            raise statuses.list_too_old()
        later = self.events[self._after(revision) :]
        if not later:
            return self.keys, self.records
        records = dict(self.records)
        for event in reversed(later):
            if event.before is None:
                records.pop(event.record.key, None)
            else:
                records[event.before.key] = event.before
        return sorted(records), records

    def _end(self) -> int:
        return len(self.events) if self.standstill is None else self._after(self.standstill.revision)

    def _after(self, revision: int) -> int:
        return bisect.bisect_right(self.events, revision, key=lambda event: event.revision)


@dataclass(frozen=True)
class Backup:
    """A store's content at one moment."""

    revision: int
    records: Mapping[Resource, Mapping[Key, Record]]


class Store:
    """All objects. Every method may be called from any thread."""

    def __init__(
        self,
        resources: Iterable[Resource] = TABLE,
        *,
        first: int = 1000,
        history: int = HISTORY,
    ) -> None:
        """``first``: the version before the first write."""
        self.lock = threading.RLock()
        self.revision = first
        self.resources = tuple(resources)
        self._shelves = {each: Shelf(each, self.lock, first=first, history=history) for each in self.resources}

    def shelf(self, resource: Resource) -> Shelf:
        return self._shelves[resource]

    def get(self, resource: Resource, key: Key) -> Record | None:
        return self._shelves[resource].records.get(key)

    def write(self, resource: Resource, key: Key, body: Body | None) -> Record:
        """Add or replace an object, or remove it if ``body`` is None. A write without a change gives no new version."""
        with self.lock:
            shelf = self._shelves[resource]
            before = shelf.records.get(key)
            if body is None:
                assert before is not None, key
                record = replace(before, revision=self.revision + 1)
                event = Event(record.revision, "DELETED", record, before)
            else:
                record = made(resource, key, body, self.revision + 1)
                if before is not None and record.rest == before.rest:
                    return before
                event = Event(record.revision, "ADDED" if before is None else "MODIFIED", record, before)
            self.revision = record.revision
            shelf.apply(event)
            return record

    def compact(self, *resources: Resource) -> None:
        """Drop all history, of these kinds or of all. Requests for an earlier version get 410."""
        with self.lock:
            for shelf in self._chosen(resources):
                shelf.compact(self.revision)

    def stall(self, *resources: Resource) -> None:
        """Stop the updates of the watch caches of these kinds, or of all."""
        with self.lock:
            for shelf in self._chosen(resources):
                if shelf.standstill is None:
                    shelf.standstill = Standstill(self.revision, list(shelf.keys), dict(shelf.records))

    def catch_up(self, *resources: Resource) -> None:
        """Update the watch caches of these kinds, or of all, again. Watches get the events that they have missed."""
        with self.lock:
            for shelf in self._chosen(resources):
                shelf.standstill = None
                shelf.changed.notify_all()

    def backup(self) -> Backup:
        with self.lock:
            return Backup(self.revision, {each: dict(shelf.records) for each, shelf in self._shelves.items()})

    def restore(self, backup: Backup) -> None:
        """Return to the state of the backup, with its versions. There is no history before it."""
        with self.lock:
            self.revision = backup.revision
            for each, shelf in self._shelves.items():
                shelf.records = dict(backup.records[each])
                shelf.keys = sorted(shelf.records)
                shelf.events = []
                shelf.compacted = shelf.heard = backup.revision
                shelf.standstill = None
                shelf.changed.notify_all()

    def wake(self) -> None:
        """Wake all threads that wait for changes."""
        with self.lock:
            for shelf in self._shelves.values():
                shelf.changed.notify_all()

    def _chosen(self, resources: tuple[Resource, ...]) -> Iterable[Shelf]:
        return [self._shelves[each] for each in resources or self.resources]
