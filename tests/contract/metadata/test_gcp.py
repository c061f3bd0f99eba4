"""The metadata server of Google Compute Engine."""

from __future__ import annotations

import threading
import time

from tests.contract.metadata.conftest import Endpoint, Reply
from tests.support.metadata import GcpService, MetadataServer

ROOT = "/computeMetadata/v1/instance"
PREEMPTED = f"{ROOT}/preempted"


def ask(endpoint: Endpoint, path: str) -> Reply:
    return endpoint.get(path, Metadata_Flavor="Google")


def test_a_question_without_its_header_is_refused(endpoint: Endpoint) -> None:
    assert endpoint.get(PREEMPTED).status == 403


def test_an_answer_says_whose_it_is_and_which_it_is(endpoint: Endpoint) -> None:
    reply = ask(endpoint, PREEMPTED)
    assert (reply.status, reply.body.strip()) == (200, "FALSE")
    assert reply.headers["metadata-flavor"] == "Google"
    assert reply.headers["etag"]
    assert ask(endpoint, f"{ROOT}/maintenance-event").body.strip() == "NONE"


def test_what_is_not_there_is_404(endpoint: Endpoint) -> None:
    assert ask(endpoint, f"{ROOT}/nothing-of-the-kind").status == 404


def test_a_question_waits_for_a_change_as_long_as_it_says_and_is_then_answered_as_ever(endpoint: Endpoint) -> None:
    tag = ask(endpoint, PREEMPTED).headers["etag"]
    begun = time.monotonic()
    reply = ask(endpoint, f"{PREEMPTED}?wait_for_change=true&timeout_sec=1&last_etag={tag}")
    assert time.monotonic() - begun > 0.9
    assert (reply.status, reply.body.strip(), reply.headers["etag"]) == (200, "FALSE", tag)


def test_a_question_that_knows_something_older_is_answered_at_once(endpoint: Endpoint) -> None:
    begun = time.monotonic()
    assert ask(endpoint, f"{PREEMPTED}?wait_for_change=true&timeout_sec=30&last_etag=0").status == 200
    assert time.monotonic() - begun < 10


def test_a_change_answers_those_that_wait_for_it(endpoint: Endpoint, server: MetadataServer[GcpService]) -> None:
    tag = ask(endpoint, PREEMPTED).headers["etag"]
    told: list[Reply] = []
    path = f"{PREEMPTED}?wait_for_change=true&timeout_sec=30&last_etag={tag}"
    thread = threading.Thread(target=lambda: told.append(ask(endpoint, path)))
    thread.start()
    server.service.preempt()
    thread.join(20)
    assert told[0].body == "TRUE"
    assert told[0].headers["etag"] != tag
    server.service.withdraw()
    assert ask(endpoint, PREEMPTED).body == "FALSE"


def test_maintenance_that_ends_the_machine_has_a_name(endpoint: Endpoint, server: MetadataServer[GcpService]) -> None:
    server.service.maintain()
    assert ask(endpoint, f"{ROOT}/maintenance-event").body == "TERMINATE_ON_HOST_MAINTENANCE"
