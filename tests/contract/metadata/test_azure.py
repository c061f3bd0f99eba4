"""Azure's Scheduled Events."""

from __future__ import annotations

import json
import time

from hvd_elastic_ext.agent.metadata.model import mail_time
from tests.contract.metadata.conftest import Endpoint
from tests.support.metadata import AzureService, MetadataServer

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


def test_a_question_without_its_header_or_a_version_is_refused(endpoint: Endpoint) -> None:
    assert endpoint.get(EVENTS).status == 400
    assert endpoint.get("/metadata/scheduledevents", Metadata="true").status == 400


def test_events_are_a_list_in_a_numbered_document(endpoint: Endpoint) -> None:
    said = json.loads(endpoint.get(EVENTS, Metadata="true").body)
    assert isinstance(said["DocumentIncarnation"], int)
    assert isinstance(said["Events"], list)


def test_a_machine_learns_its_name(endpoint: Endpoint) -> None:
    reply = endpoint.get(NAME, Metadata="true")
    assert reply.status == 200
    assert reply.body
    assert "{" not in reply.body


def test_an_event_names_its_kind_its_machines_and_its_time(
    endpoint: Endpoint, server: MetadataServer[AzureService]
) -> None:
    before = json.loads(endpoint.get(EVENTS, Metadata="true").body)["DocumentIncarnation"]
    server.service.schedule("Preempt", "vmss_1", "vmss_7", in_s=30.0)
    said = json.loads(endpoint.get(EVENTS, Metadata="true").body)
    (event,) = said["Events"]
    assert said["DocumentIncarnation"] != before
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == (
        "Preempt",
        "Scheduled",
        ["vmss_1", "vmss_7"],
    )
    assert 28 <= mail_time(event["NotBefore"]) - time.time() <= 30


def test_an_event_that_has_begun_tells_no_time_and_one_that_is_over_is_listed_no_more(
    endpoint: Endpoint, server: MetadataServer[AzureService]
) -> None:
    server.service.schedule("Reboot", started=True)
    (event,) = json.loads(endpoint.get(EVENTS, Metadata="true").body)["Events"]
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")
    server.service.withdraw()
    assert json.loads(endpoint.get(EVENTS, Metadata="true").body)["Events"] == []
