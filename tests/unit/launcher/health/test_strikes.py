"""The text about a blocked host: the same as the launcher's at the failure."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.health.ledger import Subject
from tests.unit.launcher.scenarios import play

NUMPY = "ModuleNotFoundError: No module named 'numpy'"

WORDS = {
    "the error of a script": (
        f"train a b; run 2; fail b {NUMPY}; sees struck; is struck.reason crashed: exit code 1: {NUMPY}"
        f"; is exited.reason crashed: exit code 1: {NUMPY}",
        f"slot 0 of b: crashed: exit code 1: {NUMPY}",
    ),
    "the last line of ssh": (
        "train a; run 2; dead b; hosts a b; sees struck; is struck.reason no route to host; "
        "is struck.cause unreachable",
        "host b: unreachable: no route to host",
    ),
    "a silent process is not a crashed one, though the launcher killed it": (
        "train a b heartbeat_timeout_s=3; run 2; stop b; sees struck; is struck.cause silent; is exited.cause silent",
        "slot 0 of b: silent: no heartbeat for 3.0 s, killed by the launcher",
    ),
    "nor is one that is told to leave meanwhile": (
        "train a b heartbeat_timeout_s=3; run 2; stop b; run 2.8; hosts a; sees exited <90; is exited.cause silent",
        "slot 0 of b: silent: no heartbeat for ",
    ),
    "a stalled one": (
        "train a b c progress_timeout_s=5 restart_stalled=True; run 3; hang b; sees struck <60; "
        "is struck.cause stalled",
        "slot 0 of b: stalled: killed by the launcher",
    ),
}


@pytest.mark.parametrize(("text", "why"), WORDS.values(), ids=WORDS)
def test_a_block_says_in_the_words_of_the_failure_why(text: str, why: str) -> None:
    cluster = play(text)
    status = cluster.driver.job.faults.ledger.blocked(cluster.clock.mono(), Host("b", 1))
    assert status.reason.startswith(why)
    (struck,) = cluster.events("struck")
    assert struck["host_blocked"] == status.reason
    assert struck["host_blocked_s"] == struck["cooldown_s"]


def test_the_block_of_one_slot_is_not_that_of_its_host() -> None:
    (struck,) = play("train a:2 b; run 2; kill a:1 3; sees struck").events("struck")
    assert (struck["subject"], struck["host_blocked"], struck["host_blocked_s"]) == ("slot 1 of a", None, None)


def test_a_host_that_is_used_again_at_once_is_not_said_to_be_left_out() -> None:
    cluster = play("train a; run 3; kill a; until a; run 2")
    (struck,) = cluster.events("struck")
    assert struck["waived"] == "no other host may work, and a holds the newest commit"
    assert (struck["cooldown_s"], struck["host_blocked"]) == (None, None)
    assert cluster.events("cleared") == []
    assert cluster.driver.job.faults.ledger.usable_slots(cluster.clock.mono(), Host("a", 1)) == (0,)
    cluster.kill("a")
    cluster.run(3.0)
    assert cluster.driver.job.faults.ledger.records[Subject("slot", "a", "", 0)].strikes == 2  # the strikes stay


def test_a_blocked_host_that_becomes_the_last_one_is_used_before_its_time_and_that_is_recorded() -> None:
    cluster = play("train a b; run 3; kill b; until a; run 1; hosts b; run 0.1; kill a; sees cleared <5")
    (cleared,) = cluster.events("cleared")
    assert (cleared["host"], cleared["waived"]) == ("b", True)


def test_the_words_of_a_failure_hold_no_secret_and_stay_on_one_short_line() -> None:
    cluster = play("train a b; run 2")
    cluster.fail("b", "OSError: https://me:hunter2@store/x\nAWS_SECRET_ACCESS_KEY=hunter3 \x1b[31m" + "x" * 5000)
    cluster.run(1.0)
    for event in ("struck", "exited"):
        (found,) = cluster.events(event)
        assert "hunter" not in found["reason"]
        assert found["reason"].isprintable()
        assert "OSError: https://***" in found["reason"]
        assert len(found["reason"]) <= 240


@pytest.mark.parametrize(("code", "told"), [(2, True), (1, False)])
def test_a_script_that_refuses_its_options_is_told_which_of_them_are_the_launchers(code: int, told: bool) -> None:
    scenario = f"begin; hosts a; run 2; kill a {code}; run 60"
    cluster = play(scenario, misplaced="--adopt is an option of hvd-elastic run")
    said = f"no process started training: rank 0 on a[0] crashed: exit code {code}"
    assert str(cluster.driver.outcome) == said + ("; --adopt is an option of hvd-elastic run" if told else "")


def test_a_job_that_never_trains_ends_with_the_error_of_its_first_process() -> None:
    said = f"no process started training: rank 0 on a[0] crashed: exit code 1: {NUMPY}"
    play(f"start a; run 2; fail a {NUMPY}; fails {said}")
