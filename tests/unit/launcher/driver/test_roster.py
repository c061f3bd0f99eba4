"""What the roster knows of agents and processes together."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.health import silence
from tests.unit.launcher.state_changes import NOW, small_job


def test_hosts_were_all_heard_after_a_time_until_one_of_them_was_not() -> None:
    job = small_job()
    assert job.roster.all_sent_after(NOW - 1.0)  # nothing is known of the agent that never sent a message
    job.now = NOW + 20.0
    for host in "ab":
        reduce(job, News(host, {"event": "beats", "slots": {}}))
    assert job.roster.all_sent_after(NOW - 1.0)
    assert not job.roster.all_sent_after(NOW + 5.0)  # c is silent
    reduce(job, News("c", {"event": "beats", "slots": {}}))
    assert job.roster.all_sent_after(NOW + 5.0)


def test_a_process_that_its_agent_names_no_more_is_asked_for_though_others_say_nothing() -> None:
    job = small_job()
    job.now = NOW + 1000.0
    reduce(job, News("a", {"event": "beats", "slots": {}}))
    job.take_actions()
    silence._ask_for_unreported_ends(job)
    assert [action.host for action in job.take_actions()] == ["a"]
    silence._ask_for_unreported_ends(job)
    assert job.take_actions() == []
