"""Each message of an agent, and each message of a process: its exact changes in a small job."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.launcher.driver import reduce as reducers
from hvd_elastic_ext.launcher.driver.events import AgentLost, News
from hvd_elastic_ext.launcher.driver.job import JobState
from tests.unit.launcher.state_changes import changes, happen, held, lines, news, of_slot, small_job

Case = tuple[Any, ...]
"""Events, and the changes by the last one. A number lets so many seconds pass; a function prepares the state."""
NOTHING = ""
BEAT = {"step": 7, "commit": [1, 3, 5], "progress": 4, "step_s": 0.2, "every": 1, "commit_s": 0.1, "call_s": 0.3}


def said(host: str, say: str, **fields: Any) -> News:
    return of_slot(host, "said", message={"say": say, **fields})


def asked(host: str, number: int, method: str, path: str, body: str = "") -> News:
    return of_slot(host, "asked", id=number, method=method, path=path, body=body)


def beats(host: str, *, part: bool = False, **fields: Any) -> News:
    return news(host, "beats", slots={"0": {"life": 2, "age": 0.5, **fields}}, part=part)


def given_ranks(job: JobState) -> None:
    """Host a alone is the fourth world, and has its rank."""
    (worker,) = job.roster.on("a")
    job.rendezvous.form(4, [worker.life])
    happen(job, asked("a", 1, "GET", "/rank_and_size/a/0"))
    job.rendezvous.assign_ranks([worker.life])
    job.generation, job.world.members = 4, (worker.life,)


def later(job: JobState) -> None:
    """A second passes, and the agent of a sends a message."""
    job.now = job.roster.agents["a"].last_message_at = job.now + 1.0


def never_begun(job: JobState) -> None:
    job.world.begun = False


def leaving(job: JobState) -> None:
    """The process of a was told to leave at its next step."""
    (worker,) = job.roster.on("a")
    worker.leaving, worker.stopping_at = "its host goes", float("inf")


PROCESSES: dict[str, Case] = {
    "started: a process runs": (of_slot("c", "started", pid=7), """
        workers[c:0].started True
        workers[c:0].pid 7
        > Record spawned host=c slot=0 pid=7 rank=0 local_rank=0"""),
    "started: that was known": (of_slot("a", "started", pid=7), NOTHING),
    "not_started: it cannot run": (of_slot("c", "not_started", reason="no such file"), """
        blocked[slot 0 of c] 1 times, crashed, until 110, tried for 40 s
        faults.first rank 0 on c[0] crashed: could not be started: no such file
        faults.repeats[crashed,125,-] c:0,60,100,False,True
        loopless.last c[0] crashed: could not be started: no such file
        loopless.never_joined[c:0] rank 0 on c[0],crashed: could not be started: no such file,False,False,False,-
        roster.ended[c:0] 2
        fleet.recovering c
        outcome.failed 0,c[0] crashed: could not be started: no such file, before its training was done
        workers[c:0] gone
        > Record exited host=c slot=0 code=125 cause=crashed reason=crashed: could not be started: no such file
        > Record struck subject=slot 0 of c cause=crashed cooldown_s=10 until=110
        .. host=c reason=crashed: could not be started: no such file
        > Save"""),
    "refused: an order to start a process": (news("c", "refused", slot=0, reason="about to end"), """
        fleet.restart_delays._of[c:0] 1,110
        workers[c:0] gone"""),
    "refused: any other order": (news("a", "refused", slot=None, reason="not an order"), NOTHING),
    "exited: it has failed, and leaves a commit": (of_slot("a", "exited", code=1, held=[1, 3, 5, 50]), """
        blocked[slot 0 of a] 1 times, crashed, until 110
        faults.first rank 0 on a[0] crashed: exit code 1
        faults.counted 100,a
        faults.repeats[crashed,1,-] a:0,60,100,False,False
        loopless.loops True
        loopless.last a[0] crashed: exit code 1
        loopless.ended[a:0#2] rank 0 on a[0],crashed: exit code 1,False,False,False,-
        roster.ended[a:0] 2
        commits.held[a:0].commit 1,3,5
        commits.held[a:0].step 50
        commits.held[a:0].agent agent of a
        fleet.recovering a
        resize.stopped_at 100
        outcome.failed 3,a[0] crashed: exit code 1, before its training was done
        workers[a:0] gone
        world_of[a:0#2] gone
        > Record exited host=a slot=0 rank=0 code=1 cause=crashed reason=crashed: exit code 1
        > Record struck subject=slot 0 of a cause=crashed cooldown_s=10 until=110 host=a reason=crashed: exit code 1
        > Save"""),
    "exited: it has left": (of_slot("a", "exited", code=0), """
        liveness.finished[a:0#2].life a:0#2
        liveness.finished[a:0#2].moved_at 100
        loopless.loops True
        loopless.last a[0] left with exit code 0 before training was done
        loopless.ended[a:0#2] rank 0 on a[0],left with exit code 0 before training was done,True,False,False,-
        roster.ended[a:0] 2
        fleet.restart_delays._of[a:0] 1,110
        resize.stopped_at 100
        clean_exits.of 3
        clean_exits.members a:0#2,b:0#2
        clean_exits.left[a:0#2] rank 0 on a[0],100,0,1,-
        clean_exits.open True
        workers[a:0] gone
        world_of[a:0#2] gone
        > Record exited host=a slot=0 rank=0 code=0 cause=left
        .. reason=left with exit code 0 before training was done"""),
    "exited: it was done with training": (said("a", "done"), of_slot("a", "exited", code=0), """
        liveness.finished[a:0#2].life a:0#2
        liveness.finished[a:0#2].moved_at 100
        liveness.finished[a:0#2].done True
        loopless.loops True
        loopless.last a[0] done
        loopless.ended[a:0#2] rank 0 on a[0],done,True,False,False,-
        roster.ended[a:0] 2
        outcome.finishing True
        workers[a:0] gone
        world_of[a:0#2] gone
        > Record exited host=a slot=0 rank=0 code=0 cause=done reason=done"""),
    "exited: a newcomer has failed": (of_slot("c", "exited", code=1), """
        blocked[slot 0 of c] 1 times, crashed, until 110, tried for 40 s
        faults.first rank 0 on c[0] crashed: exit code 1
        faults.repeats[crashed,1,-] c:0,60,100,False,True
        loopless.last c[0] crashed: exit code 1
        loopless.never_joined[c:0] rank 0 on c[0],crashed: exit code 1,False,False,False,-
        roster.ended[c:0] 2
        fleet.recovering c
        outcome.failed 0,c[0] crashed: exit code 1, before its training was done
        workers[c:0] gone
        > Record exited host=c slot=0 code=1 cause=crashed reason=crashed: exit code 1
        > Record struck subject=slot 0 of c cause=crashed cooldown_s=10 until=110 host=c reason=crashed: exit code 1
        > Save"""),
    "ended: nothing is left of it": (of_slot("a", "ended", code=0, reason=""), NOTHING),
    "output: what it wrote": (of_slot("a", "output", stream="stdout", text="epoch 1"), NOTHING),
    "left: what could not be killed": (news("a", "left", slot=0, pids=[17]), NOTHING),
    "held: what its memory holds": (held("a"), """
        commits.held[a:0].commit 1,3,5
        commits.held[a:0].step 50
        commits.held[a:0].agent agent of a"""),
    "held: results of calls": (news("a", "held", slots={"0": None}, pasts={"0": 2}), """
        calls.newest 2
        calls.pasts[a:0] 2"""),
    "held: no results any more": (
        news("a", "held", slots={"0": None}, pasts={"0": 2}), news("a", "held", slots={"0": None}, pasts={}),
        "calls.pasts[a:0] gone"),
    "held: something older than is known": (held("a"), news("a", "held", slots={"0": [1, 3, 4, 40]}), NOTHING),
    "held: an agent whose connection is lost": (AgentLost("a", "reset"), held("a"), NOTHING),
    "forgotten: the memory is given back": (held("a"), news("a", "forgotten", slot=0), """
        commits.gone[a:0].commit 1,3,5
        commits.gone[a:0].step 50
        commits.gone[a:0].agent agent of a
        commits.gone[a:0].why its memory was given back
        commits.held[a:0] gone"""),
    "beats: all of a heartbeat": (1.0, beats("a", beat=BEAT), """
        agents[a].last_message_at 101
        agents[a].heartbeats_at 101
        commits.held[a:0].commit 1,3,5
        commits.held[a:0].step 7
        commits.held[a:0].agent agent of a
        commits.held[a:0].reached 7
        workers[a:0].silent_s 0.5
        workers[a:0].in_heartbeat_at 101
        workers[a:0].holds 1,3,5
        workers[a:0].step 7
        workers[a:0].step_s 0.2
        workers[a:0].progress 4
        workers[a:0].moved_at 100.5
        workers[a:0].every 1
        workers[a:0].commit_s 0.1
        workers[a:0].call_s 0.3
        workers[a:0].agreed_at_heartbeat 3"""),
    "beats: a process without one": (1.0, beats("a", beat=None), """
        agents[a].last_message_at 101
        agents[a].heartbeats_at 101
        workers[a:0].in_heartbeat_at 101"""),
    "beats: an earlier life, and a slot without a process": (
        1.0, news("a", "beats", slots={"0": {"life": 1, "age": 5.0, "beat": BEAT}, "7": {"life": 2, "beat": BEAT}}), """
        agents[a].last_message_at 101
        agents[a].heartbeats_at 101"""),
    "beats: of an age that is not known": (beats("a", age=None, beat={}), "workers[a:0].agreed_at_heartbeat 3"),
    "beats: a part, which says nothing of others": (
        1.0, news("a", "beats", slots={}, part=True), "agents[a].last_message_at 101"),
    "dropped: what found no room": (news("a", "dropped", output=1, news=2), NOTHING),
}  # fmt: skip
AGENTS: dict[str, Case] = {
    "notice: it was sent a signal": (news("c", "notice", reason="SIGTERM", grace_s=5), """
        agents[c].finishing True
        agents[c].leaves_by 105
        fleet.restart_delays._of[c:0] 1,110
        > Record notice host=c reason=its agent was sent SIGTERM deadline=105"""),
    "going: its host has notice": (news("a", "going", reason="spot", in_s=30), """
        agents[a].leaves_by 130
        agents[a].notice_reason spot
        > Record notice host=a reason=spot deadline=130"""),
    "going: nobody knows when": (news("a", "going", reason="spot", in_s=None), """
        agents[a].leaves_by inf
        agents[a].notice_reason spot
        > Record notice host=a reason=spot deadline=-"""),
    "going: the time has changed": (
        news("a", "going", reason="spot", in_s=30), 10.0, news("a", "going", reason="spot", in_s=5), """
        agents[a].last_message_at 110
        agents[a].leaves_by 115"""),
    "going: it was sent a signal before": (
        news("c", "notice", reason="SIGTERM", grace_s=5), news("c", "going", reason="spot", in_s=30), NOTHING),
    "staying: the notice is withdrawn": (news("a", "going", reason="spot", in_s=30), news("a", "staying"), """
        agents[a].leaves_by -
        agents[a].notice_reason -
        > Record notice_over host=a reason=its notice was withdrawn"""),
    "staying: there was none": (news("a", "staying"), NOTHING),
    "advised: it may have to go": (
        news("a", "advised", reason="rebalance"), "> Record advised host=a reason=rebalance"),
    "notices_unavailable: its cloud does not answer": (
        news("a", "notices_unavailable", source="aws", reason="timeout"), """
        notices.unavailable aws
        > Record notices_unavailable host=a source=aws reason=timeout"""),
    "helper: of nobody": (news("a", "helper", id=40, answer={}), NOTHING),
    "helper_ended: of nobody": (news("a", "helper_ended", id=40, code=1, words="no room"), NOTHING),
}  # fmt: skip
QUESTIONS: dict[str, Case] = {
    "asked: for a rank": (asked("c", 1, "GET", "/rank_and_size/c/0"), "asked[c:0#2] 1"),
    "asked: to keep a value": (asked("a", 1, "PUT", "/0/1", "YQ=="), """
        keys[/0/1] a
        > Send a do=answer slot=0 id=1 status=200 body=-"""),
    "asked: for a value that is not there yet": (asked("a", 1, "GET", "/0/1"), "waits_for_key[a:0#2,1] /0/1"),
    "asked: to keep a value that another one waits for": (
        asked("a", 1, "GET", "/0/1"), asked("b", 4, "PUT", "/0/1", "YQ=="), """
        keys[/0/1] a
        waits_for_key[a:0#2,1] gone
        > Send b do=answer slot=0 id=4 status=200 body=-
        > Send a do=answer slot=0 id=1 status=200 body=YQ=="""),
    "asked: before it has a rank": (asked("c", 1, "GET", "/0/1"), "> Send c do=answer slot=0 id=1 status=404 body=-"),
    "asked: for a rank that it was given, as the answer may be lost": (
        given_ranks, asked("a", 1, "GET", "/rank_and_size/a/0"), """
        > Send a do=tell to=0=2 message=tell=world generation=4 rank=0 size=1
        > Send a do=answer slot=0 id=1 status=200 body=MCwxLDAsMSwwLDE="""),
    "asked: anything else, while it has to leave": (leaving, asked("a", 1, "DELETE", "/0/1"), """
        > Send a do=answer slot=0 id=1 status=200 body=-"""),
    "asked: nonsense": (asked("a", 1, "PUT", "/0/1", "*"), NOTHING),
    "asked: for a rank, while it has to leave": (leaving, asked("a", 1, "GET", "/rank_and_size/a/0"), """
        workers[a:0].stopping_at 100
        asked[a:0#2] 1"""),
    "unasked: a question for a rank": (
        asked("c", 1, "GET", "/rank_and_size/c/0"), of_slot("c", "unasked", id=1), "asked[c:0#2] gone"),
    "unasked: a question for a value": (
        asked("a", 1, "GET", "/0/1"), of_slot("a", "unasked", id=1), "waits_for_key[a:0#2,1] gone"),
    "unasked: another one": (asked("a", 2, "GET", "/0/1"), of_slot("a", "unasked", id=1), NOTHING),
}  # fmt: skip
MESSAGES: dict[str, Case] = {
    "parked": (said("c", "parked"), """
        workers[c:0].stage parked
        workers[c:0].since 100
        > Record parked host=c slot=0"""),
    "parked: it trains already": (said("a", "parked"), NOTHING),
    "entered": (said("c", "failed", digest="d", error="E", traceback="T"), said("c", "entered", generation=3), """
        workers[c:0].stage live
        workers[c:0].since 100
        workers[c:0].live_at 100
        workers[c:0].generation 3
        workers[c:0].failure -"""),
    "entered: without a number it is the newest world": (said("c", "entered"), """
        workers[c:0].stage live
        workers[c:0].since 100
        workers[c:0].live_at 100
        workers[c:0].generation 3"""),
    "entered: the first world of all": (never_begun, said("c", "entered"), """
        workers[c:0].stage live
        workers[c:0].since 100
        workers[c:0].live_at 100
        workers[c:0].generation 3
        world.begun True"""),
    "entered: an earlier world": (said("a", "entered", generation=2), NOTHING),
    "entered: the world that it is in": (later, said("a", "entered", generation=3), NOTHING),
    "entered: a world that does not exist": (said("c", "entered", generation=4), NOTHING),
    "record: a line of the journal, with fields that are not its own": (
        said("a", "record", event="rolled_back", fields={"steps_lost": 3, "generation": 9}), """
        resize.lost 3
        > Record rolled_back host=a steps_lost=3"""),
    "record: its world trains, each rank alone": (
        said("a", "record", event="trains_alone", fields={"size": 2, "rank": 0, "reason": "nothing was averaged"}), """
        world.trains_alone nothing was averaged
        > Record trains_alone host=a size=2 rank=0 reason=nothing was averaged"""),
    "record: it has agreed on the state": (said("c", "entered"), said("c", "record", event="synced", fields={}), """
        workers[c:0].agreed 3
        > Record synced host=c"""),
    "record: no line of a journal": (said("a", "record", event="nonsense", fields={}), NOTHING),
    "record: what is for the launcher to tell": (said("a", "record", event="finished", fields={"code": 0}), NOTHING),
    "looping": (said("c", "looping"), "workers[c:0].loops True"),
    "looping: it trains once more": (said("a", "done"), said("a", "looping"), "workers[a:0].done -"),
    "looping: in a later call": (said("a", "looping", call=2), """
        workers[a:0].call 2
        calls.newest 2"""),
    "result": (said("a", "result", call=1, bytes=9, kept=True), """
        calls.newest 2
        calls.pasts[a:0] 2
        calls.told[1] True
        > Record call_ended call=1 step=0 bytes=9 kept=True"""),
    "result: it was not kept": (said("a", "result", call=1, bytes=0, kept=False, reason="too large"), """
        calls.refused[1] too large
        > Save
        > Record call_ended call=1 step=0 bytes=0 kept=False reason=too large"""),
    "result: of which another rank has told": (
        said("a", "result", call=1, bytes=9, kept=True), said("a", "result", call=1, bytes=9, kept=True), NOTHING),
    "result: of no call": (said("a", "result", call="x", kept=True), NOTHING),
    "synced": (said("a", "synced", commit=[1, 3, 5], step=7), """
        commits.held[a:0].commit 1,3,5
        commits.held[a:0].step 7
        commits.held[a:0].agent agent of a
        commits.held[a:0].reached 7
        workers[a:0].holds 1,3,5
        workers[a:0].step 7"""),
    "done": (said("a", "done"), "workers[a:0].done True"),
    "failed": (said("a", "failed", digest="d", error="E", traceback="T"), """
        workers[a:0].failure d,E,T
        workers[a:0].failed_at 100"""),
    "warned": (said("a", "warned", leaving=True), "workers[a:0].warned True"),
    "beat": (said("a", "beat", **BEAT, waiting=True), """
        commits.held[a:0].commit 1,3,5
        commits.held[a:0].step 7
        commits.held[a:0].agent agent of a
        commits.held[a:0].reached 7
        workers[a:0].holds 1,3,5
        workers[a:0].step 7
        workers[a:0].step_s 0.2
        workers[a:0].progress 4
        workers[a:0].moved_at 100
        workers[a:0].waiting True
        workers[a:0].waits_since 100
        workers[a:0].waits_until 100
        workers[a:0].every 1
        workers[a:0].commit_s 0.1
        workers[a:0].call_s 0.3
        workers[a:0].agreed_at_heartbeat 3"""),
    "beat: before its first commit, and late": (said("a", "beat", **BEAT), said("a", "beat", step=3), """
        workers[a:0].step_s -
        workers[a:0].every -
        workers[a:0].commit_s -
        workers[a:0].call_s -"""),
    "first_step": (said("a", "first_step", pause_s=1.0), """
        workers[a:0].step_came 100
        resize.steps_are_reported True"""),
    "peer_lost": (said("a", "peer_lost", error="HorovodInternalError: reset"),
        "workers[a:0].lost_peer HorovodInternalError: reset"),
    "last_commit": (said("a", "last_commit", commit=[77, 1, 3, 5], step=5, side=1),
        "checkpoints.files[a:0#2] 77,1,3,5,5,1,False,0"),
    "commit_kept: without a checkpoint under way":
        (said("a", "commit_kept", commit=[77, 1, 3, 5], step=5, side=1), NOTHING),
    "commit_not_kept: without a checkpoint under way":
        (said("a", "commit_not_kept", wanted=[1, 3, 5], newest=[1, 3, 6]), NOTHING),
    "nothing that is known": (said("a", "hello"), NOTHING),
}  # fmt: skip


TABLE = {**PROCESSES, **AGENTS, **QUESTIONS, **{f"said: {name}": case for name, case in MESSAGES.items()}}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_news_change_exactly_this(case: Case) -> None:
    *before, event, expected = case
    job = small_job()
    happen(job, *before)
    assert changes(job, lambda: happen(job, event)) == lines(expected)


def test_all_news_that_the_protocol_has_and_all_messages_with_a_consequence_are_in_the_table() -> None:
    protocol = (Path(__file__).parents[4] / "docs" / "agent.md").read_text(encoding="utf-8")
    section = protocol.partition("\n## News\n")[2].partition("\n## ")[0]
    events = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert len(events) > 20
    assert {name.partition(":")[0] for name in TABLE} == events
    assert reducers._SAID.keys() <= {name.partition(":")[0] for name in MESSAGES}


FOREIGN: Mapping[str, Mapping[str, Any]] = {
    "an earlier life": {"life": 1},
    "a life that nobody has started": {"life": 3},
    "a slot without a process": {"slot": 7},
    "no slot": {"slot": None},
}


@pytest.mark.parametrize(("code", "waited_for"), [(137, True), (-9, True), (0, False), (1, False)])
def test_others_may_wait_for_a_process_that_dies_when_it_is_to_leave_its_world(code: int, waited_for: bool) -> None:
    job = small_job()
    [worker] = job.roster.on("a")
    job.world.left_out = frozenset({worker.life})
    job.world.members = tuple(life for life in job.world.members if life != worker.life)
    happen(job, of_slot("a", "exited", code=code))
    assert job.fleet.cut_off_live == ({worker.life} if waited_for else set())


@pytest.mark.parametrize("other", FOREIGN.values(), ids=FOREIGN)
def test_news_of_a_process_that_is_not_there_change_nothing(other: Mapping[str, Any]) -> None:
    """Only the report about the memory of the slot is used."""
    found = {}
    for name, (*before, event, _) in TABLE.items():
        if "life" in event.news:
            job = small_job()
            happen(job, *before)
            foreign = News(event.host, {**event.news, **other})
            found[name] = changes(job, functools.partial(happen, job, foreign))
    assert len(found) > 30
    assert [each for each in found.items() if any(not line.startswith("commits.held") for line in each[1])] == []


def test_news_of_a_host_without_an_agent_change_nothing() -> None:
    for name, (*before, event, _) in TABLE.items():
        job = small_job()
        happen(job, *before)
        del job.roster.agents[event.host]
        assert changes(job, functools.partial(happen, job, event)) == [], name


JOURNALLED_EACH_TIME = tuple(
    f"> Record {name}" for name in ("rolled_back", "synced", "notices_unavailable", "advised", "trains_alone")
)


def test_news_that_come_twice_change_no_more_than_once() -> None:
    """After a lost connection an agent repeats some messages. Each question is answered; some lines are written
    again."""
    for name, (*before, event, _) in TABLE.items():
        job = small_job()
        happen(job, *before, event)
        again = changes(job, functools.partial(happen, job, event))
        again = [line for line in again if not line.startswith((*JOURNALLED_EACH_TIME, "> Send "))]
        assert again == ([] if "rolled_back" not in str(event) else ["resize.lost 3,3"]), name


def test_whatever_an_agent_says_it_is_heard() -> None:
    job = small_job()
    assert changes(job, lambda: happen(job, 1.0, news("a", "of a later version"))) == [
        "now 101",
        "agents[a].last_message_at 101",
    ]
