"""Results of finished calls go from one slot to another, between two helpers or within one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.core import call_results

SECRET = "5e" * 32


@pytest.fixture
def slots() -> Iterator[dict[str, int]]:
    found = {str(slot): os.memfd_create(f"past-{slot}") for slot in range(2)}
    for call, data in enumerate((b"", b"one" * 3_000_000)):
        call_results.append(found["0"], [data], call=call, step=call * 7, number=call)
    yield found
    for descriptor in found.values():
        os.close(descriptor)


def content(descriptor: int) -> list[bytes]:
    return [bytes(call_results.read(descriptor, entry)) for entry in call_results.entries(descriptor)]


def sent(
    slots: dict[str, int], *, results: int, secret: str = SECRET, **more: object
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last answers of sender and receiver."""
    listening = Queue[dict[str, Any]]()
    usual = {"transfer": "T", "pasts": slots, "results": results}
    sender = {**usual, "do": "send_past", "slot": 0, "secret": SECRET, "address": "127.0.0.1"}
    receiver = {**usual, "do": "receive_past", "slot": 1, "secret": secret, **more}
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(agent_requests.answered, sender, listening.put)
        received = agent_requests.answered({**receiver, "from": listening.get(timeout=20)["listening"]})
        return sending.result(timeout=20), received


def test_results_are_sent_whole_and_counted(slots: dict[str, int]) -> None:
    sender, receiver = sent(slots, results=2)
    assert (receiver["results"], receiver["bytes"]) == (2, sender["sent"])
    assert content(slots["1"]) == content(slots["0"])


def test_more_results_than_were_asked_for_are_welcome_and_those_that_are_there_stay(slots: dict[str, int]) -> None:
    call_results.append(slots["1"], [b"mine"], call=0, step=0, number=0)
    call_results.append(slots["0"], [b"two"], call=2, step=20, number=2)
    assert sent(slots, results=2)[1]["results"] == 3
    assert content(slots["1"]) == [b"mine", *content(slots["0"])[1:]]


@pytest.mark.parametrize("within", [False, True])
def test_the_record_of_the_newest_start_takes_the_place_of_an_earlier_one(slots: dict[str, int], within: bool) -> None:
    for call, data in enumerate((b"of an earlier start", b"one" * 3_000_000, b"two")):
        call_results.append(slots["1"], [data], call=call, step=call * 7, number=call)
    if within:
        request = {"do": "copy_past", "pasts": slots, "from": 0, "to": 1, "results": 2, "record": True}
        answer = agent_requests.answered(request)
    else:
        answer = sent(slots, results=2, record=True)[1]
    assert answer["results"] == 3
    assert content(slots["1"]) == [*content(slots["0"]), b"two"]


def test_a_slot_that_has_the_results_connects_to_nobody(slots: dict[str, int]) -> None:
    request = {"do": "receive_past", "pasts": slots, "slot": 0, "results": 2, "from": ["127.0.0.1", 1], "secret": "00"}
    assert agent_requests.answered(request)["results"] == 2


@pytest.mark.parametrize("kind", ["send_past", "copy_past"])
def test_a_slot_without_the_results_says_so_for_good(slots: dict[str, int], kind: str) -> None:
    request = {"do": kind, "pasts": slots, "slot": 0, "from": 0, "to": 1, "results": 3}
    answer = agent_requests.answered({**request, "secret": SECRET, "address": "127.0.0.1"})
    assert answer == {"failed": "the memory holds 2 results, not 3", "for_good": True}


def test_results_are_copied_within_a_host(slots: dict[str, int]) -> None:
    answer = agent_requests.answered({"do": "copy_past", "pasts": slots, "from": 0, "to": 1, "results": 2})
    assert answer["results"] == 2
    assert content(slots["1"]) == content(slots["0"])


def test_a_damaged_result_arrives_nowhere(slots: dict[str, int]) -> None:
    os.pwrite(slots["0"], b"X", call_results.entries(slots["0"])[1].at)
    answer = agent_requests.answered({"do": "copy_past", "pasts": slots, "from": 0, "to": 1, "results": 2})
    assert answer == {"failed": "result 1 is damaged", "for_good": False}
    assert call_results.count(slots["1"]) == 0
