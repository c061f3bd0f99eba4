"""Requests to a running launcher, over the socket in the job's folder.

A page that is looked at must not slow its job down: the pause between two requests is a multiple of how long an answer
takes. Between them the last answer counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.launcher.cli import hosts
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.health import host_requests

LEAST_PAUSE_S: Final = 1.0
SHARE: Final = 100.0
"""The pause between two requests is this many times the duration of an answer, so that they take 1 % of the launcher's
time."""
ANSWERS: Final = 5
"""The shortest of this many answers counts: longer ones waited for a busy machine."""
ACTIONS: Final = ("block", "clear")


class LauncherClient:
    """The launcher of one job. Its last answer is kept until the next request is allowed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._answer: Mapping[str, Any] | None = None
        self._next = 0.0
        self._took_s: deque[float] = deque(maxlen=ANSWERS)

    def ask(self, *, anew: bool = False) -> Mapping[str, Any] | None:
        """Return the launcher's report on its job: ``said``, ``details``, ``ledger``; None if no launcher answers. May
        block for seconds. ``anew``: ask now, even if the last answer is recent."""
        began = time.monotonic()
        if self._folder is None or (began < self._next and not anew):
            return self._answer
        self._answer = self._asked(self._folder)
        ended = time.monotonic()
        self._took_s.append(ended - began)
        self._next = ended + max(LEAST_PAUSE_S, SHARE * min(self._took_s) if self._answer else 0.0)
        return self._answer

    @staticmethod
    def _asked(folder: Path) -> Mapping[str, Any] | None:
        try:
            if not (folder / state_folder.SOCKET).exists():
                return None
            hosts.check(folder)
            answer = hosts.ask_launcher(folder, {"do": "status", "details": True})
            ledger = None if answer is None else hosts.ask_launcher(folder, {"do": "list"})
        except (ElasticError, OSError):
            return None
        if answer is None or "error" in answer:
            return None
        return {**answer, "ledger": (ledger or {}).get("hosts", [])}

    def act(self, request: Mapping[str, Any]) -> str:
        """Block or clear a host; return the launcher's answer. Raises :class:`ElasticError` with one line."""
        if self._folder is None:
            raise UsageError("the job's folder is not known here: give the job by its name or its folder")
        asked = checked(request)
        hosts.check(self._folder)
        self._next = 0.0
        return str(hosts.answer_of(self._folder, asked)["said"])


def checked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request for the launcher. Raises :class:`UsageError` for an invalid one. Pure."""
    if request.get("do") not in ACTIONS:
        raise UsageError(f"there is no action {request.get('do')!r}; the actions are: {', '.join(ACTIONS)}")
    asked: dict[str, Any] = {"do": request["do"], "host": host_requests.checked_name(request.get("host"))}
    if asked["do"] == "block":
        seconds = request.get("for")
        if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds <= host_requests.MAX_FOR_S):
            raise UsageError(f"a block for {seconds!r} seconds makes no sense; give a number above 0")
        asked["for"] = seconds
        asked["reason"] = host_requests.checked_reason(request.get("reason") or "by the dashboard")
    return asked
