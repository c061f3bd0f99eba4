"""The purposes of helpers, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple


class Purpose(Enum):
    """The purpose of a helper. ``launcher/driver/reduce.py`` has the handler of the answers for each."""

    CHECKPOINT = "write or complete a checkpoint"
    RESTORE = "load the newest checkpoint before the first world"
    SAVE = "report or verify what is saved, while no process trains"
    TRANSFER = "send a commit to another memory, or load one into it"
    PAST = "send the results of finished calls to another memory"


class HelperAnswer(NamedTuple):
    """An agent's report of a helper. More may follow; the last answer comes at the helper's end.

    ``content``: the output of the program; empty if it has ended without any. ``failed``: why the helper has failed;
    None if it has not. ``ended_well``: the program has ended with exit code 0.
    """

    content: Mapping[str, Any]
    failed: str | None
    ended_well: bool


def answer_of(news: Mapping[str, Any]) -> HelperAnswer:
    """The answer in an agent's news of a helper."""
    content, code = news.get("answer"), news.get("code")
    if isinstance(content, dict):
        return HelperAnswer(content, why if isinstance(why := content.get("failed"), str) else None, code == 0)
    words = str(news.get("words") or "").splitlines()
    return HelperAnswer({}, words[-1] if words else f"it ended with exit code {code}", code == 0)


TRANSFER_S: Final = 900.0
"""Longest time for a transfer: the largest commit over a slow network."""
