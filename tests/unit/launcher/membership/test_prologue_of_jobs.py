"""Where the processes of a script meet that imports our module: in ``hvd.init()``, or in its training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.folder.state_json import from_text, job_of, saved_of, to_text
from hvd_elastic_ext.launcher.membership.processes import starting
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.reporting.all_waits import status
from tests.unit.launcher.scenarios import Scenario, play
from tests.unit.launcher.simulated_cluster import Cluster
from tests.unit.launcher.simulated_processes import Process, Training


class Early(Training):
    """Processes that park in ``hvd.init()``. In a world that forms there they stay in their prologue until `loop`.

    ``busy``: hosts with a process that is in no collective in its prologue, and so does not notice a lost peer.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.busy: set[str] = set()

    def parks(self, process: Process) -> None:
        self.moves(process, "parked")
        process.at_init = not process.alone
        if process.alone:
            self.begins_loop(process)
        where = {"at": "init", "later": True} if process.at_init else {"at": "loop", "later": False}
        process.agent.report(process, "parked", **where)

    def begins_loop(self, process: Process, **more: Any) -> None:
        process.looped, process.at_init = True, False
        process.agent.report(process, "looping", **more)

    def has_loop(self, process: Process) -> bool:
        return process.looped

    def hears(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "alone" and process.at_init:
            process.at_init, process.alone = False, True
            self.moves(process, "booting")
            self.later(2.0, process.agent.park, process)
        elif not (message["tell"] == "update" and process.at_init):
            super().hears(process, message)

    def enters(self, process: Process) -> None:
        if not process.at_init:
            super().enters(process)
        elif process.state == "training":
            process.agent.report(process, "entered", generation=process.generation)

    def trains(self, process: Process) -> None:
        if not process.at_init:
            super().trains(process)

    def loses(self, process: Process, generation: int | None = None) -> None:
        if not process.at_init:
            super().loses(process, generation)
        elif process.state == "training" and process.host not in self.busy and generation in (None, process.generation):
            process.interrupted = True
            process.agent.report(process, "peer_lost", error="HorovodInternalError: closed")
            self.later(0.2, self.ends, process, 1)

    def says(self, host: str, what: str) -> None:
        members = self.members
        for process in [each for each in members if each.host == host]:
            process.at_init = False
            if what == "looping":
                self.begins_loop(process)
            elif {each.generation for each in members} != {self.job.generation} or not self.job.standing:
                self.later(0.1, super().loses, process, process.generation)  # the newest world has lost a member
            else:
                process.agreed = process.generation
                process.agent.report(process, what)


def test_the_processes_of_the_first_world_meet_in_init_and_the_loop_finds_their_world() -> None:
    play(
        "train a b; messages alone 0; messages go 2; run 30; goes-on; generation 1; loop a b; run 5; generation 1;"
        "is resized.size 2; is parked.host a, b; blameless",
        Early,
    )


def test_hosts_that_are_listed_during_the_prologue_wait_for_the_loop_and_come_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cluster = play("train a b standby_timeout_s=20; hosts a b c; run 60; state c init; messages alone 0", Early)
    assert "waits in hvd.init(): the world has not begun its training loop" in caplog.text
    assert "c (slot 0, ready)" in status(cluster.driver.job)
    play_on(cluster, "no struck not_resized; generation 1; loop a b; until a b c <10; messages alone 1; blameless")
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    play_on(cluster, "is parked.host a, b, c")


def test_one_that_was_late_for_the_first_world_waits_for_its_loop_and_comes_alone() -> None:
    play(
        "begin start=1 settle_s=1; boot b 20; hosts a b; until a; run 40; state b init; messages alone 0; loop a;"
        "until a b <10; messages alone 1; no struck",
        Early,
    )


def test_one_that_the_first_world_does_not_need_waits_in_init_and_is_ready_for_another_first_world() -> None:
    play(
        "begin start=2 most=2; boot a 3; hosts a b c; until a b; run 5; kill a; until b c <30; messages alone 0",
        Early,
    )


def test_a_process_lost_in_the_prologue_makes_victims_of_the_others_and_all_meet_in_init_again() -> None:
    cluster = play(
        "train a b least=2 cooldown_s=(1.0,1.0); run 5; kill a; until a b <30; messages alone 0; loop a b", Early
    )
    causes = {line["host"]: line["cause"] for line in cluster.events("exited")}
    assert causes == {"a": "crashed", "b": "peer lost"}
    play_on(cluster, "run 5; generation 2; is struck.host a; no training_restarted not_resized")


def test_one_that_replaces_a_lost_one_waits_while_the_others_are_before_their_loop() -> None:
    cluster = play("start a b cooldown_s=(1.0,1.0)", Early)
    cluster.training.busy.add("b")
    play_on(
        cluster,
        "until a b; run 5; kill a; state a init; run 20; messages alone 0; generation 1; loop b; until b a <20;"
        "messages alone 1; is exited.host a; no not_resized",
    )


def test_after_the_loss_of_all_in_the_loop_the_next_ones_meet_in_init_again() -> None:
    play(
        "train a b least=2 cooldown_s=(1.0,1.0); loop a b; run 5; kill a; kill b; until a b <30; messages alone 0;"
        "loop a b; run 5; generation 2",
        Early,
    )


def test_an_order_to_go_on_alone_that_was_lost_is_given_again() -> None:
    play(
        "train a b; loop a b; lose alone 1; hosts a b c; told alone 1; disconnect c; reconnect c; until a b c <20",
        Early,
    )


def test_another_launcher_knows_who_waits_in_init_and_who_goes_on_alone() -> None:
    """One is in its prologue alone: who waits in init cannot meet it there."""
    cluster = play("begin start=2", Early)
    cluster.inherit("a")
    (process,) = cluster.agents["a"].processes.values()
    process.state, process.generation, process.agreed, process.alone = "booting", 0, 0, True
    cluster.later(2.0, process.agent.park, process)
    play_on(cluster, "hosts a b; state b init; told alone 1; state b parked")
    worker = cluster.driver.job.roster.of("a", 0, process.life)
    assert worker is not None
    assert worker.alone


def test_another_launcher_changes_a_world_that_it_takes_over_in_its_prologue_only_in_the_loop() -> None:
    cluster = play("begin start=2", Early)
    play_on(cluster, "left a b")
    for process in cluster.members:
        process.at_init = True
    play_on(cluster, "expect a b; members a b <9; run 15; hosts a b c; state c init; run 20; generation 7")
    assert [cluster.driver.job.roster.workers[life.seat].agreed for life in cluster.driver.job.world.members] == [0, 0]
    play_on(
        cluster,
        "messages alone 0; messages update 0; loop a; run 20; generation 7; messages alone 1; loop b; until a b c",
    )


def test_a_rank_that_waits_long_for_another_ones_preparation_does_not_stall_the_world(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cluster = play("start a b", Early)
    cluster.training.held_up = lambda process: process.host == "b"  # type: ignore[method-assign]
    play_on(cluster, "until a b; run 300; no stalled fenced struck; loop a b")
    assert "rank 0 (a[0]) has not begun a step yet and is waited for" in caplog.text
    assert "reported as stalled only if --progress-timeout S is given" in caplog.text


def test_a_long_prologue_is_told_at_the_pace_of_waits_until_its_loop_begins(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    play("train a b; run 600; no stalled fenced struck", Early)
    lines = [line for line in caplog.messages if "have not begun the training loop yet" in line]
    assert len(lines) > 3
    assert "hangs" not in caplog.text


def test_a_removed_host_stays_until_the_loop_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    play("train a b; run 15; hosts a; run 20; generation 1; no not_resized", Early)
    said = [line for line in caplog.messages if "the world changes when its training loop begins" in line]
    assert len(said) == 1
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def play_on(cluster: Cluster, text: str) -> None:
    """Play more steps on a cluster."""

    class Further(Scenario):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.cluster = cluster

    play(text, Early, steps=Further)


def with_collectives(text: str = "train a b; run 5") -> Cluster:
    """A first world that has called collectives in its prologue, at the begin of its loop; what they have returned is
    not kept yet. ``c`` is listed, and its process is in ``init``."""
    cluster: Cluster = play(text, Early)
    begins_loop(cluster)
    play_on(cluster, "hosts a b c; until a b; state c init")
    return cluster


def begins_loop(cluster: Cluster) -> None:
    for process in cluster.members:
        cluster.training.begins_loop(process, call=1, collectives=True)


def keeps_record(cluster: Cluster) -> None:
    for process in cluster.members:
        process.past[:] = process.past or [None]
        cluster.say(process, "result", call=0, bytes=9, kept=True)


def test_a_newcomer_waits_in_init_for_what_collectives_returned_to_the_others() -> None:
    cluster = with_collectives()
    play_on(cluster, "run 2; messages alone 0")
    for process in cluster.members:
        process.past[:] = [None]
        cluster.say(process, "result", call=0, bytes=9, kept=True)
    cluster.until(lambda: cluster.training.tells["alone"] == 1)
    assert [target for _, target, _ in cluster.helpers.pasts_sent] == ["c"]
    play_on(cluster, "loop a b; until a b c <20; no call_ended")


def test_it_goes_on_without_them_after_a_while_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    cluster = with_collectives()
    play_on(cluster, "run 27; messages alone 0; run 5; messages alone 1; loop a b; until a b c <20")
    assert "c[0] goes on to its training loop: what collectives returned" in caplog.text


def test_it_waits_longer_while_hosts_write_a_checkpoint_and_the_status_names_what_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = with_collectives()
    keeps_record(cluster)
    monkeypatch.setattr(JobState, "busy", frozenset("ab"))
    play_on(cluster, "run 100; messages alone 0")
    assert "waits in hvd.init() for what collectives returned" in str(
        starting(cluster.driver.job, cluster.driver.job.now)["c"]
    )
    monkeypatch.setattr(JobState, "busy", frozenset("b"))  # a can send it
    play_on(cluster, "run 3; messages alone 1")
    assert [sent[:2] for sent in cluster.helpers.pasts_sent] == [("a", "c")]


def test_it_waits_while_others_get_it_first() -> None:
    cluster = with_collectives()
    keeps_record(cluster)
    cluster.helpers.program = lambda *_: partial(cluster.helpers.answer, {})  # type: ignore[method-assign]
    play_on(cluster, "run 100; messages alone 0; run 520; messages alone 1")


def test_it_waits_for_one_that_comes_late_to_its_training_loop() -> None:
    cluster = play("train a b; run 5", Early)
    cluster.training.begins_loop(cluster.members[0], call=1, collectives=True)
    play_on(cluster, "hosts a b c; run 100; state c init; messages alone 0")


def test_it_does_not_wait_if_they_were_not_kept() -> None:
    cluster = with_collectives()
    for process in cluster.members:
        cluster.say(process, "result", call=0, bytes=0, kept=False, reason="no memory")
    play_on(cluster, "run 1; messages alone 1")


def test_what_is_of_an_earlier_start_of_the_job_is_not_given_to_a_newcomer() -> None:
    cluster = with_collectives()
    cluster.driver.job.calls.holds(Seat("c", 0), 1)
    play_on(cluster, "run 2; messages alone 0")
    keeps_record(cluster)
    cluster.until(lambda: cluster.training.tells["alone"] == 1)
    assert [target for _, target, _ in cluster.helpers.pasts_sent] == ["c"]


def test_a_slot_that_was_away_when_the_job_started_again_gets_the_new_record_before_its_process_goes_on() -> None:
    cluster = play("train a b; run 5", Early)
    cluster.new_agent("c")
    for host, count in (("a", 2), ("b", 2), ("c", 3)):  # of an earlier start
        cluster.agents[host].pasts[0] = [None] * count
        cluster.driver.job.calls.holds(Seat(host, 0), count)
    begins_loop(cluster)
    keeps_record(cluster)
    play_on(cluster, "hosts a b c; state c init")
    cluster.until(lambda: cluster.training.tells["alone"] == 1)
    assert [(target, results) for _, target, results in cluster.helpers.pasts_sent] == [("c", 2)]
    assert cluster.helpers.past_requests[-1]["record"] is True
    assert not cluster.driver.job.calls.is_stale(Seat("c", 0))


def test_a_record_that_was_sent_while_the_job_started_again_is_sent_again() -> None:
    cluster = with_collectives()
    job = cluster.driver.job
    keeps_record(cluster)
    cluster.until(lambda: job.calls.transfer is not None)
    job.calls.recorded_in([Seat("a", 0)], job.generation + 1)
    play_on(cluster, "run 2; messages alone 1")
    assert [target for _, target, _ in cluster.helpers.pasts_sent if target == "c"] == ["c", "c"]


def test_a_launcher_that_has_missed_who_has_the_newest_record_learns_it_from_the_agents() -> None:
    cluster = with_collectives()
    job = cluster.driver.job
    job.calls.recorded_in([Seat("c", 0)], job.generation - 1)  # of an earlier start
    for host, generation in (("a", job.generation), ("b", job.generation - 1)):
        told = partial(with_record, cluster.agents[host]._status, generation)
        cluster.agents[host]._status = told  # type: ignore[method-assign]
        play_on(cluster, f"disconnect {host}; run 0.2; reconnect {host}; run 0.2")
    assert (job.calls.recorded, job.calls.record_due) == ({Seat("a", 0)}, False)


def with_record(status: Callable[[int], dict[str, Any]], generation: int, slot: int) -> dict[str, Any]:
    return {**status(slot), "collectives": True, "recorded": generation}


def test_the_next_launcher_knows_which_slots_have_the_newest_record() -> None:
    cluster = with_collectives()
    keeps_record(cluster)
    job = cluster.driver.job
    cluster.until(lambda: len(job.calls.recorded or ()) == 2)
    saved = saved_of(job, incarnation=1, ports={}, wall=0.0, run=None)
    found = job_of(from_text(to_text(saved)), job.options, now=0.0, wall=0.0, helper_number=1).calls
    assert (found.recorded, found.record_world) == ({Seat("a", 0), Seat("b", 0)}, job.generation)


class Listening(Training):
    """Processes of a script without our module: they park in ``hvd.init()`` only."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.later_ones: dict[str, bool] = {}

    def hears(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "go":
            self.later_ones[process.host] = message.get("later", False)
        super().hears(process, message)


def test_one_that_is_called_to_others_in_their_training_function_is_told_so() -> None:
    cluster = play("train a b; run 5; loop a b; hosts a b c; until a b c <20", Listening)
    assert cluster.training.later_ones == {"a": False, "b": False, "c": True}
