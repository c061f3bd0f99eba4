"""What the agent's loop needs for events, and of a membership in a job."""

from __future__ import annotations

from typing import Protocol

from hvd_elastic_ext.agent.orders.orders import Pace


class EventSink(Protocol):
    """Where events go: standard output, or the connection to the launcher."""

    def put(self, event: str, **fields: object) -> None: ...
    @property
    def empty(self) -> bool: ...
    @property
    def full(self) -> bool: ...


class Membership(EventSink, Protocol):
    """The membership of an agent in a job."""

    pace: Pace

    @property
    def env(self) -> dict[str, str]: ...
    @property
    def connected(self) -> bool: ...
    def secret(self, transfer: str) -> str: ...
    def due(self) -> float | None: ...
    def tick(self) -> None: ...
    def notice(self, reason: str, grace_s: float) -> None: ...
    def look_for_notices(self) -> None: ...
    @property
    def left_s(self) -> float | None: ...
    def close(self) -> None: ...


class AgentExit(Exception):
    """This process does not become the agent of its host; ``args`` is the exit code."""
