"""What a script does between ``hvd.init()`` and its training loop acts on all processes of the first world."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.contract.comms.conftest import without_mpi
from tests.integration.launcher.conftest import Launched

SCRIPT = [sys.executable, str(Path(__file__).with_name("prologue.py"))]
FOUND = "found [True, True, 1.5, 'of rank 0', [100, 200], [None, [1]]]"


ENGINES = [
    pytest.param("torchrun", ("--engine", "torch"), marks=pytest.mark.soak, id="torch"),
    pytest.param("torchrun", ("--engine", "torchrun"), marks=pytest.mark.soak, id="torchrun"),
    pytest.param(
        "mpirun",
        ("--engine", "mpirun"),
        marks=[pytest.mark.soak, pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))],
        id="mpirun",
    ),
]


@pytest.mark.parametrize(
    ("loop", "options"),
    [
        ("ours", ()),
        pytest.param("stock", ("--adopt",), marks=pytest.mark.soak),
        pytest.param("stock", (), marks=pytest.mark.soak),
        *ENGINES,
    ],
)
def test_collectives_before_the_loop_act_on_all_processes_of_the_first_world(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, loop: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("LOOP", loop)
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", *options, *SCRIPT) as process:
        assert process.wait(90) == 0, process.output
    for rank in (0, 1):
        assert f"rank {rank} of 2 {FOUND}" in process.stdout
        assert f"step 10 rank {rank} size 2" in process.stdout
    assert "reset" not in process.stdout  # the loop finds the world formed
    (formed,) = launched.events("resized")
    assert formed.get("size") == 2


@pytest.mark.soak
def test_a_process_lost_before_the_loop_makes_victims_of_the_others_and_all_start_together_again(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROLOGUE", "killed")
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", *SCRIPT) as process:
        assert process.wait(90) == 0, process.output
    ends = {(record.get("slot"), record.get("cause")) for record in launched.events("exited")[:2]}
    assert ends == {(1, "crashed"), (0, "peer lost")}
    assert {record.get("subject") for record in launched.events("struck")} == {"slot 1 of localhost"}
    assert [record.get("size") for record in launched.events("resized")] == [2, 2]
    assert not launched.events("not_resized", "training_restarted")
    for rank in (0, 1):
        assert process.stdout.count(f"rank {rank} of 2 {FOUND}") == 1
        assert f"step 10 rank {rank} size 2" in process.stdout
    assert "none had begun its training loop: the script is started again" in process.stderr


@pytest.mark.parametrize(("loop", "options"), ENGINES)
def test_a_process_lost_before_the_loop_of_another_engine_is_the_only_one_blamed_and_all_start_together_again(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, loop: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PROLOGUE", "killed")
    monkeypatch.setenv("LOOP", loop)
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", *options, "--blacklist-cooldown-range", "1", "2", *SCRIPT) as process:
        assert process.wait(150) == 0, process.output
    ends = [(record.get("slot"), record.get("cause")) for record in launched.events("exited")[:2]]
    assert {cause for slot, cause in ends if slot == 1} == {"crashed"}
    assert {cause for slot, cause in ends if slot == 0} <= {"peer lost", "told to leave"}
    assert {record.get("subject") for record in launched.events("struck")} == {"slot 1 of localhost"}
    for rank in (0, 1):
        assert process.stdout.count(f"rank {rank} of 2 {FOUND}") == 1
        assert f"step 10 rank {rank} size 2" in process.stdout


@pytest.mark.soak
def test_a_script_that_fails_on_one_rank_before_its_loop_is_named_and_the_others_are_victims(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROLOGUE", "raises")
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", "--blacklist-cooldown-range", "600", "600", *SCRIPT) as process:
        assert process.wait(120) == 1, process.output
    assert "ValueError: no data here" in launched.events("finished")[-1].get("reason")
    ends = [(record.get("slot"), record.get("cause")) for record in launched.events("exited")]
    assert {cause for slot, cause in ends if slot == 1} == {"crashed"}
    assert {cause for slot, cause in ends if slot == 0} <= {"peer lost", "told to leave"}
    assert {record.get("subject") for record in launched.events("struck")} <= {"slot 1 of localhost"}


@pytest.mark.soak
def test_a_host_that_is_listed_before_the_loop_waits_for_it_and_joins_there(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROLOGUE", "waits")
    monkeypatch.setenv("UNTIL_STOP", "1")
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", "--settle", "0.2", *SCRIPT) as process:
        launched.wait_for("the first world", lambda: launched.events("resized"))
        launched.set_hosts("localhost:2", "127.0.0.1:1")
        launched.wait_for("a line about it", lambda: "waits in hvd.init(): the world has not begun" in process.stderr)
        assert len(launched.events("resized")) == 1
        assert not launched.events("not_resized")
        (launched.directory / "go").touch()
        launched.wait_for_steps(3)
        (launched.directory / "stop").touch()
        assert process.wait(60) == 0, process.output
        assert [record.get("size") for record in launched.events("resized")][:2] == [2, 3]  # ranks may end one by one
    assert {line.partition("]")[0] for line in process.stdout.splitlines() if " of 3" in line} == {"[2"}
