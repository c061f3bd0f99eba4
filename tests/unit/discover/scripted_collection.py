"""A collection that answers as a test has written down, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from typing import Any

from discover.watch.collection import Request
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from tests.support.clock import ManualClock

Answer = Iterable[object] | ApiError
"""Pieces: bytes come, numbers of seconds pass, failures are raised, functions are called. Or no answer at all."""


class Scripted:
    """Gives one answer a request, the last one for ever."""

    where = "pods of namespace n at https://there"

    def __init__(self, clock: ManualClock, *answers: Answer) -> None:
        self._clock = clock
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.renewed = 0
        self.interrupted = False

    def open(self, request: Request) -> Generator[bytes, None, None]:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        if isinstance(answer, ApiError):
            raise answer
        return self._pieces(list(answer))

    def _pieces(self, pieces: list[object]) -> Generator[bytes, None, None]:
        for piece in pieces:
            if isinstance(piece, bytes):
                yield piece
            elif isinstance(piece, (int, float)):
                self._clock.advance(piece)
            elif isinstance(piece, ApiError):
                raise piece
            elif callable(piece):
                piece()
            if self.interrupted:
                self.interrupted = False
                raise ApiError(Reason.CUT, "broken off")

    def reload_credentials(self) -> None:
        self.renewed += 1

    def interrupt(self) -> None:
        self.interrupted = True

    def close(self) -> None:
        """Nothing to give up."""


class CountedMetrics:
    """Counts as ClusterMetrics does."""

    def __init__(self) -> None:
        self.lists = 0
        self.restarts: list[str] = []

    def listed(self, resource: str) -> None:
        self.lists += 1

    def restarted(self, resource: str, reason: str) -> None:
        self.restarts.append(reason)


def pod(name: str, version: int, *, uid: str = "", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeName": "node"}, "status": {"phase": "Running", **status}}


def node(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def listing(version: int, *items: dict[str, Any], more: str = "") -> list[bytes]:
    metadata = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return [json.dumps({"kind": "List", "metadata": metadata, "items": items}).encode()]


def event(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def error(code: int, **of_status: Any) -> bytes:
    return event("ERROR", {"kind": "Status", "code": code, **of_status})
