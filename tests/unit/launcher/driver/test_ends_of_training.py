"""The time between the end of training and the end of the processes."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.reporting.all_waits import status
from tests.unit.launcher.scenarios import play

ENDS = {
    "who is done first is neither missed nor sent away, however long it takes": """
        train a b; run 1; done b; run 0.5; done a; run 300; generation 1; messages update 0; finish; ended-well""",
    "newcomers that are ready then do not begin it anew": """
        train a b settle_s=5; run 1; hosts a b c; sees parked 3; done a b; run 60; generation 1; finish; ended-well""",
    "a script may train twice, and the second training is elastic too": """
        train a b c; run 1; done a c b; run 0.5; loop b a c; run 1; generation 1; kill b; until a c; goes-on""",
    "whoever has much to do after training is not taken to be stalled": """
        train a b progress_timeout_s=5 restart_stalled=True; run 4; done a b; run 0.5; stick a; stick b; run 60
        no stalled; world a b""",
    "who lost the world with one that is done does the last steps alone": """
        train a b c least=3; run 1; done b; kill c; run 0.004; well b; state a asking; until a <30; finish
        ended-well <30""",
    "one that nothing can kill does not keep the job from ending": """
        train a b c; run 1; undying c; stop c; sees resized 2; run 1; finish; ended-well""",
    "a rank that fails while the others come to their end fails the job: it may have been about to write the model": """
        train a b; run 1; kill a 1; run 0.004; done b; well b; over
        fails a[0] crashed: exit code 1, before its training was done""",
    "a rank that failed in a world before the last one fails nothing": """
        train a b; run 1; kill a 1; until b; run 1; finish; ended-well""",
    "who was about to leave is stopped with all the others when the job is told to end": """
        train a b; run 2; wedge b; dies b 5; hosts a; members a; run 1; alive b; interrupt; over <6; gone a b""",
    "and does not hold up the end of a training that is done": """
        train a b; run 2; wedge b; dies b 5; hosts a; members a; run 1; alive b; done a; run 0.1; kill a 0
        ended-well <6; gone a b""",
    "who is done and no member of the last world may take its time": """
        train a b c; run 2; done b; run 0.1; wedge b; kill c; members a; run 1; done a; run 0.1; kill a 0; run 60
        alive b; kill b 0; ended-well""",
    "who is done while a newcomer waits for its world ends the training, however long its script takes": """
        train a; step 500; hosts a b; state b asking; done a; run 60; generation 2; alive b; well a; ended-well <5
        number resized 1; no stalled; is exited.cause done, told to leave; gone b""",
    "and so it does if its end is heard at once": """
        train a; step 500; hosts a b; state b asking; done a; well a; ended-well <5; generation 2; number resized 1""",
    "and if the newcomer has been told to go and has not asked for its rank yet": """
        train a; step 500; hosts a b; begun 2; done a; well a; ended-well <5; generation 2; number resized 1""",
    "and if another newcomer is only parked": """
        train a; step 500; hosts a b; state b asking; hosts a b c; sees parked 3; done a; run 9; well a; ended-well <5
        generation 2; number resized 1""",
    "all who are done in turn while a newcomer waits are waited for": """
        train a b; step 500; hosts a b c; state c asking; done a; run 5; done b; run 60; generation 2; well a; run 0.1
        well b; ended-well <5; number resized 1""",
    "who comes to the next world when another one is done goes on without the newcomer": """
        train a b; step 500; hosts a b c; state c asking; wedge a; done a; run 0.1; lose-world b; members b; run 20
        members b; generation 3; is resized.cause start, ranks finished; kill a 0; finish; ended-well""",
    "a loss while one is done is no reason to let newcomers in": """
        train a b c settle_s=500; hosts a b c d; sees parked 4; wedge b; done b; kill c; members a; run 30; members a
        kill b 0; finish; ended-well; gone d""",
    "a newcomer that fails while it is told to end fails no training that is done": """
        train a; step 500; hosts a b; state b asking; dies b 5; done a; well a; run 0.1; kill b 1; ended-well <5""",
    "a rank that fails in a world that goes on without one that is done fails the job, too": """
        train a b least=1; run 1; wedge b; done b; run 0.1; lose-world a; members a; kill a 1; run 20; number resized 2
        kill b 0; fails a[0] crashed: exit code 1, before its training was done""",
    "who trains again lets the newcomer in": """
        train a; step 500; hosts a b; state b asking; done a; run 5; loop a; step 0.02; run 1; lose-world a; until a b
        generation 2""",
    "agents that hear it end though the end of others is not waited for any longer": """
        train a b; run 2; deaf b; interrupt; over <31; took 29.9; run 0.1; gone a""",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_training_ends_for_all_in_each_case_as_it_should(text: str) -> None:
    play(text)


ENDED = "rank 1 (b[0]) ended training, and a[0] still trains: do all ranks do the same number of steps?"


def test_a_rank_that_ends_while_others_train_is_told_and_so_are_they_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b least=2; run 3.5; done b; run 0.1; well b; lose-world a; until a <5; run 3")
    said = [each.getMessage() for each in caplog.records if "same number of steps?" in each.getMessage()]
    assert [line.partition("? ")[0] + "?" for line in said] == [ENDED]
    assert said[0].endswith("a[0] goes on without it: no process joins, and the job ends when training ends there")
    assert status(cluster.driver.job) == (
        "waiting: for the end of training on a; no limit: it ends with the processes there; Ctrl-C ends them"
    )
    cluster.training.finish()
    cluster.until(lambda: cluster.driver.over)
    outcome = cluster.driver.job.outcome
    assert list(outcome.more.values()) == [3]
    assert [record["cause"] for record in cluster.events("resized")] == ["start", "ranks finished"]
    assert cluster.events("resized")[-1]["failed"] == {}


def test_ranks_that_only_do_the_last_step_again_are_not_said_to_have_done_more() -> None:
    cluster = play(
        "train a b least=2; run 3.5; done b; run 0.1; well b; lose-world a; until a <5; run 0.2; finish; ended-well"
    )
    assert cluster.driver.job.outcome.early
    assert not any(cluster.driver.job.outcome.more.values())


def test_a_world_that_forms_when_a_member_is_done_forms_without_it() -> None:
    cluster = play("train a b c; run 1; stop a; kill c; run 0.2; done a")
    cluster.until(lambda: cluster.world[-1:] == ["b"] and cluster.driver.job.formed)
    assert cluster.driver.job.world.members[0].seat.host == "b"
