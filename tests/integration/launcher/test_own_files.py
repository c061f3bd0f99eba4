"""Jobs whose checkpoints are files that functions of the user's write and read."""

from __future__ import annotations

import json
import shutil
import signal
import sys

import pytest
import torch

from hvd_elastic_ext.checkpoint.programs import cli
from tests.integration.launcher.conftest import Launched
from tests.integration.launcher.test_checkpoints import LEARNER, lose_everything, results, sealed_steps
from tests.integration.launcher.test_sleep import TWO, lose, slept


def job(
    launched: Launched, *kind: str, steps: int, options: tuple[object, ...] = (), processes: int = 2
) -> list[object]:
    where = ["--state-dir", launched.directory / "state", "--checkpoint-dir", launched.directory / "checkpoints"]
    return ["-np", processes, *where, "--checkpoint-every", "20", *options, sys.executable, LEARNER, steps, *kind]


@pytest.mark.soak
def test_such_a_job_of_which_nothing_else_is_left_ends_as_if_it_had_never_stopped(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, "own", steps=300)) as whole:
        assert whole.wait(120) == 0, whole.output
        expected = results(whole)
    shutil.rmtree(launched.directory / "checkpoints")
    shutil.rmtree(launched.directory / "state")
    launched.journal.unlink()
    with launched.run(*job(launched, "own", steps=300)):
        launched.wait_for("two checkpoints", lambda: len(sealed_steps(launched)) >= 2)
        lose_everything(launched)
    with launched.run(*job(launched, "own", steps=300)) as resumed:
        assert resumed.wait(120) == 0, resumed.output
        assert results(resumed) == expected
    [line] = launched.events("resumed")
    assert resumed.stdout.count(f"loaded {line.get('step')}\n") == 2
    assert {record.get("step") for record in launched.events("inherited")} == {line.get("step")}


def test_the_files_are_kept_and_verified_as_any_checkpoint_and_exported_as_they_were(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    launched.set_hosts("localhost:1")
    with launched.run(*job(launched, "own", steps=10**6, processes=1)):
        launched.wait_for("a checkpoint", lambda: sealed_steps(launched))
        lose_everything(launched)
    store, to = str(launched.directory / "checkpoints"), launched.directory / "out"
    assert cli.main(["verify", store, "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[0]
    assert newest["whole"]
    assert newest["step"] > 0
    assert cli.main(["export", store, "--to", str(to)]) == 0
    assert sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()) == [
        "progress.json",
        "tensors/all.pt",
    ]
    assert json.loads((to / "progress.json").read_text()) == {"count": newest["step"]}
    assert torch.load(to / "tensors" / "all.pt", weights_only=True).keys() == {"model", "optimizer", "scheduler"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("wrong", "why"),
    [("raises", "save of checkpoint= failed: OSError: the license server is away"), ("none", "has written no file")],
)
def test_a_save_that_fails_costs_the_checkpoint_and_no_training(launched: Launched, wrong: str, why: str) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, wrong, steps=400)) as process:
        assert process.wait(120) == 0, process.output
        assert process.stdout.count("done 400") == 2
    assert sealed_steps(launched) == [400]  # the end itself, as a State
    assert all(why in record.get("reason") for record in launched.events("not_sealed"))
    assert launched.events("not_sealed")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["draws", "dies"])
def test_training_is_what_it_is_without_checkpoints(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("DIED", str(launched.directory / "died"))
    launched.set_hosts("localhost:2")
    with launched.run("-np", 2, sys.executable, LEARNER, 300) as bare:
        assert bare.wait(120) == 0, bare.output
    with launched.run(*job(launched, kind, steps=300)) as process:
        assert process.wait(120) == 0, process.output
        # Who takes the place of one that died may be another rank.
        assert sorted(results(process).values()) == sorted(results(bare).values())
    assert sealed_steps(launched)
    assert len(launched.events("rolled_back")) == (kind == "dies")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["own", "raises"])
def test_a_job_that_is_told_to_end_saves_once_more_if_need_be_without_the_functions(
    launched: Launched, kind: str
) -> None:
    launched.set_hosts("localhost:2")
    options = ("--checkpoint-every", "notice")
    with launched.run(*job(launched, kind, steps=10**6, options=options)) as process:
        launched.wait_for_steps(2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, process.output
    sealed = sealed_steps(launched)
    assert sealed, process.output
    assert not [record for record in launched.events("committed") if record.get("step") > sealed[-1]]
    with launched.run(*job(launched, kind, steps=10**6, options=options)) as process:
        launched.wait_for("training again", lambda: launched.events("inherited"))
        [resumed] = launched.events("resumed")
        assert resumed.get("step") == sealed[-1]
        if kind == "own":
            launched.wait_for("the files", lambda: f"loaded {sealed[-1]}" in process.stdout)
        assert ("loaded" in process.stdout) == (kind == "own")


@pytest.mark.soak
def test_files_are_refused_by_a_state_without_functions_in_one_line(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, "own", steps=10**6)):
        launched.wait_for("a checkpoint", lambda: sealed_steps(launched))
        lose_everything(launched)
    with launched.run(*job(launched, steps=10**6)) as process:
        assert process.wait(120) != 0, process.output
    assert "it holds files that a save function of the user's wrote, and this State has none" in process.output
    assert "done" not in process.stdout


@pytest.mark.soak
def test_what_only_memory_holds_when_it_sleeps_is_saved_without_functions_and_comes_back_so(launched: Launched) -> None:
    launched.set_hosts(*TWO)
    sleeps = ("--below-min", "sleep", "--sleep-after", "2", "--settle", "0.5", "--blacklist-cooldown-range", "1", "1")
    with launched.run(*job(launched, "own", steps=400, options=sleeps)) as process:
        launched.wait_for("a checkpoint", lambda: sealed_steps(launched))
        lose(launched, process, "127.0.0.1")
        night = slept(launched)
        assert night.get("step") > sealed_steps(launched)[0]
        launched.set_hosts(*TWO)
        assert process.wait(120) == 0, process.output
    assert process.stdout.count("done 400") == 2
    assert "loaded" not in process.stdout
    [resumed] = launched.events("resumed")
    assert resumed.get("step") == night.get("step")
