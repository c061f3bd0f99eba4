"""What each cloud says beside "you are taken back now"."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.agent.metadata.alibaba import Alibaba
from hvd_elastic_ext.agent.metadata.aws import REBALANCE, SCHEDULED, Aws
from hvd_elastic_ext.agent.metadata.azure import Azure
from hvd_elastic_ext.agent.metadata.gcp import MAINTENANCE, PREEMPTED, Gcp
from hvd_elastic_ext.agent.metadata.http import HttpClient
from hvd_elastic_ext.agent.metadata.model import NEAR_S, Announcement, NoAnswer
from tests.support.metadata import AlibabaService, AwsService, AzureService, GcpService, MetadataServer


def soft(announcements: list[Announcement]) -> list[bool]:
    return [announcement.soft for announcement in announcements]


def test_a_recommendation_of_aws_is_advice_and_an_interruption_outweighs_it() -> None:
    with MetadataServer(AwsService()) as server:
        aws, web = Aws(), HttpClient(server.url)
        server.service.recommend()
        assert soft(aws.look(web)) == [True]
        server.service.interrupt()
        assert soft(aws.look(web)) == [False]


def test_an_event_of_aws_is_advice_until_it_is_near_and_some_are_nothing() -> None:
    with MetadataServer(AwsService()) as server:
        aws, web = Aws(), HttpClient(server.url)
        for code, in_s, said in (
            ("system-reboot", NEAR_S + 60, [True]),
            ("system-reboot", NEAR_S - 60, [False]),
            ("instance-retirement", NEAR_S + 60, [True]),
            ("system-maintenance", 10.0, []),
        ):
            server.service.schedule(code, in_s=in_s)
            assert soft(aws.look(web)) == said
        server.service.schedule("system-reboot", in_s=10.0, state="completed")
        assert aws.look(web) == []


def test_what_else_aws_has_to_say_is_not_missed_for_an_answer_that_fails() -> None:
    with MetadataServer(AwsService()) as server:
        aws, web = Aws(), HttpClient(server.url)
        server.service.recommend()
        (advice,) = aws.look(web)
        server.service.fails = {REBALANCE, SCHEDULED}
        assert aws.look(web) == [advice]
        server.service.interrupt()
        assert soft(aws.look(web)) == [False]


def test_google_is_waited_for_once_it_has_said_something_and_maintenance_is_looked_at_between() -> None:
    with MetadataServer(GcpService()) as server:
        gcp, web = Gcp(), HttpClient(server.url)
        assert gcp.look(web) == []
        assert server.asked(PREEMPTED)[0].query == {}
        server.service.preempt()
        (announcement,) = gcp.look(web)
        query = server.asked(PREEMPTED)[1].query
        assert query["wait_for_change"] == "true"
        assert query["last_etag"]
        assert announcement.within_s == 30.0
        assert len(server.asked(MAINTENANCE)) == 1  # not when there is something to say


def test_maintenance_at_google_is_a_notice_only_if_it_ends_the_machine() -> None:
    for event, said in (("TERMINATE_ON_HOST_MAINTENANCE", [False]), ("MIGRATE_ON_HOST_MAINTENANCE", [])):
        with MetadataServer(GcpService()) as server:
            server.service.maintain(event)
            announcements = Gcp().look(HttpClient(server.url))
            assert soft(announcements) == said
            assert all(announcement.at is None and announcement.within_s is None for announcement in announcements)


def test_whoever_answers_without_googles_name_is_not_google() -> None:
    with MetadataServer(AwsService()) as server:
        server.faults.answer(200, "TRUE")
        with pytest.raises(NoAnswer, match="not by Google"):
            Gcp().look(HttpClient(server.url))


def test_events_of_azure_count_by_kind_name_and_time() -> None:
    with MetadataServer(AzureService("VMSS_1")) as server:
        azure, web = Azure(), HttpClient(server.url)
        for kind, names, in_s, said in (
            ("Preempt", ("vmss_1",), 30.0, [False]),
            ("Terminate", ("other", "vmss_1"), 200.0, [False]),
            ("Terminate", ("vmss_1",), 900.0, [True]),
            ("Redeploy", ("vmss_1",), 86400.0 * 7, [True]),
            ("Reboot", ("vmss_10",), 30.0, []),
            ("Freeze", ("vmss_1",), 30.0, []),
            ("SomethingNew", ("vmss_1",), 30.0, []),
        ):
            server.service.schedule(kind, *names, in_s=in_s)
            assert soft(azure.look(web)) == said, kind
            server.service.withdraw()
        server.service.schedule("Reboot", started=True)
        (announcement,) = azure.look(web)
        assert (announcement.soft, announcement.at) == (False, None)
        assert server.service.approved == []
        assert len(server.asked("/metadata/instance/compute/name")) == 1


def test_an_endpoint_that_merely_says_404_is_not_alibabas() -> None:
    with MetadataServer(AlibabaService()) as server:
        server.faults.answer(404)
        with pytest.raises(NoAnswer, match="404"):
            Alibaba().look(HttpClient(server.url))


def test_alibaba_without_tokens_is_asked_without() -> None:
    with MetadataServer(AlibabaService()) as server:
        server.service.gives_tokens = False
        server.service.interrupt()
        assert soft(Alibaba().look(HttpClient(server.url))) == [False]
