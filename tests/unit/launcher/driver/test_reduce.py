"""Each event except messages of agents: its exact changes in a small job, and the actions that follow."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.driver.events import (
    AgentEnded,
    AgentJoined,
    AgentLost,
    AgentUnfit,
    End,
    Event,
    Expected,
    HealthChanged,
    HostsAskedFor,
    HostsChanged,
    LaunchEnded,
    LauncherPaused,
    Look,
    News,
    Observed,
    PeersChanged,
    ScaleByHand,
    Scaled,
    WorldNotBegun,
)
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Subject
from tests.unit.launcher.state_changes import changes, happen, held, hello, lines, runs, small_job

Case = tuple[Any, ...]
"""Events, and the changes by the last one. A number lets so many seconds pass; a function prepares the state."""
NOTHING = ""
DONE = {"event": "said", "message": {"say": "done"}}
E_HOST = Host("e", 1)
KNOWN_POD = HostsChanged(HostSet((Host("a", 1, uid="1"), *map(Host, "bcd", (1, 1, 1)))))
NEW_POD = HostsChanged(HostSet((Host("a", 1, uid="2"), *map(Host, "bcd", (1, 1, 1)))))


def unconnected(job: JobState) -> None:
    """The job has ended, and ssh ends the agent of d."""
    job.shutdown.pending, job.shutdown.unconnected = {"d"}, {"d": Host("d", 1)}


def finishing(job: JobState) -> None:
    """The agent of c was told to end, and no process runs there."""
    job.roster.remove(job.roster.on("c")[0])
    job.roster.agents["c"].finishing = True


def entering(job: JobState) -> None:
    """Processes of the world have not entered it yet."""
    for worker in job.roster.present(job.world.members):
        worker.generation = 2


def idle(job: JobState) -> None:
    for worker in list(job.roster.workers.values()):
        job.roster.remove(worker)


def failed_before(job: JobState) -> None:
    job.faults.first = "another one"


def compared(job: JobState) -> None:
    """The progress of a process was noted."""
    (life, *_) = job.world.members
    job.liveness.moved[life] = 5, 99.0


LISTS: dict[str, Case] = {
    "a list of hosts, one of which goes": (
        HostsChanged(HostSet.of({"a": 1, "b": 1, "e": 2}), {"c": ("spot", 130.0)}), """
        agents[c].unlisted_at 100
        agents[d].unlisted_at 100
        fleet.hosts a:1 b:1 e:2
        notices.departing[c] 130
        notices.announced[c] preempted
        notices.listed c
        > Record notice host=c reason=spot deadline=130"""),
    "a list that no longer has a host that was to go": (
        HostsChanged(HostSet.of({"a": 1, "b": 1}), {"c": ("spot", None)}),
        HostsChanged(HostSet.of({"a": 1, "b": 1, "c": 1})), """
        fleet.hosts a:1 b:1 c:1
        notices.listed -
        notices.departing[c] gone
        notices.announced[c] gone
        > Record notice_over host=c reason=it is listed as a host again"""),
    "an empty list while processes run": (HostsChanged(HostSet()), "fleet.empty_list_refused True"),
    "an empty list while none runs": (idle, HostsChanged(HostSet()), "fleet.hosts -"),
    "a list of hosts that all go": (HostsChanged(HostSet(), {"a": ("spot", None)}), """
        fleet.hosts -
        notices.departing[a] inf
        notices.announced[a] preempted
        notices.listed a
        > Record notice host=a reason=spot deadline=-"""),
    "a list with the UIDs of pods": (KNOWN_POD, """
        agents[a].host a:1/1
        workers[a:0].host a:1/1
        fleet.hosts a:1/1 b:1 c:1 d:1
        fleet.pods[a] a:1/1"""),
    "a list with a pod that was made again under the name of a former one": (
        KNOWN_POD, held("a"), AgentLost("a", "reset"), NEW_POD, """
        commits.gone[a:0].commit 1,3,5
        commits.gone[a:0].step 50
        commits.gone[a:0].agent agent of a
        commits.gone[a:0].away_since 100
        commits.gone[a:0].why its pod was recreated
        fleet.hosts a:1/2 b:1 c:1 d:1
        fleet.cut_off_live a:0#2
        fleet.pods[a] a:1/2
        fleet.lost[a] 1,agent of a
        agents[a] gone
        commits.held[a:0] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        > Record fenced host=a reason=its pod was recreated
        > StopLaunch a
        > HangUp a its pod was recreated"""),
}  # fmt: skip
JOINS: dict[str, Case] = {
    "the agent that was started": (AgentJoined("d", hello("its agent", facts={"via": "eth0"})), """
        agents[d].joined True
        agents[d].last_message_at 100
        agents[d].facts[via] eth0
        agents[d].identity its agent"""),
    "an agent that has lost only its connection": (
        AgentLost("a", "reset"), 2.0, AgentJoined("a", hello("agent of a", seats=runs(3))), """
        agents[a].joined True
        agents[a].last_message_at 102"""),
    "an agent whose process has entered the world meanwhile": (AgentJoined("c", hello("agent of c", seats=runs(3))), """
        workers[c:0].stage live
        workers[c:0].since 100
        workers[c:0].live_at 100
        workers[c:0].generation 3
        workers[c:0].agreed 3
        workers[c:0].started True
        workers[c:0].pid 9
        > Record spawned host=c slot=0 pid=9 rank=0 local_rank=0"""),
    "another agent, without the process that trained": (held("a"), AgentJoined("a", hello("another")), """
        blocked[slot 0 of a] 1 times, crashed, until 110
        faults.first rank 0 on a[0] crashed: killed by SIGKILL
        faults.counted 100,a
        loopless.loops True
        loopless.last a[0] crashed: killed by SIGKILL
        loopless.ended[a:0#2] rank 0 on a[0],crashed: killed by SIGKILL,False,False,False,-
        agents[a].identity another
        roster.ended[a:0] 2
        commits.gone[a:0].commit 1,3,5
        commits.gone[a:0].step 50
        commits.gone[a:0].agent agent of a
        commits.gone[a:0].why its agent was replaced by another one
        fleet.recovering a
        resize.stopped_at 100
        outcome.failed 3,a[0] crashed: killed by SIGKILL, before its training was done
        commits.held[a:0] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        > Record exited host=a slot=0 rank=0 code=137 cause=crashed reason=crashed: killed by SIGKILL
        > Record struck subject=slot 0 of a cause=crashed cooldown_s=10 until=110
        .. host=a reason=crashed: killed by SIGKILL
        > Save"""),
    "the same agent, with the end of the process": (
        AgentJoined("a", hello("agent of a", seats={"0": {"life": 2, "state": "rest", "code": 1}})), """
        blocked[slot 0 of a] 1 times, crashed, until 110
        faults.first rank 0 on a[0] crashed: exit code 1
        faults.counted 100,a
        faults.repeats[crashed,1,-] a:0,60,100,False,False
        loopless.loops True
        loopless.last a[0] crashed: exit code 1
        loopless.ended[a:0#2] rank 0 on a[0],crashed: exit code 1,False,False,False,-
        roster.ended[a:0] 2
        fleet.recovering a
        resize.stopped_at 100
        outcome.failed 3,a[0] crashed: exit code 1, before its training was done
        workers[a:0] gone
        world_of[a:0#2] gone
        > Record exited host=a slot=0 rank=0 code=1 cause=crashed reason=crashed: exit code 1
        > Record struck subject=slot 0 of a cause=crashed cooldown_s=10 until=110 host=a reason=crashed: exit code 1
        > Save"""),
    "an agent that has not got the order to start a process": (
        AgentJoined("c", hello("agent of c")), "workers[c:0] gone"),
    "an agent of a host that is not known": (AgentJoined("z", hello("agent of z")), """
        agents[z].host z:1
        agents[z].since 100
        agents[z].joined True
        agents[z].last_message_at 100
        agents[z].identity agent of z
        agents[z].inherited_at never
        agents[z].unlisted_at never"""),
    "an agent that was sent a signal": (
        AgentJoined("d", hello("its agent", notice={"reason": "SIGTERM", "grace_s": 5})), """
        agents[d].joined True
        agents[d].last_message_at 100
        agents[d].identity its agent
        agents[d].finishing True
        agents[d].leaves_by 105
        fleet.restart_delays._of[d:0] 1,110
        > Record notice host=d reason=its agent was sent SIGTERM deadline=105"""),
    "an agent whose host has notice": (AgentJoined("d", hello("its agent", going={"reason": "spot", "in_s": 30})), """
        agents[d].joined True
        agents[d].last_message_at 100
        agents[d].identity its agent
        agents[d].leaves_by 130
        agents[d].notice_reason spot
        > Record notice host=d reason=spot deadline=130"""),
    "an agent that a launcher before had": (Expected((E_HOST,), 160.0), AgentJoined("e", hello("agent of e")), """
        agents[e].joined True
        agents[e].last_message_at 100
        agents[e].identity agent of e
        adoption.missing[e] gone"""),
    "an agent that could not be told to end": (unconnected, AgentJoined("d", hello("its agent")), """
        agents[d].joined True
        agents[d].last_message_at 100
        agents[d].identity its agent
        shutdown.pending -
        shutdown.unconnected[d] gone"""),
    "an agent that cannot be used": (AgentUnfit("c", "no torch"), """
        blocked[host c] 1 times, never ready, until 110, tried for 50 s
        agents[c].finishing True
        agents[c].dismissed True
        > Record struck subject=host c cause=never ready cooldown_s=10 until=110 host=c reason=no torch
        > Save
        > Send c do=finish"""),
    "an agent that is gone already, and could not be used": (AgentUnfit("z", "no torch"), NOTHING),
}  # fmt: skip
AGENT_ENDED = """
        blocked[host a] 1 times, fenced, until 110
        faults.first the agent on a ended: exit code 137
        commits.gone[a:0].commit 1,3,5
        commits.gone[a:0].step 50
        commits.gone[a:0].agent agent of a
        commits.gone[a:0].away_since 100
        commits.gone[a:0].why its agent ended with exit code 137
        fleet.recovering a
        fleet.cut_off_live a:0#2
        fleet.lost[a] -,agent of a
        agents[a] gone
        commits.held[a:0] gone
        workers[a:0] gone
        world_of[a:0#2] gone
        > StopLaunch a
        > HangUp a its agent ended with exit code 137
        > Record fenced host=a reason=its agent ended with exit code 137
        > Record struck subject=host a cause=fenced cooldown_s=10 until=110
        .. host=a reason=its agent ended with exit code 137
        > Save"""
ENDS: dict[str, Case] = {
    "the connection to an agent": (held("a"), 3.0, AgentLost("a", "reset"), """
        agents[a].joined -
        commits.held[a:0].away_since 100
        commits.held[a:0].why reset"""),
    "the connection to an agent that was told to end": (held("c"), finishing, AgentLost("c", "reset"), """
        commits.gone[c:0].commit 1,3,5
        commits.gone[c:0].step 50
        commits.gone[c:0].agent agent of c
        commits.gone[c:0].away_since 100
        commits.gone[c:0].why its agent has ended
        agents[c] gone
        commits.held[c:0] gone"""),
    "the connection to an agent that was told to end, with a process": (
        AgentUnfit("c", "no torch"), AgentLost("c", "reset"), "agents[c].joined -"),
    "the connection to an agent without a process": (
        AgentJoined("d", hello("its agent")), AgentLost("d", "reset"), "agents[d].joined -"),
    "the connection to an unknown agent": (AgentLost("z", "reset"), NOTHING),
    "a launch that could not reach its host": (LaunchEnded("d", 255, "no route"), """
        blocked[host d] 1 times, unreachable, until 110, tried for 50 s
        faults.first no agent could be started on d: no route
        agents[d] gone
        > Record struck subject=host d cause=unreachable cooldown_s=10 until=110 host=d reason=no route
        > Save"""),
    "a launch, but not as the first failure of the job": (failed_before, LaunchEnded("d", 1, ""), """
        blocked[host d] 1 times, unreachable, until 110, tried for 50 s
        agents[d] gone
        > Record struck subject=host d cause=unreachable cooldown_s=10 until=110 host=d reason=exit code 1
        > Save"""),
    "a launch without a word": (LaunchEnded("d", 1, ""), """
        blocked[host d] 1 times, unreachable, until 110, tried for 50 s
        faults.first no agent could be started on d: exit code 1
        agents[d] gone
        > Record struck subject=host d cause=unreachable cooldown_s=10 until=110 host=d reason=exit code 1
        > Save"""),
    "a launch that has found a living agent": (LaunchEnded("d", 0, ""), NOTHING),
    "the ssh of an agent that is heard": (LaunchEnded("a", 255, "reset"), NOTHING),
    "the launch of a connected agent": (LaunchEnded("a", 137, ""), "agents[a].launch_ended 100,137,exit code 137"),
    "an agent: its launch first, then its connection": (
        held("a"), LaunchEnded("a", 137, ""), AgentLost("a", "reset"), AGENT_ENDED),
    "an agent: its connection first, then its launch": (
        held("a"), AgentLost("a", "reset"), LaunchEnded("a", 137, ""), AGENT_ENDED),
    "a launch, and long after it the connection": (
        LaunchEnded("a", 137, ""), 2.5, AgentLost("a", "reset"), "agents[a].joined -"),
    "a launch of an unknown agent": (LaunchEnded("z", 1, ""), NOTHING),
    "a launch on a host of an earlier launcher, which could not be reached": (
        Expected((E_HOST,), 160.0), LaunchEnded("e", 255, "no route"), "adoption.failed[e] 100"),
    "a launch on a host of an earlier launcher, which has found its agent": (
        Expected((E_HOST,), 160.0), LaunchEnded("e", 0, ""), "adoption.handed_over[e] 100"),
    "an agent that was told by ssh": (unconnected, AgentEnded("d", 0, ""), """
        shutdown.pending -
        shutdown.unconnected[d] gone"""),
    "nothing: ssh could not tell the agent": (unconnected, AgentEnded("d", 255, "no route"), """
        shutdown.refused[d] no route
        shutdown.pending -"""),
}  # fmt: skip
OTHERS: dict[str, Case] = {
    "the launcher was paused": (compared, held("b"), AgentLost("b", "reset"), 7.0, LauncherPaused(6.0), """
        agents[a].last_message_at 106
        agents[b].last_message_at 106
        agents[c].last_message_at 106
        commits.held[b:0].away_since 106
        launcher_pauses.logged_at 107
        liveness.moved[a:0#2] gone"""),
    "it was paused for so short a time that no line is worth it": (7.0, LauncherPaused(1.1), """
        agents[a].last_message_at 101.1
        agents[b].last_message_at 101.1
        agents[c].last_message_at 101.1
        launcher_pauses.short 107,1.1"""),
    "all have other addresses": (PeersChanged(), """
        > TellPeers a:0#2
        > TellPeers b:0#2"""),
    "one host has": (PeersChanged("b"), "> TellPeers b:0#2"),
    "an earlier launcher had agents": (Expected((E_HOST,), 160.0), """
        adoption.until 160
        adoption.missing[e] e:1
        agents[e].host e:1
        agents[e].since 100
        agents[e].inherited_at never
        agents[e].unlisted_at never
        > StartAgent e:1"""),
    "a user blocks a host": (
        HealthChanged(HealthLedger().block(Subject("host", "a"), None, "fan"), "blocked", {"host": "a"}), """
        blocked[host a] 0 times, fan, by a user
        > Record blocked host=a
        > Save"""),
    "the program of a world has failed, where processes are started without one": (
        WorldNotBegun(3, "no mpirun"), NOTHING),
    "hosts were asked for": (Scaled(4), NOTHING),
    "hosts could not be asked for": (Scaled(4, "no answer"), """
        scaling.unasked True
        scaling.ask_at 130
        > Record not_scaled hosts=4 reason=no answer"""),
    "so many hosts are asked for, as far as is known": (HostsAskedFor(3), "scaling.wanted 3"),
    "somebody else asks for another number": (HostsAskedFor(3), HostsAskedFor(5), """
        scaling.wanted 5
        > Record scaled hosts=5 before=3 leaving= reason=changed by others"""),
    "a user asks for a number": (ScaleByHand(2), """
        scaling.by_hand 2
        scaling.look_at 100
        > Save"""),
    "a signal was read": (Observed({"queue": 3.0}), "scaling.signals[queue] 3"),
    "the job is to end": (End(JobFailed("told to")), "outcome.failure told to"),
    "it is to end at once": (End(JobFailed("told to")), End(JobFailed("told again")), """
        workers[a:0].killed told
        workers[a:0].killed_at 100
        workers[b:0].killed told
        workers[b:0].killed_at 100
        workers[c:0].killed told
        workers[c:0].killed_at 100
        shutdown.skip_waiting True
        > Send a do=kill slot=0
        > Send b do=kill slot=0
        > Send c do=kill slot=0"""),
    "planners are to look": (Look(), NOTHING),
}  # fmt: skip


TABLE = {
    f"{group}: {name}": case
    for group, cases in {"lists": LISTS, "joins": JOINS, "ends": ENDS, "others": OTHERS}.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_an_event_changes_exactly_this(case: Case) -> None:
    *before, event, expected = case
    job = small_job()
    happen(job, *before)
    assert changes(job, lambda: happen(job, event)) == lines(expected)


def test_every_event_is_in_the_table() -> None:
    shown = {type(event) for *events, _ in TABLE.values() for event in events}
    assert {*get_args(Event)} - {News} <= shown


def test_a_world_that_its_engine_could_not_begin_is_reported_where_engines_begin_worlds() -> None:
    job = small_job(engine="mpirun")
    happen(job, entering)
    assert changes(job, lambda: happen(job, WorldNotBegun(2, "of an earlier world"))) == []
    assert changes(job, lambda: happen(job, WorldNotBegun(3, "no mpirun"))) == lines("""
        restarting.change.move end
        restarting.change.cause worker failed
        restarting.change.reason no mpirun
        restarting.change.first_gone_at 100
        workers[a:0].leaving no mpirun
        workers[b:0].leaving no mpirun
        > Send a do=stop slot=0
        > Send b do=stop slot=0""")


def test_notices_that_are_over_are_recorded_in_the_order_of_the_hosts_in_every_replay() -> None:
    job, names = small_job(), "abcdefgh"
    happen(job, HostsChanged(HostSet.of({"a": 1}), dict.fromkeys(names, ("spot", None))))
    back = changes(job, lambda: happen(job, HostsChanged(HostSet.of(dict.fromkeys(names, 1)))))
    over = [line.split()[3] for line in back if "notice_over" in line]
    assert over == [f"host={name}" for name in names]
