"""The Instance Metadata Service of Amazon EC2, version 2 only. A test can treat each session as another instance."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from tests.support.metadata.service import Call, Reply, Tokens, iso, mail

SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"


class AwsService:
    def __init__(self) -> None:
        self.closing = threading.Event()
        self.tokens = Tokens("X-aws-ec2-metadata-token")
        self.fails: set[str] = set()
        """Paths that are answered with status 500."""
        self._said: dict[str, str] = {}
        self._to: int | None = None

    def interrupt(self, *, in_s: float = 120.0, action: str = "terminate", session: int | None = None) -> None:
        """Announce the end of the instance. ``session``: only for the session with this number, from 0; None: for
        all."""
        self._to = session
        self._said[SPOT] = json.dumps({"action": action, "time": iso(time.time() + in_s)})

    def recommend(self) -> None:
        self._said[REBALANCE] = json.dumps({"noticeTime": iso(time.time())})

    def schedule(self, code: str, *, in_s: float, state: str = "active") -> None:
        event: dict[str, Any] = {"Code": code, "State": state, "EventId": "instance-event-0d59937288b749b32"}
        event |= {"Description": f"The instance is scheduled for {code}", "NotBefore": mail(time.time() + in_s)[5:]}
        event |= {"NotAfter": mail(time.time() + in_s + 86400)[5:]}
        self._said[SCHEDULED] = json.dumps([event])

    def withdraw(self) -> None:
        self._said.clear()

    def answer(self, call: Call) -> Reply:
        if call.path == Tokens.PATH:
            return self.tokens.give(call) if call.method == "PUT" else Reply(405)
        if call.method != "GET":
            return Reply(405)
        session = self.tokens.number(call)
        if session is None:
            return Reply(401)
        if call.path in self.fails:
            return Reply(500)
        if call.path == SPOT and self._to not in (None, session):
            return Reply(404)
        if call.path == "/latest/meta-data/instance-id":
            return Reply(200, "i-1234567890abcdef0")
        return Reply(200, self._said[call.path]) if call.path in self._said else Reply(404)
