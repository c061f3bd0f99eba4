"""Google Compute Engine.

- Questions, ``Metadata-Flavor`` and waiting for a change by its ETag:
  https://cloud.google.com/compute/docs/metadata/querying-metadata
- Preemption: announced 30 s ahead at best: https://cloud.google.com/compute/docs/instances/spot#preemption
- Maintenance of the host, a minute ahead (an hour with GPUs):
  https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice

Containers of Kubernetes and Docker on such a machine can send the same requests.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from hvd_elastic_ext.agent.notices.metadata import (
    Announcement,
    Ask,
    NoResponse,
    Request,
    Response,
    body_of,
    or_last,
    parsed,
)

PREEMPTED: Final = "/computeMetadata/v1/instance/preempted"
MAINTENANCE: Final = "/computeMetadata/v1/instance/maintenance-event"
HEADERS: Final = {"Metadata-Flavor": "Google"}
WAIT_S: Final = 20
"""How long a request may wait for a change. Maintenance is read between two requests, as it is announced a minute
ahead."""
NOTICE_S: Final = 30.0
"""Seconds from the notice of a preemption to its end."""
_SLACK_S: Final = 5.0
_LONGEST_TAG: Final = 128


class Gcp:
    """The metadata server of Compute Engine."""

    name = "gcp"
    every_s = 1.0
    """Seconds between two questions. The next one contains the last ETag, so it returns a change in between at once."""

    def __init__(self) -> None:
        self._tag: str | None = None
        self._maintenance: list[Announcement] = []

    def look(self, ask: Ask) -> list[Announcement]:
        """A preemption, or else maintenance of the host. After an answer with an ETag it waits for a change."""
        request = Request("GET", PREEMPTED, HEADERS)
        if self._tag is not None:
            query = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={quote(self._tag, safe='')}"
            request = Request("GET", PREEMPTED + query, HEADERS, WAIT_S + _SLACK_S)
        answer = ask(request)
        announcements = parsed(request, _genuine(request, answer), preemption)
        tag = answer.headers.get("etag", "")
        self._tag = tag if 0 < len(tag) <= _LONGEST_TAG else None
        if announcements:
            return announcements
        maintained = Request("GET", MAINTENANCE, HEADERS)
        self._maintenance = or_last(lambda: maintenance(_genuine(maintained, ask(maintained))), self._maintenance)
        return self._maintenance


CLOUD: Final = Gcp


def _genuine(request: Request, answer: Response) -> str:
    body = body_of(request, answer)
    if answer.headers.get("metadata-flavor") != "Google":
        raise NoResponse(f"the answer to {PREEMPTED} does not come from Google's metadata server")
    return body


def preemption(body: str) -> list[Announcement]:
    """Parse the answer ``TRUE`` or ``FALSE``: whether the machine is being preempted."""
    preempted = {"TRUE": True, "FALSE": False}[body.strip()]
    return [Announcement("this machine is being preempted by Google Cloud", within_s=NOTICE_S)] * preempted


def maintenance(body: str) -> list[Announcement]:
    """Parse the maintenance event of the host. A live migration is not an announcement, because the machine keeps
    running."""
    if body.strip() != "TERMINATE_ON_HOST_MAINTENANCE":
        return []
    return [Announcement("this machine is going to be stopped by Google Cloud for maintenance of its host")]
