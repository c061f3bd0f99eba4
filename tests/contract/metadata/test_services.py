"""What vendors document of their metadata services, asked of the stand-ins, and of the real one in that cloud."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from hvd_elastic_ext.agent.metadata.detect import CLOUDS
from hvd_elastic_ext.agent.metadata.model import iso_time, mail_time
from tests.support.metadata import AlibabaService, AwsService, AzureService, GcpService, MetadataServer

REAL = os.environ.get("HVD_TEST_METADATA")
"""The cloud that this machine is in."""
SERVICES: dict[str, Callable[[], Any]] = {
    "aws": AwsService,
    "gcp": GcpService,
    "azure": AzureService,
    "alibaba": AlibabaService,
}
TOKEN = "/latest/api/token"
DATA = "/latest/meta-data"
ID, SPOT = f"{DATA}/instance-id", f"{DATA}/spot/instance-action"
REBALANCE, SCHEDULED = f"{DATA}/events/recommendations/rebalance", f"{DATA}/events/maintenance/scheduled"
ALIBABAS_SPOT = f"{DATA}/instance/spot/termination-time"
GOOGLES = "/computeMetadata/v1/instance"
PREEMPTED = f"{GOOGLES}/preempted"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
GOOGLE, AZURE = {"Metadata-Flavor": "Google"}, {"Metadata": "true"}
TOKENS = {"aws": "X-aws-ec2-metadata-token", "alibaba": "X-aliyun-ecs-metadata-token"}
"""The header that a token travels in."""


class Reply(NamedTuple):
    status: int
    body: str
    headers: dict[str, str]


class Endpoint(NamedTuple):
    """Asks as anybody would."""

    cloud: str
    url: str

    def ask(self, path: str, headers: dict[str, str] | None = None, *, method: str = "GET") -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, None, {"Connection": "close", **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, answer.read().decode(), found)

    def token(self, life_s: int = 60) -> dict[str, str]:
        header = TOKENS[self.cloud]
        reply = self.ask(TOKEN, {f"{header}-ttl-seconds": str(life_s)}, method="PUT")
        assert reply.status == 200
        return {header: reply.body}

    def with_token(self, path: str) -> Reply:
        return self.ask(path, self.token())


@contextlib.contextmanager
def served(cloud: str) -> Iterator[tuple[Endpoint, MetadataServer[Any]]]:
    with MetadataServer(SERVICES[cloud]()) as server:
        yield Endpoint(cloud, server.url), server


QUESTIONS: dict[str, tuple[str, str, dict[str, str] | None, int, str]] = {
    # method, path, headers (None: with a token), status, beginning of the body
    "aws: an instance with a token": ("GET", ID, None, 200, "i-"),
    "aws: without a token": ("GET", ID, {}, 401, ""),
    "aws: with a wrong token": ("GET", ID, {TOKENS["aws"]: "wrong"}, 401, ""),
    "aws: a token without a life": ("PUT", TOKEN, {}, 400, ""),
    "aws: a token for too long": ("PUT", TOKEN, {f"{TOKENS['aws']}-ttl-seconds": "21601"}, 400, ""),
    "aws: a token through a proxy": (
        "PUT", TOKEN, {f"{TOKENS['aws']}-ttl-seconds": "60", "X-Forwarded-For": "10.0.0.1"}, 403, ""
    ),
    "aws: no interruption": ("GET", SPOT, None, 404, ""),
    "aws: no recommendation": ("GET", REBALANCE, None, 404, ""),
    "gcp: without its header": ("GET", PREEMPTED, {}, 403, ""),
    "gcp: no preemption": ("GET", PREEMPTED, GOOGLE, 200, "FALSE"),
    "gcp: no maintenance": ("GET", f"{GOOGLES}/maintenance-event", GOOGLE, 200, "NONE"),
    "gcp: what is not there": ("GET", f"{GOOGLES}/nothing-of-the-kind", GOOGLE, 404, ""),
    "azure: without its header": ("GET", EVENTS, {}, 400, ""),
    "azure: without a version": ("GET", EVENTS.partition("?")[0], AZURE, 400, ""),
    "azure: a document of events": ("GET", EVENTS, AZURE, 200, "{"),
    "azure: a machine's name": ("GET", NAME, AZURE, 200, ""),
    "alibaba: an instance with a token": ("GET", ID, None, 200, "i-"),
    "alibaba: a token for no time": ("PUT", TOKEN, {f"{TOKENS['alibaba']}-ttl-seconds": "0"}, 400, ""),
    "alibaba: a token for too long": ("PUT", TOKEN, {f"{TOKENS['alibaba']}-ttl-seconds": "21601"}, 400, ""),
    "alibaba: no interruption": ("GET", ALIBABAS_SPOT, None, 404, ""),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_as_is_documented(question: str) -> None:
    cloud = question.partition(":")[0]
    method, path, headers, status, body = QUESTIONS[question]
    with served(cloud) as (ours, _):
        for endpoint in [ours] + [Endpoint(cloud, CLOUDS[cloud][1])] * (cloud == REAL):
            reply = endpoint.with_token(path) if headers is None else endpoint.ask(path, headers, method=method)
            assert (reply.status, reply.body[: len(body)]) == (status, body), endpoint


def left_s(moment: float) -> int:
    return round(moment - time.time())


def test_aws_tells_of_interruptions_recommendations_and_scheduled_events() -> None:
    with served("aws") as (endpoint, server):
        first, second = endpoint.token(), endpoint.token()
        server.service.interrupt(in_s=120.0, action="stop")
        said = json.loads(endpoint.ask(SPOT, first).body)
        assert (said.keys(), said["action"]) == ({"action", "time"}, "stop")
        assert left_s(iso_time(said["time"])) in (118, 119, 120)
        server.service.interrupt(session=1)
        assert [endpoint.ask(SPOT, token).status for token in (first, second)] == [404, 200]
        server.service.withdraw()
        assert endpoint.ask(SPOT, second).status == 404
        server.service.recommend()
        assert left_s(iso_time(json.loads(endpoint.ask(REBALANCE, first).body)["noticeTime"])) in (-2, -1, 0)
        server.service.schedule("system-reboot", in_s=3600.0)
        (event,) = json.loads(endpoint.ask(SCHEDULED, first).body)
        assert (event["Code"], event["State"]) == ("system-reboot", "active")
        assert event["NotBefore"][0].isdigit()  # no day of the week
        assert left_s(mail_time(event["NotBefore"])) in (3598, 3599, 3600)
        server.service.tokens.expire()
        assert endpoint.ask(SPOT, first).status == 401


def test_google_answers_at_once_what_is_new_and_else_waits_for_a_change_as_long_as_was_asked() -> None:
    with served("gcp") as (endpoint, server):
        first = endpoint.ask(PREEMPTED, GOOGLE)
        assert first.headers["metadata-flavor"] == "Google"
        tag = first.headers["etag"]
        waiting = f"{PREEMPTED}?wait_for_change=true&timeout_sec="
        assert endpoint.ask(f"{waiting}30&last_etag=0", GOOGLE).status == 200
        unchanged = endpoint.ask(f"{waiting}1&last_etag={tag}", GOOGLE)
        assert (unchanged.status, unchanged.body, unchanged.headers["etag"]) == (200, "FALSE", tag)
        told: list[Reply] = []
        asking = threading.Thread(target=lambda: told.append(endpoint.ask(f"{waiting}30&last_etag={tag}", GOOGLE)))
        asking.start()
        server.service.preempt()
        asking.join(20)
        assert told[0].body == "TRUE"
        assert told[0].headers["etag"] != tag
        server.service.withdraw()
        assert endpoint.ask(PREEMPTED, GOOGLE).body == "FALSE"
        server.service.maintain()
        assert endpoint.ask(f"{GOOGLES}/maintenance-event", GOOGLE).body == "TERMINATE_ON_HOST_MAINTENANCE"


def test_azure_lists_events_in_a_numbered_document_until_they_are_over() -> None:
    with served("azure") as (endpoint, server):

        def document() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(endpoint.ask(EVENTS, AZURE).body)
            return found

        before = document()
        assert (type(before["DocumentIncarnation"]), before["Events"]) == (int, [])
        server.service.schedule("Preempt", "vmss_1", "vmss_7", in_s=30.0)
        after = document()
        (event,) = after["Events"]
        assert after["DocumentIncarnation"] != before["DocumentIncarnation"]
        facts = (event["EventType"], event["EventStatus"], event["Resources"])
        assert facts == ("Preempt", "Scheduled", ["vmss_1", "vmss_7"])
        assert left_s(mail_time(event["NotBefore"])) in (28, 29, 30)
        server.service.withdraw()
        server.service.schedule("Reboot", started=True)
        (event,) = document()["Events"]
        assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")
        server.service.withdraw()
        assert document()["Events"] == []


def test_alibaba_tells_when_an_instance_is_taken_back_and_in_hardened_mode_nothing_without_a_token() -> None:
    with served("alibaba") as (endpoint, server):
        server.service.interrupt(in_s=300.0)
        assert left_s(iso_time(endpoint.with_token(ALIBABAS_SPOT).body)) in (298, 299, 300)
        server.service.withdraw()
        assert endpoint.with_token(ALIBABAS_SPOT).status == 404
        assert endpoint.ask(ID).status == 200
        server.service.hardened = True
        assert (endpoint.ask(ID).status, endpoint.with_token(ID).status) == (403, 200)
