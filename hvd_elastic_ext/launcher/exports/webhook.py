"""Sends important events to a webhook, the same one once in a period.

Which events are worth a message is in the catalogue (``core/events.py``). A thread sends them: neither training nor the
end of the job waits for long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.http_exchange import NoAnswer, exchange
from hvd_elastic_ext.io.threads.follower import Follower
from hvd_elastic_ext.io.user_files import read_regular

log = logging.getLogger(__name__)


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


# --- the receiver of events


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
        """Take in that the job has waited for its minimum for this many seconds."""
        self._send(waiting_message(why, since_s))

    def close(self) -> None:
        """Send what is left."""
        self._outlet.close()

    def _send(self, message: Message | None) -> None:
        if message is not None and (passed := self._quota.passes(message, self._clock.mono())) is not None:
            self._outlet.send(passed)


# --- the server


TIMEOUT_S: Final = 10.0
"""Longest time in seconds for one try, the whole answer included."""
MAX_ANSWER: Final = 1 << 20
MAX_URL: Final = 64 << 10
MAX_ATTEMPTS: Final = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0
CLOSE_S: Final = 15.0
"""Longest wait for the last messages at the end of the job."""
MAX_QUEUED: Final = 100
"""Messages that may wait to be sent; more are dropped."""


def webhook_url(given: str) -> str:
    """Read the value of ``--notify``: a URL, or ``file:PATH`` of a file that holds one. Raises :class:`UsageError`.

    Such a URL is a secret, and other users can read command lines. So a file may hold it.
    """
    text, where = given, f"--notify {given!r}"  # not a URL, which may be a secret
    if given.startswith("file:"):
        try:
            text = read_regular(Path(given.removeprefix("file:")), most=MAX_URL).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"{where} cannot be read: {reason}") from None
    try:
        url = urlsplit(text)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError("--notify: that is not a URL; write https://HOST/…, or file:PATH of a file with one")
    return text


class Webhook:
    """``about`` goes with each message: which job, which run. A message that cannot be sent is logged, and dropped.

    ``wait`` sleeps for this many seconds, or less once the job ends.
    """

    def __init__(self, url: str, about: Mapping[str, Any], *, wait: Callable[[float], object] | None = None) -> None:
        self._url = url
        self._host = urlsplit(url).hostname  # the rest may be secret
        self._about = about
        self._ending = threading.Event()
        self._wait = wait or self._ending.wait
        self._follower = Follower[Message]("--notify", self._deliver, room=MAX_QUEUED)

    def send(self, message: Message) -> None:
        """Send it soon. Never waits."""
        self._follower.put(message)

    def close(self, within_s: float = CLOSE_S) -> None:
        """Send what waits, for this many seconds at most."""
        self._ending.set()
        self._follower.close(within_s)

    def _deliver(self, message: Message) -> str:
        problem = self._send_with_retries(message)
        return problem and f"no message to {self._host}: {problem}"

    def _send_with_retries(self, message: Message) -> str:
        """Send a message, with some tries. Return why it could not be sent; empty if it was."""
        text = f"{self._about['job']}: {message.text}"
        body = {"text": text, "topic": message.topic, "cause": message.cause, **self._about}
        problem = ""
        for failures in range(MAX_ATTEMPTS):
            if failures:
                self._wait(pause_after(failures, first=FIRST_PAUSE_S, longest=LONGEST_PAUSE_S))
            problem, again = self._post(to_text(body, default=str).encode())
            if not again:
                break
        return problem

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Why it could not be sent, and whether another try may help."""
        headers = {"Content-Type": "application/json"}
        try:
            # A redirected POST becomes a GET, to an address that the user has not given: it counts as an error.
            answer = exchange(
                self._url, headers=headers, body=body, within_s=TIMEOUT_S, most=MAX_ANSWER, redirects=False
            )
        except NoAnswer as error:
            return str(error), True
        if 200 <= answer.status < 300:
            return "", False
        return f"it answers {answer.said}", answer.status >= 500 or answer.status == 429
