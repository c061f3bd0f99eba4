"""Silences of different lengths and their effects, in a small job (``small_job``) with a limit of 10 seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.actions import Record
from hvd_elastic_ext.launcher.driver.events import AgentLost, End, HostsChanged, LauncherPaused
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health import silence
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import ChangeAction, EngineChange
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.state_changes import changes, happen, held, lines, news, of_slot, small_job

Case = tuple[Any, ...]
"""The events before the look, as for :func:`happen`, and the changes by the look."""
Step = Callable[[JobState], None]
NOTHING = ""
WITHOUT_A = HostsChanged(HostSet.of({"b": 1, "c": 1, "d": 1}))
WITH_A = HostsChanged(HostSet.of({"a": 1, "b": 1, "c": 1, "d": 1}))
LOST = AgentLost("a", "reset")


def heard(*hosts: str) -> Step:
    """The agents and processes of these hosts have just sent messages."""
    named = {"0": {"life": 2, "age": 0.0, "beat": None}}
    return lambda job: happen(job, *(news(host, "beats", slots=named) for host in hosts))


def heard_without_process(*hosts: str, part: bool = False) -> Step:
    return lambda job: happen(job, *(news(host, "beats", slots={}, part=part) for host in hosts))


def silent(host: str, age: float, **more: Any) -> Step:
    """All agents have just sent messages. That of ``host`` reports that its process was silent for ``age`` seconds."""
    beat = {"0": {"life": 2, "age": age, "beat": more}}
    return lambda job: happen(job, heard("a", "b", "c"), news(host, "beats", slots=beat))


def lives(life: str) -> HostsChanged:
    """A list with this container of host a."""
    return HostsChanged(HostSet((Host("a", 1, uid="1", life=life), *(Host(name, 1) for name in "bcd"))))


def without_list(job: JobState) -> None:
    job.fleet.hosts = HostSet()


def decisions_held(job: JobState) -> None:
    job.decisions_held = True


def told_to_leave(job: JobState) -> None:
    """The process of a was told to leave at its next step."""
    orders.remove(job, job.roster.on("a")[0], "its host goes")


def dismissed(job: JobState) -> None:
    orders.dismiss(job, job.roster.agents["a"])


def disconnected(job: JobState) -> None:
    """The agent of a is disconnected, and no look has happened since."""
    job.roster.agents["a"].joined = False


def without_agent(job: JobState) -> None:
    """Host a has no agent any more."""
    del job.roster.agents["a"]


def forming(job: JobState) -> None:
    """The next world will have only b."""
    job.rendezvous.form(4, [ProcessId(Seat("b", 0), 2)])


def next_world(job: JobState) -> None:
    """The next world has formed."""
    forming(job)
    member = ProcessId(Seat("b", 0), 2)
    happen(job, of_slot("b", "asked", id=1, method="GET", path="/rank_and_size/b/0"))
    job.rendezvous.assign_ranks([member])
    job.generation, job.world.members = 4, (member,)


def killed(job: JobState) -> None:
    orders.kill(job, job.roster.on("a")[0], Cause.TOLD)


def cut_off(silent_s: float, *, until: float, held: bool = False, listed: bool = True) -> str:
    """Host a is cut off, with a strike. ``held``: it has a commit; ``listed``: it is in the list of hosts."""
    words = f"nothing was heard from it for {silent_s} s"
    commit = f"commits.held[a:0].away_since 100\n commits.held[a:0].why {words}\n" if held else ""
    unreachable = f"fleet.cut_off[a] {words}\n" if listed else ""
    return f"""
        blocked[host a] 1 times, fenced, until {until}
        {commit}fleet.recovering a
        fleet.cut_off_live a:0#2
        fleet.lost[a] -,agent of a
        {unreachable}agents[a] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        > StopLaunch a
        > HangUp a {words}
        > Record fenced host=a reason={words}
        > Record struck subject=host a cause=fenced cooldown_s=10 until={until} host=a reason={words}
        > Save"""


def ends(silent_s: float, *, at: float = 100, host: str = "a") -> str:
    """The process on that host is killed for its silence."""
    return f"""
        workers[{host}:0].killed silent
        workers[{host}:0].killed_at {at}
        workers[{host}:0].silent_then_s {silent_s}
        > Record fenced host={host} slot=0 reason=its process was silent for {silent_s} s
        > Send {host} do=kill slot=0"""


CUT_OFF = """
        fleet.cut_off_live a:0#2
        fleet.lost[a] -,agent of a
        agents[a] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        > StopLaunch a
        > HangUp a nothing was heard from it for 10.5 s"""
CUT_OFF_WITHOUT_A_STRIKE = f"""
        fleet.recovering a{CUT_OFF}"""
CUT_OFF_WITH_ITS_CONTAINER = """
        fleet.cut_off_live a:0#2
        fleet.lost[a] 1,agent of a
        agents[a] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        fleet.newer_lives[a] gone
        > Record fenced host=a reason=its container was started again
        > StopLaunch a
        > HangUp a its container was started again"""
AGENTS: dict[str, Case] = {
    "as long as the limit": (10.0, NOTHING),
    "longer": (held("a"), 10.5, heard("b", "c"), cut_off(10.5, until=120.5, held=True)),
    "longer, since its connection was lost": (held("a"), 1.0, LOST, 9.5, heard("b", "c"), cut_off(10.5, until=120.5)),
    "longer, but planners decide nothing for now": (10.5, heard("b", "c"), decisions_held, NOTHING),
    "longer, while the job ends": (End(JobFailed("told to")), 10.5, heard("b", "c"), CUT_OFF),
    "longer, of a host with notice": (
        news("a", "going", reason="spot", in_s=60), 10.5, heard("b", "c"), CUT_OFF_WITHOUT_A_STRIKE),
    "longer, of a host that the list says will go": (
        HostsChanged(WITH_A.hosts, {"a": ("spot", 160.0)}), 10.5, heard("b", "c"), CUT_OFF_WITHOUT_A_STRIKE),
    "longer, of an agent that was sent a signal": (
        news("a", "notice", reason="SIGTERM", grace_s=60), 10.5, heard("b", "c"), CUT_OFF_WITHOUT_A_STRIKE),
    "longer, of an agent that is being started": (60.0, heard("a", "b", "c"), NOTHING),
    "longer, of one without a process in a world": (10.5, heard("a", "b"), """
        blocked[host c] 1 times, fenced, until 120.5
        fleet.lost[c] -,agent of c
        fleet.cut_off[c] nothing was heard from it for 10.5 s
        agents[c] gone
        workers[c:0] gone
        > StopLaunch c
        > HangUp c nothing was heard from it for 10.5 s
        > Record fenced host=c reason=nothing was heard from it for 10.5 s
        > Record struck subject=host c cause=fenced cooldown_s=10 until=120.5
        .. host=c reason=nothing was heard from it for 10.5 s
        > Save"""),
    "longer, but the launcher was paused": (12.0, heard("b", "c"), LauncherPaused(6.0), NOTHING),
    "a little, of a host that is off the list and whose connection is lost": (
        WITHOUT_A, 1.0, heard("a"), LOST, 2.5, heard("b", "c"), cut_off(2.5, until=113.5, listed=False)),
    "very little, of such a host": (WITHOUT_A, 1.0, heard("a"), LOST, 2.0, heard("b", "c"), NOTHING),
    "longer, of an agent that was told to end": (dismissed, 10.5, heard("b", "c"), CUT_OFF_WITHOUT_A_STRIKE),
    "a little, of a host that is off the list": (WITHOUT_A, 9.0, heard("b", "c"), NOTHING),
    "a little, of a host whose connection is lost": (LOST, 9.0, heard("b", "c"), NOTHING),
    "a little, of a host that was off the list, and whose connection is lost": (
        WITHOUT_A, WITH_A, LOST, 2.5, heard("b", "c"), cut_off(2.5, until=112.5)),
    "a little, of a host that was off the list, was heard since, and has lost its connection": (
        WITHOUT_A, WITH_A, 1.0, heard("a"), LOST, 9.0, heard("b", "c"), NOTHING),
    "a little, of a host whose connection is lost, with an empty list": (
        without_list, LOST, 9.0, heard("b", "c"), NOTHING),
}  # fmt: skip
CONTAINERS: dict[str, Case] = {
    "half the limit": (lives("1"), lives("2"), 5.0, heard("b", "c"), NOTHING),
    "more than half the limit": (lives("1"), held("a"), lives("2"), 5.5, heard("b", "c"), """
        commits.gone[a:0].commit 1,3,5
        commits.gone[a:0].step 50
        commits.gone[a:0].agent agent of a
        commits.gone[a:0].why its container was started again
        fleet.cut_off_live a:0#2
        fleet.lost[a] 1,agent of a
        agents[a] gone
        commits.held[a:0] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        fleet.newer_lives[a] gone
        > Record fenced host=a reason=its container was started again
        > StopLaunch a
        > HangUp a its container was started again"""),
    "nothing: it speaks on, so it is of the new container": (
        lives("1"), lives("2"), 1.0, heard("a"), 1.5, heard("a"), """
        agents[a].host a:1/1/2
        agents[a].inherited_at 102.5
        workers[a:0].host a:1/1/2
        fleet.newer_lives[a] gone"""),
    "nothing: it speaks on, but that may have been on its way": (lives("1"), lives("2"), 1.5, heard("a"), NOTHING),
    "nothing: it speaks on, but that may be of the time in which the launcher was paused": (
        lives("1"), lives("2"), 7.0, LauncherPaused(6.0), 0.5, heard("a"), NOTHING),
    "nothing: it has spoken on, but its connection is lost now": (
        lives("1"), lives("2"), 2.5, heard("a"), disconnected, CUT_OFF_WITH_ITS_CONTAINER),
    "and is not there any more": (lives("1"), lives("2"), without_agent, """
        fleet.newer_lives[a] gone"""),
    "not at all, but its connection is lost": (lives("1"), lives("2"), LOST, CUT_OFF_WITH_ITS_CONTAINER),
    "too long, after it was taken for that of the new container without a word since": (
        lives("1"), lives("2"), 2.5, heard("a"), silence.plan, 10.5, heard("b", "c"), """
        fleet.cut_off_live a:0#2
        fleet.lost[a] 1,agent of a
        agents[a] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        > StopLaunch a
        > HangUp a nothing was heard from it for 10.5 s"""),
}  # fmt: skip
PROCESSES: dict[str, Case] = {
    "as long as the limit": (silent("a", 10.0), NOTHING),
    "longer": (silent("a", 10.5), ends(10.5)),
    "longer, but planners decide nothing for now": (silent("a", 10.5), decisions_held, NOTHING),
    "longer, but it was killed already": (killed, silent("a", 10.5), NOTHING),
    "a minute, of one that starts: imports on a busy machine": (silent("c", 60.0), NOTHING),
    "more, of one that starts": (silent("c", 60.5), ends(60.5, host="c")),
    "a minute, of one that is done with training": (
        of_slot("a", "said", message={"say": "done"}), silent("a", 60.0), NOTHING),
    "more, of one that is done with training": (
        of_slot("a", "said", message={"say": "done"}), silent("a", 60.5), ends(60.5)),
    "a minute, of one that has left its world": (told_to_leave, next_world, 60.0, silent("a", 57.0), NOTHING),
    "more, of one that has left its world": (told_to_leave, next_world, 70.0, silent("a", 60.5), ends(60.5, at=170)),
    "longer, of one that is to leave, while its world stands": (
        told_to_leave, 20.0, silent("a", 10.5), ends(10.5, at=120)),
    "longer, of one that is to leave, while the next world forms": (
        told_to_leave, forming, 20.0, silent("a", 10.5), ends(10.5, at=120)),
    "longer, of one that was told to leave as it fell silent": (
        told_to_leave, next_world, 10.0, silent("a", 11.0), NOTHING),
    "longer, of one that was silent before it was told to leave": (
        told_to_leave, next_world, 8.0, silent("a", 10.5), ends(10.5, at=108)),
}  # fmt: skip
UNNAMED: dict[str, Case] = {
    "by its agent, for longer than the limit": (
        heard("a", "b", "c"), 10.5, heard_without_process("a"), heard("b", "c"), """
        workers[a:0].in_heartbeat_at -
        > HangUp a its report was lost"""),
    "by its agent, for as long as the limit": (
        heard("a", "b", "c"), 10.0, heard_without_process("a"), heard("b", "c"), NOTHING),
    "in what says nothing of others": (10.5, heard_without_process("a", part=True), heard("b", "c"), NOTHING),
    "by an agent that never named it": (10.5, heard("a", "b"), heard_without_process("c"), NOTHING),
    "by an agent that is gone": (10.5, heard("b", "c"), without_agent, NOTHING),
    "and its agent was told so": (10.5, heard_without_process("a"), heard("b", "c"), silence.plan, NOTHING),
}  # fmt: skip

TABLE = {
    f"{what}: {name}": case
    for what, cases in {
        "an agent is silent": AGENTS,
        "an agent of a former container is silent": CONTAINERS,
        "a process is silent": PROCESSES,
        "a process is not named": UNNAMED,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_what_follows_from_silence(case: Case) -> None:
    *before, expected = case
    job = small_job()
    happen(job, *before)
    assert changes(job, lambda: silence.plan(job)) == lines(expected)


def imports(job: JobState) -> None:
    """The process of a has its rank, and has done nothing more."""
    [worker] = job.roster.on("a")
    worker.loops, worker.step_s = False, None


def drains(job: JobState) -> None:
    """All processes were told at second 100 to leave their world on purpose."""
    job.restarting.change = EngineChange(ChangeAction.DRAIN, "hosts added", "", ordered_at=100.0, began=100.0)


OTHERS: dict[str, tuple[Any, ...]] = {
    "a minute, of one that imports": (imports, silent("a", 60.0), False),
    "more, of one that imports": (imports, silent("a", 60.5), True),
    "longer, of one that has imported for two minutes": (imports, 90.0, silent("a", 10.5), True),
    "longer, of one that trains": (silent("a", 10.5), True),
    "longer, of one that leaves with the others": (drains, 20.0, silent("a", 18.0), False),
    "longer, of one that was silent before they were told to leave": (drains, 8.0, silent("a", 10.5), True),
}


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_a_process_of_an_engine_with_others_for_each_world_is_silent_for(case: Case) -> None:
    """Defect: on a busy machine, a process that left on an order, or loaded its libraries, was killed and its slot
    blocked."""
    *before, killed = case
    job = small_job(engine="torchrun")
    happen(job, *before, silence.plan)
    [worker] = job.roster.on("a")
    assert (worker.killed is Cause.SILENT) is killed


def test_whoever_is_silent_for_too_long_is_seen_between_looks() -> None:
    """The driver does not learn when to look, because each heartbeat would move that time."""
    for name, (*before, expected) in TABLE.items():
        if name.startswith(("an agent is", "a process is silent")) and decisions_held not in before:
            job = small_job()
            happen(job, *before)
            assert silence.is_due(job) == bool(expected), name


def test_the_next_silence_is_that_of_the_agent_with_the_least_time_left() -> None:
    job = small_job()
    assert silence.due_at(job) == 110.0
    happen(job, 4.0, heard("b", "c"), lives("1"), lives("2"))
    assert silence.due_at(job) == 105.0  # half the time, because its container has ended
    happen(job, 1.0, heard("a"), lives("1"))
    assert silence.due_at(job) == 114.0
    happen(job, WITHOUT_A, LOST)
    assert silence.due_at(job) == 107.0
    job.roster.agents.clear()
    assert silence.due_at(job) is None


def test_processes_of_hosts_cut_off_are_forgotten_with_the_world_after() -> None:
    cluster = play("train a b c; run 2; cut c; lose-world a; lose-world b; members a b; run 5")
    assert {life.seat.host for life in cluster.driver.job.fleet.cut_off_live} == {"c"}  # still out of the world before
    assert not play("train a b; run 2; cut b; members a; run 5; hosts a d; members a d").driver.job.fleet.cut_off_live


def test_the_end_of_a_silent_process_is_told_with_the_silence_for_which_it_was_killed() -> None:
    """Defect: its last heartbeat came after the kill, so "no heartbeat for 6.5 s" was below the limit."""
    job = small_job()
    happen(job, silent("a", 10.5), silence.plan, silent("a", 6.5), of_slot("a", "exited", code=137))
    [ended] = [act for act in job.take_actions() if isinstance(act, Record) and act.event == "exited"]
    assert ended.fields["reason"] == "silent: no heartbeat for 10.5 s, killed by the launcher"
