"""A rank that fails in the same way at each start, and the ranks that it takes with it."""

from __future__ import annotations

import pytest

from tests.unit.launcher import simulated_cluster
from tests.unit.launcher.health.test_loopless import Plain
from tests.unit.launcher.scenarios import Scenario, play
from tests.unit.launcher.simulated_cluster import Cluster
from tests.unit.launcher.simulated_processes import Process, Training


class Failing(Training):
    """The processes that ``bad`` names end with ``code`` as soon as they are in a world. ``bad``: a rank, or a seat.

    ``error``: the error that they report before. ``after_s``: seconds until the others have ended, or know.
    """

    bad: object = 1
    code = 3
    error = ""
    oom = False

    def enters(self, process: Process) -> None:
        super().enters(process)
        if self.bad in (process.rank, (process.host, process.slot)):
            if self.error:
                process.agent.report(process, "failed", digest=self.error, error=self.error, traceback="")
            self.ends(process, self.code)

    def trains(self, process: Process) -> None:
        """No world gets to its first step while the bad rank is in it."""
        if not any(self.bad in (each.rank, (each.host, each.slot)) for each in self.members):
            super().trains(process)


class Taking(Failing, Plain):
    """Their script has no elastic loop: an operation of the others fails, and ends them."""

    first_s = 0.0
    """By how many seconds the end of the others comes before that of the process that causes it."""

    def ends(self, process: Process, code: int) -> None:
        if code == self.code and self.first_s and process.state == "training":
            self._take_others(process)
            self.later(self.first_s, super().ends, process, code)
        else:
            super().ends(process, code)

    def _take_others(self, process: Process) -> None:
        for peer in self.members:
            if peer is not process:
                self.loses(peer, process.generation)

    def loses(self, process: Process, generation: int | None = None) -> None:
        if process.state == "training" and generation in (None, process.generation):
            process.interrupted = True
            process.agent.report(process, "peer_lost", error="HorovodInternalError: Horovod has been shut down")
            Training.ends(self, process, 1)


def failing(kind: type[Failing] = Failing, **more: object) -> type[Failing]:
    return type(kind.__name__, (kind,), more)


IN_VAIN = "in 3 starts without a step"
ENDS = f"rank 1 on a[1] crashed: exit code 3, {IN_VAIN} between"
TOO_FEW = f"{ENDS}; slots left without a[1]: 1, needed: 2; its output, if any, is in the lines that begin with [1]"
NAMED = f"start a:2 least=2; fails {ENDS}; over; is struck.subject slot 1 of a, slot 1 of a"


@pytest.mark.parametrize("first_s", [0.0, 0.2, 3.0], ids=["ends first", "ends second", "ends much later"])
def test_a_rank_that_fails_at_each_start_ends_the_job_and_is_named_not_its_victim(first_s: float) -> None:
    cluster = play(NAMED, failing(Taking, first_s=first_s))
    assert str(cluster.driver.outcome) == TOO_FEW
    assert {event["cause"] for event in cluster.events("exited") if event["slot"] == 0} <= {
        "peer lost",
        "told to leave",
    }
    assert [event["slot"] for event in cluster.events("spawned")].count(1) == 3
    assert len(cluster.driver.job.faults.counted) == 2
    assert cluster.clock.mono() < 100.0 + 3 * (4.0 + first_s)  # no cooldown between the starts


def test_ranks_that_go_on_after_a_loss_wait_for_no_cooldown_either() -> None:
    cluster = play(f"start a:2 least=2; fails {ENDS}; over; is exited.code 3, 3, 3, 143", failing())
    assert cluster.clock.mono() < 115.0


ALIKE = {
    "an error of its script": ({"code": 1, "error": "ValueError: bad"}, "crashed: exit code 1: ValueError: bad, in 3"),
    "a signal": ({"code": 139}, "rank 1 on a[1] crashed: killed by SIGSEGV, in 3 starts"),
}


@pytest.mark.parametrize(("how", "said"), ALIKE.values(), ids=ALIKE)
@pytest.mark.parametrize("kind", [Failing, Taking], ids=["with a loop", "without one"])
def test_however_it_fails(how: dict[str, object], said: str, kind: type[Failing]) -> None:
    play(f"start a:2 least=2; fails {said}; over; no-strike-of 0", failing(kind, **how), steps=Steps)


class Steps(Scenario):
    """One more step of scenarios."""

    def no_strike_of_(self, slot: str) -> None:
        subjects = [event["subject"] for event in self.cluster.events("struck")]
        assert f"slot {slot} of a" not in subjects, subjects


def test_out_of_memory_at_each_start_ends_the_job_but_a_sigkill_from_outside_does_not() -> None:
    play("start a:2 least=2; run 40; goes-on", failing(code=137))

    class OfMemory(simulated_cluster.Agent):
        def _news(self, event: str, process: Process, **more: object) -> dict[str, object]:
            return super()._news(event, process, **more, **({"oom": True} if more.get("code") == 137 else {}))

    class Memory(Cluster):
        agent_kind, training_kind = OfMemory, failing(code=137)

    play("start a:2 least=2; fails rank 1 on a[1] out of memory: killed by the kernel, in 3 starts", Memory)


