"""The metadata of Alibaba Cloud's ECS, in normal and in hardened mode.

The documents do not name the status for a request without a token, so ``refusal`` is 403 or 401.
"""

from __future__ import annotations

import threading
import time

from tests.support.metadata.service import Call, Reply, Tokens, iso

SPOT = "/latest/meta-data/instance/spot/termination-time"


class AlibabaService:
    def __init__(self, *, hardened: bool = False, refusal: int = 403) -> None:
        self.closing = threading.Event()
        self.hardened = hardened
        self.refusal = refusal
        self.tokens = Tokens("X-aliyun-ecs-metadata-token")
        self.gives_tokens = True
        self._until: str | None = None

    def interrupt(self, *, in_s: float = 300.0) -> None:
        self._until = iso(time.time() + in_s)

    def withdraw(self) -> None:
        self._until = None

    def answer(self, call: Call) -> Reply:
        if call.path == Tokens.PATH and call.method == "PUT" and self.gives_tokens:
            return self.tokens.give(call)
        if call.method != "GET":
            return Reply(405)
        if self.hardened and self.tokens.number(call) is None:
            return Reply(self.refusal)
        if call.path == "/latest/meta-data/instance-id":
            return Reply(200, "i-bp13znx0m0me8cquu000")
        if call.path == SPOT and self._until is not None:
            return Reply(200, self._until)
        return Reply(404, "<h1>404 - Not Found</h1>", {"Content-Type": "text/html"})
