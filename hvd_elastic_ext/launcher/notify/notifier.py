"""Sends important events to a webhook, the same one once in a period."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.launcher.exports.webhook import Webhook
from hvd_elastic_ext.launcher.notify.messages import Message, RateLimit, message_of, waiting_message


class Notifier:
    """Gets the events of the journal, and how long the job has waited."""

    def __init__(self, outlet: Webhook, clock: Clock) -> None:
        self._outlet, self._clock = outlet, clock
        self._quota = RateLimit()
        self._times: dict[str, int] = {}
        """How often each subject was struck in a row."""

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of the journal."""
        if event == "struck":
            # Counted here: the ledger counts strikes only up to the longest cooldown, with `10 20` to two.
            subject = str(fields["subject"])
            self._times[subject] = self._times.get(subject, 1) + 1 if fields.get("again") else 1
            fields = {**fields, "again": self._times[subject]}
        self._send(message_of(event, fields))

    def waits(self, why: str, since_s: float) -> None:
        """Take in that the job has waited for its minimum for so many seconds."""
        self._send(waiting_message(why, since_s))

    def close(self) -> None:
        """Send what is left."""
        self._outlet.close()

    def _send(self, message: Message | None) -> None:
        if message is not None and (passed := self._quota.passes(message, self._clock.mono())) is not None:
            self._outlet.send(passed)
