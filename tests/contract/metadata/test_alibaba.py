"""The metadata of Alibaba Cloud's ECS."""

from __future__ import annotations

import time

import pytest

from hvd_elastic_ext.agent.metadata.model import iso_time
from tests.contract.metadata.conftest import Endpoint
from tests.support.metadata import AlibabaService, MetadataServer

TOKEN = "/latest/api/token"
SPOT = "/latest/meta-data/instance/spot/termination-time"
NAME = "/latest/meta-data/instance-id"


def token(endpoint: Endpoint, life_s: int = 60) -> dict[str, str]:
    reply = endpoint.ask("PUT", TOKEN, {"X-aliyun-ecs-metadata-token-ttl-seconds": str(life_s)})
    assert reply.status == 200
    return {"X-aliyun-ecs-metadata-token": reply.body}


def test_a_token_is_had_by_put_and_opens_what_is_there(endpoint: Endpoint) -> None:
    assert endpoint.ask("GET", NAME, token(endpoint)).body.startswith("i-")


@pytest.mark.parametrize("life", ["0", "21601"])
def test_a_token_lives_for_one_second_to_six_hours(endpoint: Endpoint, life: str) -> None:
    assert endpoint.ask("PUT", TOKEN, {"X-aliyun-ecs-metadata-token-ttl-seconds": life}).status >= 400


def test_where_there_is_nothing_to_tell_it_is_404(endpoint: Endpoint) -> None:
    assert endpoint.ask("GET", SPOT, token(endpoint)).status == 404


def test_an_instance_that_is_taken_back_tells_when(endpoint: Endpoint, server: MetadataServer[AlibabaService]) -> None:
    server.service.interrupt(in_s=300.0)
    assert 298 <= iso_time(endpoint.ask("GET", SPOT, token(endpoint)).body) - time.time() <= 300
    server.service.withdraw()
    assert endpoint.ask("GET", SPOT, token(endpoint)).status == 404


def test_in_hardened_mode_nothing_is_told_without_a_token(
    endpoint: Endpoint, server: MetadataServer[AlibabaService]
) -> None:
    assert endpoint.get(NAME).status == 200
    server.service.hardened = True
    assert endpoint.get(NAME).status == 403
    assert endpoint.ask("GET", NAME, token(endpoint)).status == 200
