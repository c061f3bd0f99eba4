"""Azure's Instance Metadata Service, as far as scheduled events need it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from tests.support.metadata.service import Call, Reply, mail

EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"


class AzureService:
    def __init__(self, name: str = "vmss_1") -> None:
        self.closing = threading.Event()
        self.name = name
        self.approved: list[Any] = []
        self._incarnation = 1
        self._events: list[dict[str, Any]] = []

    def schedule(self, kind: str, *resources: str, in_s: float = 30.0, started: bool = False) -> None:
        """Add an event for these machines, by default for this one. An event that has begun has no time."""
        event: dict[str, Any] = {
            "EventId": f"602d9444-d2cd-49c7-8624-{self._incarnation:012d}",
            "EventStatus": "Started" if started else "Scheduled",
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": list(resources or (self.name,)),
            "NotBefore": "" if started else mail(time.time() + in_s),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self._change([*self._events, event])

    def withdraw(self) -> None:
        """Remove all events: they are over, or were cancelled."""
        self._change([])

    def _change(self, events: list[dict[str, Any]]) -> None:
        self._incarnation += 1
        self._events = events

    def answer(self, call: Call) -> Reply:
        if call.headers.get("metadata", "").lower() != "true" or "x-forwarded-for" in call.headers:
            return Reply(400, json.dumps({"error": "Bad request. Required metadata header not specified"}))
        if "api-version" not in call.query:
            versions = ["2017-11-01", "2020-07-01", "2021-02-01"]
            return Reply(400, json.dumps({"error": "Bad request. api-version is missing", "newest-versions": versions}))
        if call.path == EVENTS and call.method == "POST":
            self.approved.append(json.loads(call.body))
            return Reply(200)
        if call.method != "GET":
            return Reply(405)
        if call.path == EVENTS:
            return Reply(200, json.dumps({"DocumentIncarnation": self._incarnation, "Events": self._events}))
        if call.path == NAME and call.query.get("format") == "text":
            return Reply(200, self.name)
        return Reply(404, json.dumps({"error": "Not found"}))
