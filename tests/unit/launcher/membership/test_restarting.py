"""Jobs whose processes keep their places: another world has other processes, which continue from the last commit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from hvd_elastic_ext.core.engines import ENGINES
from hvd_elastic_ext.core.messages.slot_protocol import START_AGAIN, TERMINATED
from hvd_elastic_ext.launcher.driver.events import WorldNotBegun
from hvd_elastic_ext.launcher.driver.roster import STARTS_S
from hvd_elastic_ext.launcher.membership import in_place_or_restarted, resizes
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import (
    BACK_S,
    BEHIND_S,
    NOTICE_S,
    ChangeAction,
    decide,
    engine_of,
)
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage, WorldLimits
from tests.unit.launcher.membership.test_resize_report import first_step
from tests.unit.launcher.membership.test_world_change import LIMITS, process, situation
from tests.unit.launcher.scenarios import Scenario, play
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions
from tests.unit.launcher.simulated_processes import Process, Training


class Restarted(Training):
    """A former member that must leave its world ends with ``leaves_with``; processes of ``deaf_hosts`` never notice.

    ``loops`` is False for scripts without an elastic loop: they receive and send no messages. ``arrive``: whether they
    report that they are in a world.
    """

    arrive = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.deaf_hosts: set[str] = set()

    def ask(self, process: Process) -> None:
        if not process.generation or (process.host not in self.deaf_hosts and self.loops):
            super().ask(process)

    def enters(self, process: Process) -> None:
        if self.loops and self.arrive:
            super().enters(process)
        elif self.arrive:
            process.agent.report(process, "entered", generation=process.generation)


class Torchrun(Cluster):
    """A cluster with an engine that starts other processes for each world."""

    training_kind = Restarted
    training: Restarted

    def __init__(self, options: JobOptions, *, leaves_with: int = START_AGAIN, loops: bool = True) -> None:
        super().__init__(replace(options, engine="torchrun"))
        self.boot_s = dict.fromkeys("abcd", 0.2)
        self.training.leaves_with, self.training.loops = leaves_with, loops

    def trains(self, *hosts: str) -> bool:
        """Whether a world of exactly these hosts was begun, and trains."""
        there = [host for host in self.world if host not in self.cut]
        return bool(self.begun) and self.begun[-1][1] == list(hosts) == there

    def ends(self) -> dict[str, str]:
        """Return how the last process of each host ended."""
        return {entry["host"]: entry["cause"] for entry in self.events("exited")}


class Restarts(Scenario):
    """Further steps of scenarios."""

    cluster: Torchrun

    def trains_(self, *words: str) -> None:
        self._wait(lambda hosts: self.cluster.trains(*hosts), *words)

    def worlds_(self, *words: str) -> None:
        """Wait until so many worlds have been begun."""
        self._wait(lambda given: len(self.cluster.begun) == int(given[0]), *words)

    def changes_(self, *words: str) -> None:
        """Wait until the world is about to be ended."""
        self._wait(lambda _: self.cluster.driver.job.restarting.change is not None, *words)

    def exits_(self, *words: str) -> None:
        """Wait until a process of that host has ended."""
        self._wait(lambda hosts: hosts[0] in self.cluster.ends(), *words)

    def ended_(self, host: str, *cause: str) -> None:
        assert self.cluster.ends()[host] == " ".join(cause), self.cluster.ends()

    def close_(self) -> None:
        """Let the journal line of the last change be written."""
        self.cluster.ask(resizes.close)

    def ignore_(self, *hosts: str) -> None:
        """These hosts do not notice that they have to leave."""
        self.cluster.training.deaf_hosts = set(hosts)

    def never_enter_(self) -> None:
        """No process reports that it is in a world."""
        self.cluster.training.arrive = False

    def not_begun_(self) -> None:
        """The program that starts the processes of the newest world has ended."""
        self.cluster.driver.tell(WorldNotBegun(self.cluster.begun[-1][0], "mpirun has ended with exit code 1"))


TWO, THREE = "train a b; run 1; ", "train a b c; run 1; "
CHANGES = {
    "for added hosts all processes leave at one step and return with them": TWO
    + """hosts a b c; trains a b c; is exited.cause told to leave, told to leave; close; last resized.cause hosts added
        last resized.added ['c']; last resized.failed {}; no struck""",
    "only the killed process gets a strike and the others continue at once": THREE
    + """kill b; trains a c <3; is exited.host b, a, c; is exited.cause crashed, peer lost, peer lost
        is struck.subject slot 0 of b; close; last resized.cause worker failed; last resized.failed {'b': 1}
        trains a c b; close; last resized.cause cooldown over""",
    "the next world waits for a host that loads long, despite a short settle time": TWO
    + "boot a 5; hosts a b c; trains a b c; worlds 2",
    "a removed host leaves without loss": THREE
    + "hosts a c; trains a c; only exited.cause told to leave; close; last resized.cause hosts removed",
    "a host with notice has no processes when it goes": TWO
    + "notice b 30 spot reclaim; trains a <10; is exited.cause told to leave, told to leave; no struck",
    "a replaced host sends its commit and is in no other world": """
        train a; run 1; hosts b; trains b; worlds 2; sent a>b; gone a <5""",
    "below the minimum the others end too and all start again together": """
        train a b least=2; run 1; kill b; size 0; run 5; world; trains a b; close; last resized.cause worker failed""",
    "a process that does not leave for newcomers is ended long after the others left": THREE
    + f"ignore a; hosts a b c d; exits b; run {BEHIND_S - 1}; alive a; worlds 1; trains a b c d",
    "a process that does not notice a loss is ended, too": THREE
    + f"ignore a; kill c; exits b; run {NOTICE_S - 1}; alive a; worlds 1; trains a b",
    "a process that fails while all leave gets a strike and delays no world": TWO
    + f"""ignore a b; hosts a b c; changes; kill b; trains a c <{NOTICE_S + 3}; ended b crashed; close
        last resized.cause worker failed""",
    "a lost host is the cause of the ends of the others": """
        train a b failure_budget=0; run 1; cut b; lose-world a; trains a <20; goes-on""",
    "worlds that end repeatedly without a reason end the job": f"""
        train a b failure_budget=1; {2 * "run 1; lose-world a; lose-world b; size 0; "}
        fails the world has ended 2 times within an hour without a process that says why; generation 2""",
    "also if all of their processes end at once, as the only one does": f"""
        train a failure_budget=1; {2 * "run 1; lose-world a; size 0; "}
        fails last: all processes ended because a peer was lost; generation 2""",
    "but not if they end with their host": f"""
        train a failure_budget=1
        {"".join(f"run 3; sigterm {a}; gone {a}; hosts {b}; until {b}; " for a, b in pairwise("abcd"))}
        goes-on; generation 4""",
    "ranks that mpirun could not start are started again within the budget": f"""
        begin failure_budget=2; never-enter; hosts a b
        {"".join(f"worlds {number}; not-begun; " for number in (1, 2, 3))} fails last: mpirun has ended""",
    "an end of mpirun after all have started is not a fault by itself": TWO + "not-begun; run 5; world a b; worlds 1",
    "the world of an earlier launcher continues and is not restarted": """
        begin; inherit a b; run 5; world a b; worlds 0; hosts a b c; trains a b c; worlds 1""",
}
WITHOUT_A_LOOP = {
    "processes are ended for a change": TWO
    + f"run {STARTS_S}; hosts a b c; trains a b c; is exited.cause told to leave, told to leave",
    "processes that do not train yet are not restarted for newcomers": TWO
    + f"hosts a b c; run {STARTS_S - 10}; world a b; trains a b c",
    "processes may end with 0 one after the other": TWO
    + f"run {STARTS_S}; well a; run 40; world b; worlds 1; well b; ended-well",
    "a rank that fails after another one ended with 0 fails the job": TWO
    + f"""run {STARTS_S}; well b; run 0.1; kill a 1; fails rank 0 on a[0] crashed: exit code 1
        fails 1 of 2 processes ended well; over; worlds 1""",
}


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_a_world_ends_for_the_next_one_and_none_is_blamed_for_that(text: str) -> None:
    play(text, Torchrun, steps=Restarts)


@pytest.mark.parametrize("text", WITHOUT_A_LOOP.values(), ids=WITHOUT_A_LOOP)
def test_a_script_without_an_elastic_loop_ends_with_its_processes(text: str) -> None:
    play(text, partial(Torchrun, loops=False), steps=Restarts)


class Stateless(Restarted):
    """A script that keeps nothing."""

    commits = False


class WithoutState(Torchrun):
    training_kind = Stateless


@pytest.mark.parametrize(
    ("kind", "begins"),
    [(Torchrun, "begins with the last commit"), (WithoutState, "starts the script again: no commit is known")],
)
def test_a_world_is_said_to_begin_with_the_last_commit_only_where_there_is_one(
    kind: type[Torchrun], begins: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    play(THREE + "kill b", partial(kind, loops=kind is Torchrun), steps=Restarts).run(1.0)
    assert [text.rpartition("the next world ")[2] for text in caplog.messages if "the others are ended" in text] == [
        begins
    ]


@pytest.mark.parametrize("code", [TERMINATED, 1], ids=["ended by mpirun", "an error of its own"])
def test_a_process_that_ends_because_another_one_failed_is_not_blamed(code: int) -> None:
    text = TWO + "kill b 1; trains a; ended a peer lost; ended b crashed; number struck 1"
    play(text, partial(Torchrun, leaves_with=code), steps=Restarts)


def test_a_process_that_says_its_peer_is_lost_is_not_blamed_though_it_ends_first() -> None:
    cluster = play("train a b; run 1", Torchrun, steps=Restarts)
    a, b = (next(iter(cluster.agents[host].processes.values())) for host in "ab")
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer"
    cluster.say(a, "peer_lost", error=lost)
    cluster.say(a, "failed", digest="d", error=lost, traceback="")
    for ending, code in ((a, 1), (b, 3)):
        ending.interrupted = True
        cluster.training.ends(ending, code)
        cluster.run(0.5)
    assert cluster.ends() == {"a": "peer lost", "b": "crashed"}
    assert [event["host"] for event in cluster.events("struck")] == ["b"]


def test_the_time_without_training_is_told_at_the_first_step_of_the_next_world() -> None:
    cluster = play(TWO, Torchrun, steps=Restarts)
    first_step(cluster, cluster.members[0], pause_s=None)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: len(cluster.events("exited")) == 2)
    stopped_at = cluster.events("exited")[0]["mono"]
    cluster.until(lambda: cluster.trains("a", "b", "c"))
    cluster.run(30.0)
    first_step(cluster, cluster.members[0], pause_s=None)
    change = cluster.events("resized")[-1]
    assert (change["cause"], change["steps_lost"]) == ("hosts added", 0)
    assert change["downtime_s"] == pytest.approx(cluster.clock.mono() - stopped_at, abs=0.01)


# --- the decision itself


def test_newcomers_that_are_ready_drain_the_world_once_the_settle_time_is_over() -> None:
    ready = process("b", Stage.PARKED, since=6.0, created=6.0)
    seen = situation("ab", [process("a"), ready], "a")
    assert decide(6.0, seen, LIMITS).move is ChangeAction.NOTHING
    change = decide(9.0, seen, LIMITS)
    assert (change.move, change.decision.cause, change.decision.members) == (ChangeAction.DRAIN, "hosts added", None)


def test_a_loss_ends_the_world_also_where_too_few_are_left_for_another() -> None:
    seen = situation("ab", [process("a")], "ab")
    assert decide(5.0, seen, LIMITS).move is ChangeAction.END
    assert decide(5.0, seen, WorldLimits(least=2)).move is ChangeAction.END


def test_the_next_world_waits_for_seats_that_are_being_filled_but_not_for_ever() -> None:
    ready = process("b", Stage.PARKED, since=0.0)
    seen = situation("ab", [ready], "ab")
    ended = {Seat("a", 0): 10.0}
    change = decide(20.0, seen, LIMITS, ended=ended)
    assert (change.move, change.decision.again_at) == (ChangeAction.NOTHING, 10.0 + BACK_S)
    assert decide(20.0, seen, LIMITS).move is ChangeAction.FORM
    assert decide(11.0 + BACK_S, seen, LIMITS, ended=ended).move is ChangeAction.FORM


def test_members_that_ended_well_end_nobody_elses_world() -> None:
    seen = situation("ab", [process("a")], "ab")
    assert decide(5.0, seen, LIMITS, done={ProcessId(Seat("b", 0), 1)}).move is ChangeAction.NOTHING
    failed_beside = decide(5.0, situation("abc", [process("a")], "abc"), LIMITS, done={ProcessId(Seat("b", 0), 1)})
    assert failed_beside.move is ChangeAction.NOTHING  # the job fails, and ending processes may end


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_of_each_engine_stay_or_are_replaced_as_its_row_says(engine: str) -> None:
    job = Cluster(JobOptions(LIMITS, engine=engine)).driver.job
    assert job.in_place is ENGINES[engine].in_place
    assert (engine_of(job).advance is in_place_or_restarted.advance) is not ENGINES[engine].in_place


def test_a_call_whose_result_is_not_kept_is_said_to_be_trained_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a b; run 3", Torchrun, steps=Restarts)
    cluster.training.next_call(kept=False)
    cluster.run(1.0)
    assert "the result of call 1 was not kept: too large; each world from now on trains it again" in caplog.text
