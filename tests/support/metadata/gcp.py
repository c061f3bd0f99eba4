"""The metadata server of Google Compute Engine: values with ETags, and requests that wait for a change."""

from __future__ import annotations

import hashlib
import threading
import time

from tests.support.metadata.service import Call, Reply

ROOT = "/computeMetadata/v1/"
FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


class GcpService:
    def __init__(self) -> None:
        self.closing = threading.Event()
        self._changed = threading.Condition()
        self._values = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE", "instance/name": "vm-1"}

    def set(self, name: str, value: str) -> None:
        with self._changed:
            self._values[name] = value
            self._changed.notify_all()

    def preempt(self) -> None:
        self.set("instance/preempted", "TRUE")

    def maintain(self, event: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        self.set("instance/maintenance-event", event)

    def withdraw(self) -> None:
        self.set("instance/preempted", "FALSE")
        self.set("instance/maintenance-event", "NONE")

    def answer(self, call: Call) -> Reply:
        if call.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in call.headers:
            return Reply(403, "Missing Metadata-Flavor:Google header.", FLAVOR)
        name = call.path.removeprefix(ROOT)
        if call.method != "GET" or name not in self._values:
            return Reply(404, "", FLAVOR)
        if call.query.get("wait_for_change", "").lower() == "true":
            self._wait(name, call.query.get("last_etag"), float(call.query.get("timeout_sec", "3600")))
        value = self._values[name]
        return Reply(200, value, {**FLAVOR, "ETag": _tag(value), "Content-Type": "application/text"})

    def _wait(self, name: str, known: str | None, timeout_s: float) -> None:
        """Wait until the value differs from the ``known`` one (None: from the present one), or until the timeout."""
        known = known if known is not None else _tag(self._values[name])
        end = time.monotonic() + timeout_s
        with self._changed:
            while _tag(self._values[name]) == known and not self.closing.is_set():
                left = end - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(min(left, 0.1))


def _tag(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]
