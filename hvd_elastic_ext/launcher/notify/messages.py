"""Which events are worth a message, and how often the same one is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.events import EVENTS

PERIOD_S: Final = 600.0
"""The same message is sent once in this time."""
SHORT_S: Final = 60.0
"""A job that has waited for its minimum for this long causes a message."""
WAITS: Final = "waits"
"""The topic of such a message."""


class Message(NamedTuple):
    """``cause`` distinguishes messages of one topic."""

    topic: str
    cause: str
    text: str


def message_of(event: str, fields: Mapping[str, Any]) -> Message | None:
    """The message for an event of the journal; None for nearly all events."""
    notify = EVENTS[event].notify
    text = "" if notify is None else notify.text(fields)
    return Message(notify.topic, notify.cause(fields), text) if notify is not None and text else None


def waiting_message(why: str, since_s: float) -> Message | None:
    """The message for a job that has been below its minimum for ``since_s``. ``why``: what it waits for."""
    why = why.removeprefix("waiting: ")
    return Message(WAITS, "", f"waits for {since_s:.0f} s: {why}") if since_s >= SHORT_S else None


@dataclass(slots=True)
class RateLimit:
    """Lets each message pass once in :data:`PERIOD_S`."""

    _sent_at: dict[tuple[str, str], float] = field(default_factory=dict)
    _dropped: dict[tuple[str, str], int] = field(default_factory=dict)

    def passes(self, message: Message, now: float) -> Message | None:
        """The message to send now, with the number left out before it; None if it is too early. ``now``: mono.

        Waits are checked repeatedly, so those that were left out are not counted.
        """
        key = message.topic, message.cause
        if now < self._sent_at.get(key, -PERIOD_S) + PERIOD_S:
            self._dropped[key] = self._dropped.get(key, 0) + (message.topic != WAITS)
            return None
        self._sent_at[key] = now
        dropped = self._dropped.pop(key, 0)
        return message._replace(text=f"{message.text} ({dropped} more before)") if dropped else message