def test_a_slot_without_which_enough_are_left_is_blocked_and_the_others_train() -> None:
    cluster = play(
        "start a:2 b:2 least=3; run 120; goes-on; size 3",
        failing(bad=("b", 1), code=139),
    )
    assert {event["subject"] for event in cluster.events("struck")} == {"slot 1 of b"}
    last = cluster.events("struck")[2]
    assert (last["cooldown_s"], last["reason"]) == (300.0, f"crashed: killed by SIGSEGV, {IN_VAIN}")
    assert len(cluster.events("struck")) == 3
    assert cluster.clock.mono() - cluster.events("struck")[0]["mono"] > 60.0


def test_an_error_that_follows_its_rank_to_another_host_ends_the_job() -> None:
    text = f"start a:1 b:1 c:1 least=2; fails {IN_VAIN} between; fails it came on 2 hosts; over"
    cluster = play(text, failing(bad=1))
    assert len(cluster.events("resized")) <= 5


def test_a_rank_that_fails_before_it_asks_for_a_world_while_another_is_still_importing() -> None:
    class Early(Training):
        def parks(self, process: Process) -> None:
            if process.slot == 1:
                self.ends(process, 3)
            else:
                super().parks(process)

    class Late(Early):
        def parks(self, process: Process) -> None:
            if process.slot == 0 and process.life == 1 and self.clock.mono() < 108.0:
                self.later(1.0, self.parks, process)
            else:
                super().parks(process)

    for kind in (Early, Late):
        cluster = play(f"start a:2 least=2; fails {ENDS}; over", kind)
        assert cluster.clock.mono() < 125.0
        assert {event["slot"] for event in cluster.events("exited")} >= {1}
        assert {event["subject"] for event in cluster.events("struck")} == {"slot 1 of a"}


def test_a_newcomer_without_which_the_others_cannot_go_on_ends_the_job_if_it_fails_at_each_start() -> None:
    class Broken(Training):
        broken = False

        def parks(self, process: Process) -> None:
            if process.slot == 1 and self.broken:
                self.ends(process, 3)
            else:
                super().parks(process)

    cluster = play("train a:2 least=2; run 3", Broken)
    cluster.training.broken = True
    cluster.kill("a", 1)
    cluster.until(lambda: cluster.driver.over, within=60.0)
    assert str(cluster.driver.outcome).startswith(f"{ENDS}; slots left without a[1]: 1")


def test_a_program_that_fails_everywhere_is_not_started_again() -> None:
    cluster = play("begin start=2; hosts a:2; run 2; kill a:0 3; kill a:1 3; run 1; fails no process started")
    assert len(cluster.events("spawned")) == 2


def test_a_rank_that_fails_at_the_same_later_step_is_not_blocked() -> None:
    """There are steps between: the strikes are the usual ones."""
    cluster = play("train a:2 least=2; " + "run 4; kill a:1 3; size 1; size 2; " * 3 + "run 4; kill a:1 3; goes-on")
    cluster.run(0.1)
    waits = [event["cooldown_s"] for event in cluster.events("struck")]
    assert waits == [10.0, 20.0, 40.0, 80.0]


def test_a_used_up_budget_names_the_first_failure_and_the_last() -> None:
    text = (
        "train a b failure_budget=1; run 3; kill a 3; size 2; run 4; kill b 4; fails 2 processes failed within an hour"
    )
    said = str(play(text).driver.outcome)
    assert "the first one was rank 0 on a[0] crashed: exit code 3" in said
    assert "; the last one was rank 0 on b[0]: crashed: exit code 4; its output" in said


def test_if_no_process_fails_by_itself_the_first_one_is_blamed_after_a_while() -> None:
    """Different shapes on two ranks fail an operation on both."""
    cluster = play("train a b; run 3", failing(Taking, bad=None))
    for process in list(cluster.members):
        cluster.training.loses(process)
    cluster.run(1.0)
    (struck,) = cluster.events("struck")
    assert (struck["host"], struck["cause"]) == ("a", "crashed")
    assert "HorovodInternalError" in struck["reason"]


def test_a_victim_of_a_host_that_is_silent_is_not_blamed_for_that() -> None:
    play("train a b c; run 3; cut c; lose-world a; run 20; only struck.subject host c", failing(Taking, bad=None))


def test_where_output_is_kept_in_files_the_message_names_the_folder() -> None:
    play("start a:2 least=2 output='/out'; fails its output is in /out/rank.1", failing())


@pytest.mark.parametrize("engine", ["torchrun", "mpirun"])
def test_with_engines_that_end_the_whole_world_the_cause_is_named_too(engine: str) -> None:
    cluster = play(f"start a:2 least=2 engine={engine}; fails {ENDS}; over", Failing)
    assert {event["cause"] for event in cluster.events("exited") if event["slot"] == 0} <= {
        "peer lost",
        "told to leave",
    }


class Between(Training):
    """Their script is in an operation of its own between two training calls: its failure ends them."""

    loses = Taking.loses


def test_survivors_of_a_loss_between_two_training_calls_are_victims_and_start_again_also_the_last_one() -> None:
    cluster = play("train a b c cooldown_s=(1.0,1.0); run 2; done a b c; kill c; run 0.5; goes-on", Between)
    assert [(each["host"], each["cause"]) for each in cluster.events("exited")] == [
        ("c", "crashed"),
        ("a", "peer lost"),
        ("b", "peer lost"),
    ]
    cluster.until(lambda: sorted(cluster.world) == ["a", "b", "c"])
    assert [each["host"] for each in cluster.events("struck")] == ["c"]
