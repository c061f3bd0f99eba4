"""Applies each request to the store, and makes its answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.kube import lifecycle, listing, patches, statuses, subresources
from tests.support.kube.access import Access
from tests.support.kube.clock import ServerClock
from tests.support.kube.requests import Call
from tests.support.kube.resources import Key, Resource, resource
from tests.support.kube.store import Record, Store, dumps, made

_NAMESPACES = resource("namespaces")
Answer = tuple[int, bytes]
"""HTTP status and body."""
Admission = Callable[[Resource, dict[str, Any]], dict[str, Any]]
"""A webhook: gets an object that a request creates, and returns the object to store."""


class Verbs:
    """Answers requests. ``admission``: webhooks, called one after another. ``patience``: seconds for which a read waits
    for a version that does not exist yet, or for a watch cache that is behind the store (3 s in a real server).
    """

    def __init__(self, store: Store, clock: ServerClock, access: Access, *, patience: float) -> None:
        self.store, self.clock, self.access, self.patience = store, clock, access, patience
        self.admission: list[Admission] = []

    def answer(self, call: Call) -> Answer:
        """Answer any request except a watch. Raises ApiError."""
        if call.subresource and call.subresource != "status":
            return subresources.answer(self, call)
        match call.verb:
            case "get":
                return 200, listing.alone(call.resource, self.read(call))
            case "list":
                return 200, listing.answer(self.store, call, patience=self.patience)
            case "create" if not call.subresource and not call.name:
                return 201, listing.alone(call.resource, self.create(call))
            case "update" | "patch" if call.name:
                return self._change(call)
            case "delete" if not call.subresource:
                return self._delete(call)
        raise statuses.method_not_allowed()

    def read(self, call: Call) -> Record:
        """Return an object from the store, or from the watch cache if the call names a version. Raises ApiError."""
        asked = listing.version(call)
        if asked is None:
            return self.existing(call)
        shelf = self.store.shelf(call.resource)
        with self.store.lock:
            _, records = shelf.at(listing.not_older(self.store, shelf, asked, patience=self.patience))
            if (record := records.get(call.key)) is None:
                raise statuses.not_found(call.resource, call.name)
            return record

    def existing(self, call: Call) -> Record:
        record = self.store.get(call.resource, call.key)
        if record is None:
            raise statuses.not_found(call.resource, call.name)
        return record

    def create(self, call: Call, body: dict[str, Any] | None = None) -> Record:
        body = body or call.json()
        _check_kind(call.resource, body)
        self.access.check_grant(call, body)
        for webhook in self.admission:
            body = webhook(call.resource, body)
        metadata = body.get("metadata") or {}
        name = metadata.get("name") or f"{metadata['generateName']}{secrets.token_hex(3)}"
        if metadata.get("namespace") not in (None, "", call.namespace):
            raise statuses.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        key = Key(call.namespace, name)
        with self.store.lock:
            if call.resource.namespaced and self.store.get(_NAMESPACES, Key("", call.namespace)) is None:
                raise statuses.not_found(_NAMESPACES, call.namespace)
            if self.store.get(call.resource, key) is not None:
                raise statuses.already_exists(call.resource, name)
            new = lifecycle.new(call.resource, key, body, now=self.clock.now())
            return self._written(replace(call, name=name), new)

    def _change(self, call: Call) -> Answer:
        with self.store.lock:
            record = self.store.get(call.resource, call.key)
            if record is None:
                raise statuses.not_found(call.resource, call.name)
            old = record.body()
            if call.verb == "patch":
                if call.resource.custom and call.media == patches.STRATEGIC:
                    raise statuses.unsupported_media([patches.JSON, patches.MERGE])
                wanted = patches.apply(call.media, old, call.json())
            else:
                wanted = call.json()
                _check_kind(call.resource, wanted)
            new = lifecycle.changed(
                call.resource, old, wanted, subresource=call.subresource, patch=call.verb == "patch"
            )
            return 200, listing.alone(call.resource, self._written(call, new))

    def _written(self, call: Call, new: dict[str, Any]) -> Record:
        """Write the object's new state and return it. A dry run does not write it. Raises ApiError 400."""
        match call.option("dryRun"):
            case "":
                return self.store.write(call.resource, call.key, new)
            case "All":
                return made(call.resource, call.key, new, self.store.revision)
        raise statuses.bad_request(f"invalid dry run option: {call.option('dryRun')}")

    def _delete(self, call: Call) -> Answer:
        options = call.json() if call.body else {}
        if call.option("dryRun") or options.get("dryRun"):
            raise statuses.bad_request("this server tries no deletions")
        with self.store.lock:
            record = self.existing(call)
            record, gone = self.delete(call.resource, record, options, grace=call.number("gracePeriodSeconds"))
            if call.resource.returned or not gone:
                return 200, listing.alone(call.resource, record)
            return 200, dumps(statuses.success(call.resource, call.name, record.uid))

    def delete(
        self, of: Resource, record: Record, options: dict[str, Any], *, grace: int | None = None
    ) -> tuple[Record, bool]:
        """Delete an object; return its new state, and whether it was removed. Raises ApiError 409."""
        conditions = options.get("preconditions") or {}
        old = record.body()
        wants, found = conditions.get("uid"), old["metadata"]["uid"]
        if wants and wants != found:
            why = (
                f"the UID in the precondition ({wants}) does not match the UID in record ({found}). "
                "The object might have been deleted and then recreated"
            )
            raise statuses.conflict(replace(of, plural=of.kind), record.key.name, why)
        asked = options.get("gracePeriodSeconds", grace)
        done = lifecycle.deleted(of, old, grace=asked, now=self.clock.now())
        if done.body is not None:
            record = self.store.write(of, record.key, done.body)
        if not done.gone:
            return record, False
        return self.store.write(of, record.key, None), True


def _check_kind(of: Resource, body: Any) -> None:
    if not isinstance(body, dict):
        raise statuses.bad_request("the object provided is unrecognized (must be a JSON object)")
    kind, version = body.get("kind", of.kind), body.get("apiVersion", of.api_version)
    if (kind, version) != (of.kind, of.api_version):
        raise statuses.bad_request(
            f"{kind} in version {version!r} cannot be handled as a {of.kind}: converting {version}.{kind} to {of.kind}"
        )
