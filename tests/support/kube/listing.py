"""Answers lists: the version, the page and the selected objects."""

from __future__ import annotations

import base64
import binascii
import bisect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.kube import selectors, statuses
from tests.support.kube.requests import Call
from tests.support.kube.resources import Key, Resource
from tests.support.kube.store import Record, Shelf, Store, dumps

_COMMON = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS = {
    "Pod": frozenset({"spec.nodeName", "status.phase"}),
    "Node": frozenset({"spec.unschedulable"}),
    "Event": frozenset({"involvedObject.name", "involvedObject.kind", "involvedObject.uid", "reason", "type"}),
    "Namespace": frozenset({"status.phase"}),
}


def wanted(call: Call) -> Callable[[Record], bool]:
    """Return a test of whether the call's namespace, name and selectors match a record. Raises ApiError 400."""
    fields = selectors.fields(call.option("fieldSelector"), _COMMON | _FIELDS.get(call.resource.kind, frozenset()))
    labels = selectors.labels(call.option("labelSelector"))
    namespace, name = call.namespace, call.name

    def test(record: Record) -> bool:
        return (
            (not namespace or record.key.namespace == namespace)
            and (not name or record.key.name == name)
            and labels(record.labels)
            and (fields is selectors.everything or fields(record.fields))
        )

    return test


def version(call: Call) -> int | None:
    """Return the version that the call asks for, None if it names none. Raises ApiError 400 if it is not a version."""
    text = call.option("resourceVersion")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        message = f'invalid resource version: strconv.ParseUint: parsing "{text}": invalid syntax'
        raise statuses.bad_request(message)
    return int(text)


def head(of: Resource) -> bytes:
    """Return the first bytes of an object that is not an item of a list."""
    return b'"kind":"%s","apiVersion":"%s",' % (of.kind.encode(), of.api_version.encode())


def alone(of: Resource, record: Record) -> bytes:
    return b"{" + head(of) + record.tail


@dataclass(frozen=True, slots=True)
class _Page:
    revision: int
    after: Key | None


def answer(store: Store, call: Call, *, patience: float) -> bytes:
    """Return the list's body. ``patience``: seconds to wait for a version that does not exist yet. Raises ApiError."""
    test, limit = wanted(call), call.number("limit") or 0
    asked, match = version(call), call.option("resourceVersionMatch")
    shelf = store.shelf(call.resource)
    with store.lock:
        page = _page(store, shelf, call, asked=asked, match=match, limit=limit, patience=patience)
        if asked == 0 and not match and not call.option("continue"):
            limit = 0  # the watch cache gives no pages
        keys, records = shelf.at(page.revision)
        return _render(call, page, keys, records, test=test, limit=limit)


def _page(
    store: Store, shelf: Shelf, call: Call, *, asked: int | None, match: str, limit: int, patience: float
) -> _Page:
    if token := call.option("continue"):
        page = _decoded(token)
        if page.revision < 0:
            return _Page(store.revision, page.after)
        if page.revision < shelf.compacted:
            raise statuses.continue_expired(_encoded(_Page(-1, page.after)))
        return page
    if asked is None:
        # A fresh list waits for the cache. If the cache does not catch up in time, the list comes from the store.
        _wait(shelf, lambda: shelf.standstill is None, patience)
        return _Page(store.revision, None)
    if asked and not match and limit > 0:
        _wait(shelf, lambda: store.revision >= asked, patience)
        if asked > store.revision:
            raise statuses.too_large(asked, store.revision)
        return _Page(asked, None)
    return _Page(not_older(store, shelf, asked, patience=patience), None)


def not_older(store: Store, shelf: Shelf, asked: int, *, patience: float) -> int:
    """Wait until the watch cache has at least the version ``asked``; return the cache's version. The caller holds the
    store's lock. Raises ApiError 504.
    """
    _wait(shelf, lambda: shelf.cached() >= asked, patience)
    cached = shelf.cached()
    if asked > cached:
        raise statuses.too_large(asked, cached)
    return cached


def _wait(shelf: Shelf, condition: Callable[[], bool], patience: float) -> None:
    """Wait for ``condition``, at most ``patience`` seconds."""
    until = time.monotonic() + patience
    while not condition() and (left := until - time.monotonic()) > 0:
        shelf.changed.wait(left)


def _render(
    call: Call,
    page: _Page,
    keys: list[Key],
    records: Mapping[Key, Record],
    *,
    test: Callable[[Record], bool],
    limit: int,
) -> bytes:
    first = 0 if page.after is None else bisect.bisect_right(keys, page.after)
    items: list[Record] = []
    metadata: dict[str, object] = {"resourceVersion": str(page.revision)}
    for place in range(first, len(keys)):
        record = records[keys[place]]
        if not test(record):
            continue
        if limit and len(items) == limit:
            metadata["continue"] = _encoded(_Page(page.revision, items[-1].key))
            if not (call.option("labelSelector") or call.option("fieldSelector")):
                metadata["remainingItemCount"] = sum(test(records[key]) for key in keys[place:])
            break
        items.append(record)
    return rendered(call.resource, items, metadata)


def rendered(of: Resource, items: list[Record], metadata: dict[str, object]) -> bytes:
    # Real servers name kind and apiVersion in the items of custom resources only.
    opening = b"{" + (head(of) if of.custom else b"")
    body = b",".join([opening + each.tail for each in items])
    return b'{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":[%s]}' % (
        of.kind.encode(),
        of.api_version.encode(),
        dumps(metadata),
        body,
    )


def _encoded(page: _Page) -> str:
    start = "/".join(page.after or ("", "")) + "\0"
    return base64.urlsafe_b64encode(dumps({"v": "meta.k8s.io/v1", "rv": page.revision, "start": start})).decode()


def _decoded(token: str) -> _Page:
    try:
        content = json.loads(base64.urlsafe_b64decode(token))
        namespace, _, name = content["start"].rstrip("\0").partition("/")
        return _Page(int(content["rv"]), Key(namespace, name))
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise statuses.bad_request("continue key is not valid: illegal base64 data") from None
