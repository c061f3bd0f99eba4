"""What vendors document of their metadata services, asked of the stand-ins, and of the real one in that cloud."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from hvd_elastic_ext.core.notice_sources import CLOUDS
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
        for endpoint in [ours] + [Endpoint(cloud, CLOUDS[cloud].url)] * (cloud == REAL):
            reply = endpoint.with_token(path) if headers is None else endpoint.ask(path, headers, method=method)
            assert (reply.status, reply.body[: len(body)]) == (status, body), endpoint
