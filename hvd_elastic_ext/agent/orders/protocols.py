"""What an agent knows of its launcher: a way for news, and perhaps a membership in a job."""

from __future__ import annotations

from typing import Protocol

from hvd_elastic_ext.agent.orders.orders import Pace


class EventSink(Protocol):
    """How news go to the launcher: over standard output, or over a connection."""

    def put(self, event: str, **fields: object) -> None: ...
    @property
    def empty(self) -> bool: ...
    @property
    def full(self) -> bool: ...


class Membership(EventSink, Protocol):
    """What an agent has beside its slots once it has joined a job."""

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
    """This process is not to be the agent of its host; ``args`` is the exit code."""
