"""Jobs that train with TensorFlow and Keras: losses, newcomers, unmodified scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest
from safetensors.numpy import load_file

from hvd_elastic_ext.checkpoint.programs import cli
from tests.integration.launcher.conftest import ELASTIC, Launched, launched
from tests.integration.launcher.test_checkpoints import lose_everything, stored
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


def alone(launched: Launched, script: str, **env: str) -> str:
    """What one process computes, outside of a job and with nothing that happens."""
    done = subprocess.run(
        command(launched, script, **env), capture_output=True, text=True, check=True, timeout=120, env={**os.environ}
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


def test_a_job_of_which_only_a_checkpoint_is_left_goes_on_with_one_worker_and_is_exported(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    launched.set_hosts("localhost:2")
    folder = launched.directory / "checkpoints"
    words = ["--checkpoint-dir", folder, "--checkpoint-every", "6", "--state-dir", launched.directory / "state"]
    with launched.run(*QUICK, *words, "-np", "2", *command(launched, "loop.py", BATCHES="1000000")):
        launched.wait_for("a checkpoint", lambda: launched.events("sealed"), timeout=120)
        lose_everything(launched)
    step = stored(launched, capsys)[0]["step"]
    launched.set_hosts("localhost:1")
    batches = {"BATCHES": str(step + 13)}
    with launched.run(*QUICK, *words, "-np", "1", *command(launched, "loop.py", **batches)) as process:
        found = results(process)
    [resumed] = launched.events("resumed")
    assert [each.get("step") for each in launched.events("inherited")] == [resumed.get("step")]
    assert found == {alone(launched, "loop.py", **batches)}

    assert cli.main(["export", str(folder), "--to", str(launched.directory / "out.safetensors")]) == 0
    named = load_file(launched.directory / "out.safetensors")
    kept = {name: value for name, value in named.items() if name.startswith("model.")}
    assert sorted(kept) == ["model.dense/bias", "model.dense/kernel", "model.dense_1/bias", "model.dense_1/kernel"]
    [total] = {float(line.split()[1]) for line in found}
    assert sum(value.sum() for value in kept.values()) == pytest.approx(total, abs=2e-9)


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
@pytest.mark.parametrize(("use", "validating"), [("ours", {"DIES_VALIDATING": "1"}), ("stock", {})])
def test_fit_that_loses_a_worker_thrice_does_each_step_once(
    launched: Launched, use: str, validating: dict[str, str]
) -> None:
    """Once while all are in a validation pass, where nobody waits for the others."""
    launched.set_hosts("localhost:2")
    script = command(launched, "fit.py", use=use, DIES_AT="0,10 2,4", **validating)
    adopt = ("--adopt",) if use == "stock" else ()
    with launched.run(*QUICK, *adopt, "-np", "2", "--min-np", "2", *script) as process:
        found = results(process)
    assert found == {alone(launched, "fit.py")}
    assert [each.get("cause") for each in launched.events("struck")] == ["crashed"] * (3 if validating else 2)


@pytest.mark.soak
@pytest.mark.parametrize("use", ["ours", "stock"])
def test_a_fit_of_which_only_a_checkpoint_is_left_goes_on_with_more_workers(
    launched: Launched, capsys: pytest.CaptureFixture[str], use: str
) -> None:
    launched.set_hosts("localhost:1")
    folder = launched.directory / "checkpoints"
    words = ["--checkpoint-dir", folder, "--checkpoint-every", "6", "--state-dir", launched.directory / "state"]
    words += ["--adopt"] if use == "stock" else []
    with launched.run(*QUICK, *words, "-np", "1", *command(launched, "fit.py", use=use, EPOCHS="100000")):
        launched.wait_for("a checkpoint", lambda: launched.events("sealed"), timeout=120)
        lose_everything(launched)
    step = stored(launched, capsys)[0]["step"]
    launched.set_hosts("localhost:2")
    epochs = {"EPOCHS": str(step // 20 + 3)}
    script = command(launched, "fit.py", use=use, **epochs)
    with launched.run(*QUICK, *words, "-np", "2", "--min-np", "2", *script) as process:
        found = results(process)
    assert launched.events("resumed")
    assert found == {alone(launched, "fit.py", **epochs)}
    out = launched.directory / "out.keras"
    export = [*ELASTIC, "checkpoints", "export", folder, "--to", out]
    exported = subprocess.run(export, check=False, timeout=100, capture_output=True, text=True)
    assert exported.returncode == 0, exported.stderr
    with zipfile.ZipFile(out) as archive:
        assert {"config.json", "metadata.json", "model.weights.h5"} <= set(archive.namelist())


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
