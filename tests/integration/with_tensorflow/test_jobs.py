"""Jobs that train with TensorFlow and Keras: losses, newcomers, unmodified scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.launcher.conftest import Launched, launched
from tests.support.processes import RunningProcess
from tests.support.tensorflow import needs_tensorflow

__all__ = ["launched"]

HERE: Final = Path(__file__).parent
EXAMPLES: Final = HERE.parents[2] / "examples"
QUICK: Final = ("--settle", "0.2", "--blacklist-cooldown-range", "1", "1", "--min-np", "1")
RESULT: Final = re.compile(r"rank \d of \d (result .*)")
pytestmark = [needs_tensorflow, pytest.mark.timeout(300)]


def command(launched: Launched, script: str, *, use: str = "ours", **env: str) -> list[str]:
    marks = launched.directory / "marks"
    marks.mkdir(exist_ok=True)
    words = [f"{name}={value}" for name, value in {"USE": use, "MARKS": str(marks), **env}.items()]
    return ["env", *words, sys.executable, str(HERE / script)]


def alone(launched: Launched, script: str) -> str:
    """What one process computes, outside of a job and with nothing that happens."""
    done = subprocess.run(
        command(launched, script), capture_output=True, text=True, check=True, timeout=120, env={**os.environ}
    )
    found = RESULT.search(done.stdout)
    assert found is not None, done.stdout
    return found[1]


def results(process: RunningProcess) -> set[str]:
    assert process.wait(200) == 0, process.output
    return set(RESULT.findall(process.output))


def test_a_loop_that_loses_a_worker_twice_ends_with_the_numbers_of_an_undisturbed_run(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    script = command(launched, "loop.py", DIES_AT="7 31", SIZE="2")
    with launched.run(*QUICK, "-np", "2", "--min-np", "2", *script) as process:
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    assert [each.get("cause") for each in launched.events("struck")] == ["crashed"] * 2
    # Commits are after each third batch. Keras may have counted a step whose gradients did not come.
    assert {each.get("steps_lost") for each in launched.events("rolled_back")} <= {1, 2}
    assert "a peer was lost, rolling back: UnknownError: Detected at node" in process.output


@pytest.mark.soak
def test_a_newcomer_makes_its_graphs_before_the_others_wait_for_it(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    with launched.run(*QUICK, "-np", "1", *command(launched, "loop.py", SIZE="2")) as process:
        launched.wait_for("some steps", lambda: "five batches are done" in process.stdout)
        launched.set_hosts("localhost:1", "127.0.0.1:1")
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    first, *others = [line.split() for line in (launched.directory / "marks" / "traces").read_text().splitlines()]
    newcomers = [size for pid, size in others if pid != first[0]]
    assert newcomers[:1] == ["1"]  # and never again in the world of two
    assert "2" not in newcomers
    assert process.stdout.count("five batches are done") == 1  # what a rehearsal prints is not shown


@pytest.mark.soak
def test_a_newcomer_takes_part_in_what_the_others_do_together_in_their_reset_callbacks(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    script = command(launched, "loop.py", use="stock", SIZE="2", RESETS="1")
    with launched.run(*QUICK, "--adopt", "-np", "1", *script) as process:
        launched.wait_for("the first world", lambda: launched.events("resized"))
        launched.set_hosts("localhost:1", "127.0.0.1:1")
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    assert process.output.count("2 ranks reset") == 2


@pytest.mark.soak
@pytest.mark.parametrize("use", ["ours", "stock"])
def test_fit_that_loses_a_worker_twice_does_each_step_once(launched: Launched, use: str) -> None:
    launched.set_hosts("localhost:2")
    script = command(launched, "fit.py", use=use, DIES_AT="0,10 2,4")
    adopt = ("--adopt",) if use == "stock" else ()
    with launched.run(*QUICK, *adopt, "-np", "2", "--min-np", "2", *script) as process:
        found = results(process)
    assert found == {alone(launched, "fit.py")}
    assert [each.get("cause") for each in launched.events("struck")] == ["crashed"] * 2


@pytest.mark.soak
def test_an_unmodified_loop_of_horovods_is_kept_exactly_with_adopt(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    script = command(launched, "loop.py", use="stock", DIES_AT="7", SIZE="2")
    with launched.run(*QUICK, "--adopt", "-np", "2", *script) as process:
        found = results(process)
    assert found == {alone(launched, "loop.py")}
    assert {each.get("steps_lost") for each in launched.events("rolled_back")} <= {1, 2}
    assert launched.events("rolled_back")


@pytest.mark.soak
def test_a_script_for_tensorflow_1_goes_on_from_its_own_checkpoint(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    script = [sys.executable, EXAMPLES / "08-tensorflow1" / "train.py"]
    with launched.run(*QUICK, "-np", "2", *script, "300") as process:
        assert process.wait(120) == 0, process.output
    assert "step 300, 2 workers" in process.output
    with launched.run(*QUICK, "-np", "2", *script, "500") as process:
        assert process.wait(120) == 0, process.output
    assert "step 500, 2 workers" in process.output
    assert "step 200," not in process.output
    assert "step 400, 2 workers" in process.output
