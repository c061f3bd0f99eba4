"""Sends messages to a webhook, from a thread of its own: neither training nor the end of the job waits for long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.http_exchange import NoAnswer, exchange
from hvd_elastic_ext.io.threads.follower import Follower
from hvd_elastic_ext.io.user_files import read_regular
from hvd_elastic_ext.launcher.notify.messages import Message

log = logging.getLogger(__name__)


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

    ``wait`` sleeps for so many seconds, or less once the job ends.
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
        """Send what waits, for so many seconds at most."""
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
