"""The Instance Metadata Service of Amazon EC2, version 2."""

from __future__ import annotations

import json
import time

import pytest

from hvd_elastic_ext.agent.metadata.model import iso_time, mail_time
from tests.contract.metadata.conftest import Endpoint
from tests.support.metadata import AwsService, MetadataServer

TOKEN = "/latest/api/token"
DATA = "/latest/meta-data"
SPOT = f"{DATA}/spot/instance-action"


def token(endpoint: Endpoint, life_s: int = 60) -> dict[str, str]:
    reply = endpoint.ask("PUT", TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(life_s)})
    assert reply.status == 200
    return {"X-aws-ec2-metadata-token": reply.body}


def test_a_token_is_had_by_put_and_opens_what_is_there(endpoint: Endpoint) -> None:
    assert endpoint.ask("GET", f"{DATA}/instance-id", token(endpoint)).body.startswith("i-")


def test_without_a_token_or_with_a_wrong_one_it_is_401(endpoint: Endpoint) -> None:
    assert endpoint.get(f"{DATA}/instance-id").status == 401
    assert endpoint.get(f"{DATA}/instance-id", X_aws_ec2_metadata_token="wrong").status == 401


@pytest.mark.parametrize("headers", [{}, {"X-aws-ec2-metadata-token-ttl-seconds": "21601"}])
def test_a_token_takes_a_time_to_live_of_at_most_six_hours(endpoint: Endpoint, headers: dict[str, str]) -> None:
    assert endpoint.ask("PUT", TOKEN, headers).status == 400


def test_a_token_is_not_given_through_a_proxy(endpoint: Endpoint) -> None:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60", "X-Forwarded-For": "10.0.0.1"}
    assert endpoint.ask("PUT", TOKEN, headers).status == 403


def test_a_token_expires(endpoint: Endpoint) -> None:
    held = token(endpoint, 1)
    assert endpoint.ask("GET", f"{DATA}/instance-id", held).status == 200
    time.sleep(1.5)
    assert endpoint.ask("GET", f"{DATA}/instance-id", held).status == 401


@pytest.mark.parametrize("path", [SPOT, f"{DATA}/events/recommendations/rebalance"])
def test_where_there_is_nothing_to_tell_it_is_404(endpoint: Endpoint, path: str) -> None:
    assert endpoint.ask("GET", path, token(endpoint)).status == 404


def test_an_interruption_tells_what_happens_and_when(endpoint: Endpoint, server: MetadataServer[AwsService]) -> None:
    server.service.interrupt(in_s=120.0, action="stop")
    said = json.loads(endpoint.ask("GET", SPOT, token(endpoint)).body)
    assert set(said) == {"action", "time"}
    assert said["action"] == "stop"
    assert 118 <= iso_time(said["time"]) - time.time() <= 120
    server.service.withdraw()
    assert endpoint.ask("GET", SPOT, token(endpoint)).status == 404


def test_an_interruption_may_be_of_one_instance_only(endpoint: Endpoint, server: MetadataServer[AwsService]) -> None:
    first, second = token(endpoint), token(endpoint)
    server.service.interrupt(session=1)
    assert endpoint.ask("GET", SPOT, first).status == 404
    assert endpoint.ask("GET", SPOT, second).status == 200


def test_a_recommendation_tells_when_it_was_given(endpoint: Endpoint, server: MetadataServer[AwsService]) -> None:
    server.service.recommend()
    said = json.loads(endpoint.ask("GET", f"{DATA}/events/recommendations/rebalance", token(endpoint)).body)
    assert abs(iso_time(said["noticeTime"]) - time.time()) < 2


def test_scheduled_events_are_a_list(endpoint: Endpoint, server: MetadataServer[AwsService]) -> None:
    server.service.schedule("system-reboot", in_s=3600.0)
    (event,) = json.loads(endpoint.ask("GET", f"{DATA}/events/maintenance/scheduled", token(endpoint)).body)
    assert event["Code"] == "system-reboot"
    assert event["State"] == "active"
    assert not event["NotBefore"].startswith(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"))
    assert 3598 <= mail_time(event["NotBefore"]) - time.time() <= 3600
