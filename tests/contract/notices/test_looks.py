"""How each cloud is looked at: silence, notice, its end; and nothing that is no answer is taken for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from hvd_elastic_ext.agent.notices import gcp
from hvd_elastic_ext.agent.notices.aws import REBALANCE, SCHEDULED
from hvd_elastic_ext.agent.notices.gcp import MAINTENANCE, PREEMPTED
from hvd_elastic_ext.agent.notices.metadata import NEAR_S, Announcement, HttpClient, NoResponse
from hvd_elastic_ext.agent.notices.poller import class_of, going
from tests.support.metadata import AlibabaService, AwsService, AzureService, GcpService, MetadataServer


class Kind(NamedTuple):
    service: Callable[[], Any]
    give: Callable[[Any], None]
    """Takes the machine back."""
    within_s: float
    """How much time that leaves."""


def _interrupt(service: Any) -> None:
    service.interrupt()


KINDS = {
    "aws": Kind(AwsService, _interrupt, 120.0),
    "gcp": Kind(GcpService, lambda service: service.preempt(), 30.0),
    "azure": Kind(AzureService, lambda service: service.schedule("Preempt"), 30.0),
    "alibaba": Kind(AlibabaService, _interrupt, 300.0),
    "alibaba, hardened": Kind(lambda: AlibabaService(hardened=True), _interrupt, 300.0),
    "alibaba, hardened by 401": Kind(lambda: AlibabaService(hardened=True, refusal=401), _interrupt, 300.0),
}


class Looking:
    """One cloud, asked at its stand-in."""

    def __init__(self, kind: str, server: MetadataServer[Any]) -> None:
        self.kind, self.server, self.service = KINDS[kind], server, server.service
        self.cloud = class_of(kind.partition(",")[0])()
        self.web = HttpClient(server.url)

    def give(self) -> None:
        self.kind.give(self.service)

    def look(self) -> list[Announcement]:
        return self.cloud.look(self.web)

    def advisory(self) -> list[bool]:
        return [announcement.advisory for announcement in self.look()]

    def left_s(self, announcement: Announcement) -> float:
        """Seconds from now that the notice of a word tells of."""
        now = time.time()
        by = going(announcement, now, self.web.ahead_s).by
        assert by is not None
        return by - now


@contextmanager
def looking_at(kind: str) -> Iterator[Looking]:
    with MetadataServer(KINDS[kind].service()) as server:
        yield Looking(kind, server)


@pytest.fixture(params=KINDS)
def looking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looking]:
    monkeypatch.setattr(gcp, "WAIT_S", 1)
    with looking_at(request.param) as one:
        yield one


def test_a_machine_that_is_taken_back_is_told_until_that_is_called_off(looking: Looking) -> None:
    assert looking.look() == []
    looking.give()
    (announcement,) = looking.look()
    assert not announcement.advisory
    assert looking.kind.within_s - 3 <= looking.left_s(announcement) <= looking.kind.within_s + 1
    assert looking.look() == [announcement]
    looking.service.withdraw()
    assert looking.look() == []


@pytest.mark.parametrize("looking", sorted(KINDS.keys() - {"gcp"}), indirect=True)  # which tells no time
@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong_here_changes_nothing_about_how_long_there_is(looking: Looking, ahead_s: float) -> None:
    looking.look()
    looking.give()
    looking.server.ahead_s = ahead_s
    (announcement,) = looking.look()
    # What the stand-in tells is by its own clock, which is right: this machine's is taken for the wrong one.
    assert looking.left_s(announcement) == pytest.approx(looking.kind.within_s - ahead_s, abs=3)


def test_another_status_is_no_answer_and_the_next_one_counts_again(looking: Looking) -> None:
    looking.look()
    looking.give()
    for status in (204, 302, 400, 410, 429, 500):
        looking.server.faults.answer(status, Location=f"{looking.server.url}/elsewhere")
        with pytest.raises(NoResponse, match=str(status)):
            looking.look()
        looking.server.faults.clear()
    assert len(looking.look()) == 1
    assert not looking.server.asked("/elsewhere")


def test_what_cannot_be_read_is_no_answer(looking: Looking) -> None:
    looking.look()
    for body in ("", "<html>", "{", "[]", "null", "[" * 5000, '{"action": 1, "time": 2}', '{"Events": 1}'):
        looking.server.faults.answer(200, body)
        with pytest.raises(NoResponse) as said:
            looking.look()
        looking.server.faults.clear()
        assert len(str(said.value)) < 200


def test_where_nobody_is_it_says_so_and_finds_who_comes_later(looking: Looking) -> None:
    looking.server.refuse()
    with pytest.raises(NoResponse, match="refused"):
        looking.look()
    looking.server.listen()
    looking.give()
    assert len(looking.look()) == 1


@pytest.mark.parametrize("looking", [name for name in KINDS if name.startswith(("aws", "alibaba,"))], indirect=True)
def test_a_token_that_is_taken_no_more_is_replaced_at_once(looking: Looking) -> None:
    looking.look()
    looking.give()
    looking.service.tokens.expire()
    assert len(looking.look()) == 1
    assert len(looking.service.tokens) == 2
    looking.look()
    assert len(looking.service.tokens) == 2


@pytest.mark.parametrize(
    ("kind", "status", "body", "why"),
    [
        ("aws", 200, "good\r\nX-Evil: 1", "not a token"),  # it would write a head of its own
        ("gcp", 200, "TRUE", "not come from Google"),
        ("alibaba", 404, "", "404"),
    ],
)
def test_who_answers_as_anybody_might_is_not_that_cloud(kind: str, status: int, body: str, why: str) -> None:
    with looking_at(kind) as looking:
        looking.server.faults.answer(status, body)
        with pytest.raises(NoResponse, match=why):
            looking.look()


def test_a_recommendation_of_aws_is_advice_that_a_failing_answer_does_not_hide_and_an_interruption_outweighs() -> None:
    with looking_at("aws") as aws:
        aws.service.recommend()
        assert aws.advisory() == [True]
        aws.service.fails = {REBALANCE, SCHEDULED}
        assert aws.advisory() == [True]
        aws.service.interrupt()
        assert aws.advisory() == [False]


def test_an_event_of_aws_is_advice_until_it_is_near_and_some_are_nothing() -> None:
    with looking_at("aws") as aws:
        for code, in_s, state, said in (
            ("system-reboot", NEAR_S + 60, "active", [True]),
            ("system-reboot", NEAR_S - 60, "active", [False]),
            ("instance-retirement", NEAR_S + 60, "active", [True]),
            ("system-maintenance", 10.0, "active", []),
            ("system-reboot", 10.0, "completed", []),
        ):
            aws.service.schedule(code, in_s=in_s, state=state)
            assert aws.advisory() == said, (code, in_s)


def test_google_is_waited_for_once_it_has_said_something_and_maintenance_is_looked_at_between() -> None:
    with looking_at("gcp") as google:
        assert google.look() == []
        google.service.preempt()
        (announcement,) = google.look()
        assert announcement.within_s == 30.0
        first, second = (call.query for call in google.server.asked(PREEMPTED))
        assert first == {}
        assert second["wait_for_change"] == "true"
        assert second["last_etag"]
        assert len(google.server.asked(MAINTENANCE)) == 1  # not when there is something to say


@pytest.mark.parametrize("event", ["TERMINATE", "MIGRATE"])
def test_maintenance_at_google_is_a_notice_only_if_it_ends_the_machine(event: str) -> None:
    with looking_at("gcp") as google:
        google.service.maintain(f"{event}_ON_HOST_MAINTENANCE")
        said = [(announcement.advisory, announcement.at, announcement.within_s) for announcement in google.look()]
        assert said == [(False, None, None)] * (event == "TERMINATE")


def test_events_of_azure_count_by_kind_name_and_time() -> None:
    with looking_at("azure") as azure:
        for kind, names, in_s, said in (
            ("Preempt", ("VMSS_1",), 30.0, [False]),
            ("Terminate", ("other", "vmss_1"), 200.0, [False]),
            ("Terminate", ("vmss_1",), 900.0, [True]),
            ("Redeploy", ("vmss_1",), 86400.0 * 7, [True]),
            ("Reboot", ("vmss_10",), 30.0, []),
            ("Freeze", ("vmss_1",), 30.0, []),
            ("SomethingNew", ("vmss_1",), 30.0, []),
        ):
            azure.service.schedule(kind, *names, in_s=in_s)
            assert azure.advisory() == said, kind
            azure.service.withdraw()
        azure.service.schedule("Reboot", started=True)
        (announcement,) = azure.look()
        assert (announcement.advisory, announcement.at) == (False, None)
        assert azure.service.approved == []
        assert len(azure.server.asked("/metadata/instance/compute/name")) == 1


def test_alibaba_without_tokens_is_asked_without() -> None:
    with looking_at("alibaba") as alibaba:
        alibaba.service.gives_tokens = False
        alibaba.service.interrupt()
        assert alibaba.advisory() == [False]
