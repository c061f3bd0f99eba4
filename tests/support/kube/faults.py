"""Faults that tests ask for.

    plan = kube.faults.on("watch", "pods", times=1).answer(statuses.too_many_requests("…", retry_after=1))
    …
    plan.wait(1)            # it happened
    kube.faults.clear()

A plan applies to requests that come after it. For open watches use ``KubeServer.watches``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.kube import statuses
from tests.support.kube.requests import Call


@dataclass(frozen=True, slots=True)
class Answer:
    """The server answers with this Status. ``raw``: these bytes instead of a Status."""

    status: Mapping[str, Any]
    headers: Mapping[str, str]
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """The server sends nothing, or nothing after the headers, until the client or the server ends the connection."""

    headers: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks in the middle of the body; of a watch, in the middle of the first event."""


@dataclass(frozen=True, slots=True)
class Close:
    """A watch ends as soon as it is open, in the same way as at its timeout."""


@dataclass(frozen=True, slots=True)
class Say:
    """A watch begins with these bytes, and then continues normally."""

    lines: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Slow:
    """The body comes in pieces of ``chunk`` bytes, ``delay`` seconds apart. ``before``: seconds until the headers."""

    before: float
    chunk: int
    delay: float


@dataclass(frozen=True, slots=True)
class Reset:
    """The server resets the connection instead of an answer."""


Fault = Answer | Hang | Cut | Close | Say | Slow | Reset

TORN_UTF8 = '{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"name":"ö"}}}\n'.encode().replace(b"\xb6", b"")


class Plan:
    """One fault, and the requests that get it. ``fired``: how many requests have had it."""

    def __init__(self, faults: Faults, *, verb: str, resource: str, times: int | None, paged: bool | None) -> None:
        self._faults = faults
        self._verb, self._resource, self._left, self._paged = verb, resource, times, paged
        self._fault: Fault | None = None
        self._happened = threading.Condition()
        self.fired = 0

    def __repr__(self) -> str:
        return f"<{self._fault} on {self._verb or 'all'} {self._resource or 'all'}, fired {self.fired}>"

    # Choosing the fault

    def answer(self, error: statuses.ApiError, **headers: str) -> Plan:
        """Answer with a Status. ``headers``: by keyword, with ``_`` for ``-``. ``retryAfterSeconds`` of the Status adds
        the header ``Retry-After`` by itself.
        """
        return self._set(Answer(error.body, {name.replace("_", "-"): value for name, value in headers.items()}))

    def answer_raw(self, code: int, body: bytes, content_type: str = "text/plain") -> Plan:
        """Answer with a body that is not a Status, as proxies do."""
        return self._set(Answer({"code": code}, {"Content-Type": content_type}, body))

    def busy(self, retry_after: int = 1) -> Plan:
        """Answer 429 without a Status, as a server that has no room for the request (priority and fairness)."""
        text = b"Too many requests, please try again later.\n"
        return self._set(Answer({"code": 429}, {"Content-Type": "text/plain", "Retry-After": str(retry_after)}, text))

    def hang(self, *, headers: bool = False) -> Plan:
        return self._set(Hang(headers))

    def cut(self) -> Plan:
        return self._set(Cut())

    def close(self) -> Plan:
        return self._set(Close())

    def reset(self) -> Plan:
        return self._set(Reset())

    def say(self, *lines: bytes) -> Plan:
        return self._set(Say(lines))

    def torn_utf8(self) -> Plan:
        return self.say(TORN_UTF8)

    def slow(self, *, before: float = 0.0, chunk: int = 1 << 30, delay: float = 0.0) -> Plan:
        return self._set(Slow(before, chunk, delay))

    # Waiting, and ending it

    def wait(self, times: int = 1, *, timeout: float = 30.0) -> None:
        """Wait until so many requests have had the fault. Raises AssertionError after ``timeout`` seconds."""
        with self._happened:
            if not self._happened.wait_for(lambda: self.fired >= times, timeout):
                raise AssertionError(f"waited {timeout:g} s in vain for {times} times {self!r}")

    def stop(self) -> None:
        """Remove the plan: no more requests get the fault."""
        self._faults.remove(self)

    def take(self, call: Call) -> Fault | None:
        """Return the fault if this call gets it, else None."""
        if self._fault is None or self._left == 0:
            return None
        names = ("", call.resource.plural, f"{call.resource.plural}/{call.subresource}")
        if self._verb not in ("", call.verb) or self._resource not in names:
            return None
        if self._paged is not None and self._paged != bool(call.option("continue")):
            return None
        if self._left is not None:
            self._left -= 1
        with self._happened:
            self.fired += 1
            self._happened.notify_all()
        return self._fault

    def _set(self, fault: Fault) -> Plan:
        self._fault = fault
        return self


class Faults:
    """All plans. A request gets the fault of the first plan that applies to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: list[Plan] = []

    def on(self, verb: str = "", resource: str = "", *, times: int | None = None, paged: bool | None = None) -> Plan:
        """Return a plan for the next ``times`` requests (None: for all) of this verb and resource; "" stands for every
        verb or resource. A plan for "pods" also applies to "pods/exec".

        ``paged``: True for requests that continue a list only, False for the others only.
        """
        plan = Plan(self, verb=verb, resource=resource, times=times, paged=paged)
        with self._lock:
            self._plans.append(plan)
        return plan

    def clear(self) -> None:
        with self._lock:
            self._plans.clear()

    def remove(self, plan: Plan) -> None:
        with self._lock:
            if plan in self._plans:
                self._plans.remove(plan)

    def take(self, call: Call) -> Fault | None:
        with self._lock:
            return next((fault for plan in self._plans if (fault := plan.take(call)) is not None), None)
