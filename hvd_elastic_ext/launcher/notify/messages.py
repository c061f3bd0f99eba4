"""Which events are worth a message, and how often the same one is sent. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

PERIOD_S: Final = 600.0
"""The same message is sent once in this time."""
SHORT_S: Final = 60.0
"""A job that has waited for its minimum for this long causes a message."""
LOOP_STRIKES: Final = 3
"""This many strikes of one slot or host for the same reason are a crash loop."""

STOPPED: Final = "stopped"
END_TEXTS: Final[Mapping[int, str]] = {
    0: "ended",
    75: "asleep, and its launcher has ended",
    129: STOPPED,
    130: STOPPED,
    143: STOPPED,
}
"""By exit code. Others are those of failures."""

Fields = Mapping[str, Any]


class Message(NamedTuple):
    """``topic``: one of :data:`TOPICS`. ``cause`` distinguishes messages of one topic."""

    topic: str
    cause: str
    text: str


WAITS: Final = "waits"
TOPICS: Final[Mapping[str, str]] = {
    WAITS: f"the job has had fewer processes than it needs for {SHORT_S:.0f} s",
    "slept": "the job went to sleep",
    "crash_loop": f"a slot or host has failed {LOOP_STRIKES} times for the same reason",
    "lost_steps": "steps have to be done again",
    "stalled": "processes make no progress",
    "finished": "the job has ended, well or not",
}
"""Topics, and when a message of each is sent."""


def message_of(event: str, fields: Fields) -> Message | None:
    """The message for an event of the journal; None for nearly all events."""
    made = _MADE.get(event)
    return None if made is None else made(fields)


def waiting_message(why: str, since_s: float) -> Message | None:
    """The message for a job that has been below its minimum for ``since_s``. ``why``: what it waits for."""
    why = why.removeprefix("waiting: ")
    return Message(WAITS, "", f"waits for {since_s:.0f} s: {why}") if since_s >= SHORT_S else None


def _resized(fields: Fields) -> Message | None:
    lost = fields.get("steps_lost") or 0
    if not lost:
        return None
    because = fields.get("lost_because") or fields.get("reason") or fields["cause"]
    return Message("lost_steps", str(fields["cause"]), f"{lost} step{'' if lost == 1 else 's'} lost: {because}")


def _struck(fields: Fields) -> Message | None:
    again = fields.get("again") or 0
    if again < LOOP_STRIKES:
        return None
    return Message(
        "crash_loop", str(fields["subject"]), f"{fields['subject']} fails again and again: {fields['reason']}"
    )


def _finished(fields: Fields) -> Message:
    code, reason = fields["code"], str(fields["reason"])
    end = END_TEXTS.get(code, f"failed with {code}")
    return Message("finished", str(code), reason if reason.startswith(f"{end} ") else f"{end}: {reason}")


_MADE: Final[Mapping[str, Callable[[Fields], Message | None]]] = {
    "resized": _resized,
    "training_restarted": lambda fields: Message(
        "lost_steps", "restarted", f"training starts from scratch: {fields['reason']}"
    ),
    "struck": _struck,
    "stalled": lambda fields: Message("stalled", "", f"no progress: {fields['reason']}"),
    "slept": lambda fields: Message("slept", "", f"sleeps: {fields['reason']}"),
    "finished": _finished,
}


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
