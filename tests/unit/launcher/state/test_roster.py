"""The roster's cached answers are the same as when all processes are asked."""

from __future__ import annotations

import copy

from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.planners.health import silence
from hvd_elastic_ext.launcher.state.events import News, SameNews
from tests.unit.launcher.state_changes import NOW, of_slot, small_job


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


def test_the_longest_silence_is_that_of_the_process_that_is_silent_for_longest() -> None:
    job = small_job()
    for host, age in (("a", 3.0), ("b", 7.5)):
        beats = {"0": {"life": 2, "age": age, "beat": {"step": 1}}}
        reduce(job, News(host, {"event": "beats", "slots": beats}))
    assert job.roster.most_silent_s() == 7.5
    reduce(job, News("b", {"event": "beats", "slots": {"0": {"life": 2, "age": 1.0, "beat": {"step": 2}}}}))
    assert job.roster.most_silent_s() == 3.0
    reduce(job, of_slot("a", "exited", code=1))
    assert job.roster.most_silent_s() == 1.0


def test_a_process_that_its_agent_names_no_more_is_asked_for_though_others_say_nothing() -> None:
    job = small_job()
    job.now = NOW + 1000.0
    reduce(job, News("a", {"event": "beats", "slots": {}}))
    job.take_actions()
    silence._ask_for_unreported_ends(job)
    assert [action.host for action in job.take_actions()] == ["a"]
    silence._ask_for_unreported_ends(job)
    assert job.take_actions() == []


def test_an_agent_that_was_started_again_is_heard_when_its_processes_speak_with_others() -> None:
    job = small_job()
    lives = tuple(worker.life for worker in job.roster.workers.values())
    news = {"event": "said", "message": {"say": "beat"}}
    reduce(job, SameNews(lives, news))
    agent = job.roster.start_agent(job.roster.agents.pop("a").host, NOW)
    reduce(job, SameNews(lives, news))
    assert agent.last_message_at == job.now


def test_a_copy_knows_its_own_members() -> None:
    job = small_job()
    job.roster.present_ids(job.world.members)
    copied = copy.deepcopy(job)
    present = copied.roster.present(copied.world.members)
    assert copied.roster.present_ids(copied.world.members) == frozenset(map(id, present))


def test_a_process_that_has_ended_says_nothing_with_others_any_more() -> None:
    job = small_job()
    lives = tuple(worker.life for worker in job.roster.workers.values())
    news = {"event": "said", "message": {"say": "done"}}
    reduce(job, SameNews(lives, news))
    reduce(job, of_slot("b", "exited", code=0))
    for worker in job.roster.workers.values():
        worker.done = False
    reduce(job, SameNews(lives, news))
    assert all(worker.done for worker in job.roster.workers.values())
