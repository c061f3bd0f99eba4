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
from tests.integration.launcher.test_checkpoints import (
    LEARNER,
    first_two,
    lose_everything,
    sealed_steps,
    shown,
    stored,
    went_on_as_before,
)
from tests.integration.launcher.test_sleep import TWO, lose, slept
from tests.support.processes import RunningProcess


def job(
    launched: Launched, *kind: str, steps: int, options: tuple[object, ...] = (), processes: int = 2
) -> list[object]:
    where = ["--state-dir", launched.directory / "state", "--checkpoint-dir", launched.directory / "checkpoints"]
    return ["-np", processes, *where, "--checkpoint-every", "20", *options, sys.executable, LEARNER, steps, *kind]


def by_step(process: RunningProcess) -> dict[str, set[str]]:
    """What all ranks had come to at each commit. Who takes the place of one that died may be another rank."""
    found: dict[str, set[str]] = {}
    for (_, step), digest in shown(process).items():
        found.setdefault(step, set()).add(digest)
    return found


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_training_from_user_files_ends_with_the_same_weights(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, "draws", steps=10**6)) as first:
        launched.wait_for("two checkpoints", lambda: len(sealed_steps(launched)) >= 2)
        lose_everything(launched)
    _, newest = first_two(launched)
    steps = stored(launched, capsys)[0]["step"] + 13
    shutil.rmtree(newest)  # so that steps are done again
    with launched.run(*job(launched, steps=steps)) as refused:
        assert refused.wait(120) != 0, refused.output
    assert "it holds files that a save function has written, and this State has no functions" in refused.output
    assert "done" not in refused.stdout
    launched.journal.unlink()
    with launched.run(*job(launched, "own", steps=steps)) as resumed:
        assert resumed.wait(120) == 0, resumed.output
    went_on_as_before(resumed, first)
    [line] = launched.events("resumed")
    assert resumed.stdout.count(f"loaded {line.get('step')}\n") == 2
    assert {record.get("step") for record in launched.events("inherited")} == {line.get("step")}

    monkeypatch.setenv("DIED", str(launched.directory / "died"))
    for folder in ("checkpoints", "state"):
        shutil.rmtree(launched.directory / folder)
    launched.journal.unlink()
    with launched.run(*job(launched, "dies", steps=steps)) as process:
        assert process.wait(120) == 0, process.output
    assert sealed_steps(launched)
    assert len(launched.events("rolled_back")) == 1
    once, again = by_step(first), by_step(process)
    both = once.keys() & again.keys()
    assert both
    assert all(once[step] <= again[step] and len(again[step]) == 2 for step in both)


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
    [("raises", "OSError: the license server is away"), ("none", "has written no file")],
)
def test_a_save_that_fails_costs_the_checkpoint_and_no_training(launched: Launched, wrong: str, why: str) -> None:
    launched.set_hosts("localhost:1")
    with launched.run(*job(launched, wrong, steps=150, processes=1)) as process:
        assert process.wait(120) == 0, process.output
        assert process.stdout.count("done 150") == 1
    assert sealed_steps(launched) == [150]  # the end itself, as a State
    assert all(why in record.get("reason") for record in launched.events("not_sealed"))
    assert launched.events("not_sealed")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["own", "raises"])
def test_a_job_that_is_told_to_end_saves_once_more_with_or_without_the_functions(launched: Launched, kind: str) -> None:
    launched.set_hosts("localhost:1")
    options = ("--checkpoint-every", "notice")
    with launched.run(*job(launched, kind, steps=10**6, options=options, processes=1)) as process:
        launched.wait_for_steps(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, process.output
    sealed = sealed_steps(launched)
    assert sealed, process.output
    assert not [record for record in launched.events("committed") if record.get("step") > sealed[-1]]
    with launched.run(*job(launched, kind, steps=10**6, options=options, processes=1)) as process:
        launched.wait_for("training again", lambda: launched.events("inherited"))
        [resumed] = launched.events("resumed")
        assert resumed.get("step") == sealed[-1]
        if kind == "own":
            launched.wait_for("the files", lambda: f"loaded {sealed[-1]}" in process.stdout)
        assert ("loaded" in process.stdout) == (kind == "own")


@pytest.mark.soak
def test_before_sleep_memory_is_saved_without_the_functions_and_loaded_without_them(launched: Launched) -> None:
    launched.set_hosts(*TWO)
    sleeps = ("--below-min", "sleep", "--sleep-after", "2", "--settle", "0.5", "--blacklist-cooldown-range", "1", "1")
    with launched.run(*job(launched, "own", steps=400, options=sleeps)) as process:
        launched.wait_for("a checkpoint", lambda: sealed_steps(launched))
        first = sealed_steps(launched)[0]
        launched.wait_for("a later commit", lambda: launched.events("committed")[-1].get("step") > first)
        lose(launched, process, "127.0.0.1")
        night = slept(launched)
        assert night.get("step") > first
        launched.set_hosts(*TWO)
        assert process.wait(120) == 0, process.output
    assert process.stdout.count("done 400") == 2
    assert "loaded" not in process.stdout
    [resumed] = launched.events("resumed")
    assert resumed.get("step") == night.get("step")
